"""Messages to bytes and back, for every API and version that has a schema.

The code for a message is written and compiled on its first use; later uses only look it up.
"""

import struct

from sapwood.wire.apis import can_code
from sapwood.wire.decoder import Decoder, compile_decoder
from sapwood.wire.encoder import Buffer, Encoder, compile_encoder
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.schema import Direction, Struct, load

__all__ = [
    "Buffer",
    "Struct",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_request_into",
    "encode_response",
    "encode_response_into",
]

_request_decoders: dict[tuple[int, int], Decoder] = {}
_response_decoders: dict[tuple[int, int], Decoder] = {}
_request_encoders: dict[tuple[int, int], Encoder] = {}
_response_encoders: dict[tuple[int, int], Encoder] = {}


def decode_request(api: int, version: int, data: Buffer, offset: int = 0) -> Struct:
    """The request in `data` from `offset` to the end; MalformedMessage if it can't be one."""
    decoder = _request_decoders.get((api, version))
    if decoder is None:
        decoder = _compiled_decoder(api, version, "request")
        _request_decoders[api, version] = decoder
    try:
        return decoder(data, offset)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(api, version, "request", error) from error


def decode_response(api: int, version: int, data: Buffer, offset: int = 0) -> Struct:
    """The response in `data` from `offset` to the end; MalformedMessage if it can't be one."""
    decoder = _response_decoders.get((api, version))
    if decoder is None:
        decoder = _compiled_decoder(api, version, "response")
        _response_decoders[api, version] = decoder
    try:
        return decoder(data, offset)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(api, version, "response", error) from error


def encode_request(api: int, version: int, message: Struct) -> list[Buffer]:
    """The request's bytes in few parts; large records are among them as they were given."""
    parts: list[Buffer] = []
    encode_request_into(parts, bytearray(), api, version, message)
    return parts


def encode_response(api: int, version: int, message: Struct) -> list[Buffer]:
    """The response's bytes in few parts; large records are among them as they were given."""
    parts: list[Buffer] = []
    encode_response_into(parts, bytearray(), api, version, message)
    return parts


def encode_request_into(
    parts: list[Buffer], buffer: bytearray, api: int, version: int, message: Struct
) -> None:
    """Append the parts of a request; the first of them goes on where `buffer` ends."""
    encoder = _request_encoders.get((api, version))
    if encoder is None:
        encoder = compile_encoder(load(api, version, "request"))
        _request_encoders[api, version] = encoder
    try:
        encoder(message, buffer, parts)
    except (KeyError, struct.error) as error:
        raise _unencodable(api, version, "request", error) from error


def encode_response_into(
    parts: list[Buffer], buffer: bytearray, api: int, version: int, message: Struct
) -> None:
    """Append the parts of a response; the first of them goes on where `buffer` ends."""
    encoder = _response_encoders.get((api, version))
    if encoder is None:
        encoder = compile_encoder(load(api, version, "response"))
        _response_encoders[api, version] = encoder
    try:
        encoder(message, buffer, parts)
    except (KeyError, struct.error) as error:
        raise _unencodable(api, version, "response", error) from error


def _compiled_decoder(api: int, version: int, direction: Direction) -> Decoder:
    # To read what has no schema is the sender's fault; to write it would be ours.
    if not can_code(api, version):
        raise MalformedMessage(f"no schema for API key {api}, version {version}")
    return compile_decoder(load(api, version, direction))


def _malformed(api: int, version: int, direction: Direction, error: Exception) -> MalformedMessage:
    what = "a string is not UTF-8" if isinstance(error, UnicodeDecodeError) else "it ends too early"
    return MalformedMessage(f"{direction} with API key {api}, version {version}: {what}")


def _unencodable(api: int, version: int, direction: Direction, error: Exception) -> TypeError:
    what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
    return TypeError(f"{direction} with API key {api}, version {version}: {what}")
