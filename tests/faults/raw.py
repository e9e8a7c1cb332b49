"""Kafka frames by hand: a socket, and requests that follow a schema with values that don't care."""

import dataclasses
import random
import socket
import struct
import types
import typing
from typing import Any

from kio.index import KioIndexError, load_request_schema

from sapwood.wire import private
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, decode_response, encode_request

TIMEOUT_S = 20
CLOSED = -1000  # no error code, but the end of the connection


class Wire:
    """One connection. `None` stands for "the node closed it", however it did."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> bool:
        """Whether the node still listened."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def finish(self) -> None:
        """Say that nothing more comes; answers may still arrive."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the node was quicker

    def receive(self) -> bytes | None:
        head = self._exactly(4)
        if head is None:
            return None
        (length,) = struct.unpack(">i", head)
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                some = self.socket.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not some:
                return None
            data += some
        return data

    def ask(self, frame: bytes) -> bytes | None:
        self.send(frame)
        return self.receive()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def schema(api: int, version: int) -> Any:
    if api >= Api.NODE_STATUS:
        return private.MESSAGES[api, version][0]
    return load_request_schema(api, version)


def has_schema(api: int, version: int) -> bool:
    try:
        schema(api, version)
    except (KeyError, KioIndexError):
        return False
    return True


def request(api: int, version: int, body: bytes, correlation_id: int = 7) -> bytes:
    """A whole frame around a body; the header's form follows from the schema."""
    flexible = has_schema(api, version) and schema(api, version).__flexible__
    header = struct.pack(">hhih4s", api, version, correlation_id, 4, b"test")
    return framed(header + (b"\0" if flexible else b"") + body)


def produce(
    wire: Wire, topic: str, records: bytes | None, partition: int = 0, acks: int = -1
) -> int:
    """The error code of one batch, as it stands in the answer; CLOSED if there was none."""
    version = 9
    message = Struct(
        transactional_id=None,
        acks=acks,
        timeout=10_000,
        topic_data=[Struct(name=topic, partition_data=[Struct(index=partition, records=records)])],
    )
    body = b"".join(bytes(it) for it in encode_request(Api.PRODUCE, version, message))
    answer = wire.ask(request(Api.PRODUCE, version, body))
    if answer is None:
        return CLOSED
    response = decode_response(Api.PRODUCE, version, answer, 5)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


WIDTHS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4}
SYNONYMS = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "error_code": "int16",
}


@dataclasses.dataclass
class RequestMaker:
    """Requests that are right by the schema of (API, version); their values are drawn by chance.

    `words` are strings that mean something to the node (topics that exist), `blobs` are contents
    for bytes and records. Times to wait stay short, so that an answer comes.
    """

    chance: random.Random
    words: list[str]
    blobs: list[bytes]
    ids: list[bytes] = dataclasses.field(default_factory=lambda: [bytes(16)])
    acks: tuple[int, ...] = (-1, 1)

    def body(self, api: int, version: int) -> bytes:
        return self._entity(schema(api, version))

    def _entity(self, entity: Any) -> bytes:
        flexible = entity.__flexible__
        hints = typing.get_type_hints(entity)
        plain, tagged = b"", []
        for field in dataclasses.fields(entity):
            tag = field.metadata.get("tag")
            if tag is None:
                plain += self._field(field, hints[field.name], flexible)
            elif self.chance.random() < 0.5:
                tagged.append((tag, self._field(field, without_none(hints[field.name]), flexible)))
        if not flexible:
            return plain
        if self.chance.random() < 0.2:  # a field that only a future version knows
            tagged.append((9000, b"from the future"))
        tags = b"".join(
            unsigned_varint(tag) + unsigned_varint(len(value)) + value
            for tag, value in sorted(tagged)
        )
        return plain + unsigned_varint(len(tagged)) + tags

    def _field(self, field: "dataclasses.Field[Any]", hint: Any, flexible: bool) -> bytes:
        nullable = hint != without_none(hint)
        hint = without_none(hint)
        kind = field.metadata.get("kafka_type")
        if typing.get_origin(hint) is tuple:
            count = self.chance.choice((0, 1, 1, 2, 3))
            if nullable and self.chance.random() < 0.2:
                return b"\0" if flexible else struct.pack(">i", -1)
            head = unsigned_varint(count + 1) if flexible else struct.pack(">i", count)
            if kind is None:
                entity = typing.get_args(hint)[0]
                return head + b"".join(self._entity(entity) for _ in range(count))
            return head + b"".join(self._value(kind, flexible) for _ in range(count))
        if kind is None:  # an entity of its own
            if nullable and self.chance.random() < 0.5:
                return b"\xff"
            return (b"\x01" if nullable else b"") + self._entity(hint)
        if field.name in ("max_wait", "timeout", "timeout_ms"):
            return struct.pack(">i", self.chance.choice((-1, 0, 1, 50)))
        if field.name == "acks":
            return struct.pack(">h", self.chance.choice(self.acks))
        return self._value(kind, flexible, nullable)

    def _value(self, kind: str, flexible: bool, nullable: bool = False) -> bytes:
        chance = self.chance
        kind = SYNONYMS.get(kind, kind)
        if kind == "bool":
            return chance.choice((b"\0", b"\x01"))
        if kind == "uuid":
            return chance.choice(self.ids)
        if kind == "float64":
            return struct.pack(">d", chance.choice((0.0, -1.5, float("nan"), float("inf"))))
        if width := WIDTHS.get(kind):
            top = 2 ** (8 * width - 1)
            small = chance.randrange(100)
            value: int = chance.choice((0, 0, 0, 1, 2, -1, -2, -5, small, top - 1, -top))
            return int.to_bytes(value % (2 * top), width, "big")
        text = kind == "string"
        if nullable and chance.random() < 0.2:
            return b"\0" if flexible else (b"\xff\xff" if text else b"\xff\xff\xff\xff")
        data = chance.choice(self.words).encode() if text else chance.choice(self.blobs)
        if flexible:
            return unsigned_varint(len(data) + 1) + data
        return struct.pack(">h" if text else ">i", len(data)) + data


def without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (only,) = [it for it in typing.get_args(hint) if it is not type(None)]
        return only
    return hint


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """The same frame after an accident; its length field tells the truth again, or not."""
    data = bytearray(frame[4:])
    for _ in range(chance.choice((1, 1, 2, 5))):
        place = chance.randrange(len(data) + 1)
        accident = chance.randrange(6)
        if accident == 0 and place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        elif accident == 1 and place < len(data):
            data[place] = chance.choice((0, 0x7F, 0x80, 0xFF))
        elif accident == 2:
            del data[place:]
        elif accident == 3:
            data[place:place] = chance.randbytes(chance.choice((1, 4, 50)))
        elif accident == 4:
            del data[place : place + chance.choice((1, 2, 4, 8))]
        else:
            data[place : place + 4] = struct.pack(">i", chance.choice((-1, -2, 2**31 - 1, 10**6)))
        data = data or bytearray(b"\0")
    length = len(data)
    if chance.random() < 0.1:
        length += chance.choice((-1, 1, -4, 1000))
    return struct.pack(">i", max(length, 0)) + bytes(data)
