"""How keys and values of internal topics are written: a version, then the fields of a schema.

They are Kafka's own formats, so that Kafka's tools can read them. A schema is a class in the
manner of `wire.private`; each version that is written has one, and names what it is.
"""

import struct
from typing import Any

from sapwood.wire.codec import Struct
from sapwood.wire.decoder import Decoder, compile_decoder
from sapwood.wire.encoder import Buffer, Encoder, compile_encoder
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.schema import describe

_VERSION = struct.Struct(">h")


class Format:
    """One version of a key or value."""

    def __init__(self, schema: Any, version: int) -> None:
        self.version = version
        self._schema = schema
        self._encoder: Encoder | None = None
        self._decoder: Decoder | None = None

    def encode(self, **fields: Any) -> bytes:
        if self._encoder is None:
            self._encoder = compile_encoder(describe(self._schema))
        buffer = bytearray(_VERSION.pack(self.version))
        parts: list[Buffer] = []
        self._encoder(Struct(**fields), buffer, parts)
        return b"".join(parts)

    def decode(self, data: bytes) -> Struct:
        if self._decoder is None:
            self._decoder = compile_decoder(describe(self._schema))
        name = self._schema.__name__
        if (version := version_of(data)) != self.version:
            raise MalformedMessage(
                f"{name} in version {version}; this release knows {self.version}"
            )
        try:
            return self._decoder(data, _VERSION.size)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise MalformedMessage(f"{name} is cut short or malformed") from error


def version_of(data: bytes) -> int:
    """Of a value; a key's tells what kind of record it is."""
    if len(data) < _VERSION.size:
        raise MalformedMessage("a record without a version")
    (version,) = _VERSION.unpack_from(data)
    return int(version)
