"""Values for every message that kio has a schema of, and a naive twin of the codec.

The twin writes a message field by field from kio's dataclasses, with none of the codec's code,
and can do what kio can't: put tagged fields that nobody knows into every entity.
"""

import dataclasses
import datetime
import importlib
import random
import struct
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from sapwood.wire import private
from sapwood.wire.codec import Struct, encode_request, encode_response
from sapwood.wire.codec import decode_request as decode_request
from sapwood.wire.codec import decode_response as decode_response
from sapwood.wire.schema import OWN_FIELDS

INTEGERS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}

Inject = Callable[[], dict[int, bytes]]


@dataclasses.dataclass(frozen=True)
class Message:
    """One message in one version, with the codec's two functions for it."""

    api: int
    version: int
    direction: str
    message_class: Any

    def __str__(self) -> str:
        return f"{self.message_class.__name__} v{self.version}"

    def decode(self, data: bytes | bytearray | memoryview) -> Struct:
        decode = decode_request if self.direction == "request" else decode_response
        return decode(self.api, self.version, data)

    def encode(self, message: Struct) -> bytes:
        encode = encode_request if self.direction == "request" else encode_response
        return b"".join(encode(self.api, self.version, message))


def messages_of(api: int) -> list[Message]:
    if api in api_key_map:
        found = []
        for version, classes in schema_name_map[api_key_map[api]].items():
            for entity_type in (EntityType.request, EntityType.response):
                module, _, name = classes[entity_type].partition(":")
                message_class = getattr(importlib.import_module(module), name)
                found.append(Message(api, version, entity_type.name, message_class))
        return found
    return [
        Message(api, version, direction, message_class)
        for (key, version), classes in private.MESSAGES.items()
        for direction, message_class in zip(("request", "response"), classes, strict=True)
        if key == api
    ]


ALL_APIS = [*api_key_map, *sorted({api for api, _ in private.MESSAGES})]


def all_messages() -> Iterator[Message]:
    for api in ALL_APIS:
        yield from messages_of(api)


def inner_type(type_: Any) -> tuple[Any, bool, bool]:
    """The type without None and without tuple; whether it may be None; whether it is a tuple."""

    def without_none(type_: Any) -> tuple[Any, bool]:
        rest = [argument for argument in typing.get_args(type_) if argument is not type(None)]
        return (rest[0], True) if type(None) in typing.get_args(type_) else (type_, False)

    type_, nullable = without_none(type_)
    if typing.get_origin(type_) is tuple:
        return without_none(typing.get_args(type_)[0])[0], nullable, True
    return type_, nullable, False


def random_message(message_class: Any, chance: random.Random, width: int = 3) -> Any:
    """An instance of kio's dataclass with values from all over their ranges."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(message_class):
        if field.default is not dataclasses.MISSING and chance.random() < 0.3:
            continue
        type_, nullable, is_array = inner_type(field.type)
        kind = field.metadata.get("kafka_type")
        if nullable and chance.random() < 0.25:
            tagged = "tag" in field.metadata
            if not tagged or field.default is None:
                values[field.name] = None
                continue
        if is_array:
            long = chance.random() < 0.02 and kind is not None
            count = 200 if long else chance.randrange(width + 1)
            values[field.name] = tuple(
                random_value(type_, kind, chance, max(width - 1, 1)) for _ in range(count)
            )
        else:
            values[field.name] = random_value(type_, kind, chance, width)
    return message_class(**values)


def random_value(type_: Any, kind: str | None, chance: random.Random, width: int) -> Any:
    match kind:
        case None:
            return random_message(type_, chance, width)
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.uniform(-1e300, 1e300)
        case "string":
            length = 200 if chance.random() < 0.05 else chance.randrange(8)
            return "".join(chance.choice("abcé€𝄞\0") for _ in range(length))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 5, 300, 5000)))
        case "uuid":
            return uuid.UUID(bytes=chance.randbytes(16))
        case "error_code":
            return chance.choice(list(ErrorCode))
        case "timedelta_i32":
            return datetime.timedelta(milliseconds=chance.randrange(-(2**31), 2**31))
        case "timedelta_i64":
            return datetime.timedelta(milliseconds=chance.randrange(-(2**40), 2**40))
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(chance.randrange(2**32), datetime.UTC)
    bits = struct.calcsize(INTEGERS[kind]) * 8
    if kind.startswith("u"):
        return chance.choice((0, 2**bits - 1, chance.randrange(2**bits)))
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return chance.choice((low, high, -1, 0, chance.randint(low, high)))


def plain(value: Any, field: "dataclasses.Field[Any] | None" = None) -> Any:
    """What the codec is expected to make of a value of kio's."""
    if dataclasses.is_dataclass(value):
        return Struct(
            **{
                field.name: plain(getattr(value, field.name), field)
                for field in dataclasses.fields(value)
            }
        )
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, ErrorCode):
        return value.value
    if value is None and field is not None:
        type_, _, is_array = inner_type(field.type)
        if type_ is uuid.UUID and not is_array:
            return bytes(16)
        if field.metadata.get("kafka_type") == "datetime_i64":
            return -1
    return value


OWN_NAMES = {field.name for fields in OWN_FIELDS.values() for field in fields}


def comparable(value: Any) -> Any:
    """Structs with the bytes that their views show, so that they can be held side by side; without
    what Kafka doesn't know of, where it says nothing."""
    if isinstance(value, Struct):
        fields = vars(value).items()
        return {name: comparable(it) for name, it in fields if it or name not in OWN_NAMES}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


def unsigned_varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value % 128 + 128])
        value //= 128
    return encoded + bytes([value])


def naive_bytes(entity: Any, inject: Inject = dict) -> bytes:
    """The twin. `inject` gives further tagged fields for each flexible entity."""
    flexible = entity.__flexible__
    encoded = b""
    tagged = dict(inject()) if flexible else {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        tag = field.metadata.get("tag")
        if tag is None:
            encoded += naive_field(field, value, flexible, inject)
        elif value != field.default and not is_implicit_default(field, value):
            tagged[tag] = naive_field(field, value, flexible, inject, tagged=True)
    if flexible:
        encoded += unsigned_varint(len(tagged))
        for tag, content in sorted(tagged.items()):
            encoded += unsigned_varint(tag) + unsigned_varint(len(content)) + content
    return encoded


def is_implicit_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    return field.default is dataclasses.MISSING and not any(dataclasses.astuple(value))


def naive_field(
    field: "dataclasses.Field[Any]",
    value: Any,
    flexible: bool,
    inject: Inject,
    tagged: bool = False,
) -> bytes:
    _, nullable, is_array = inner_type(field.type)
    kind = field.metadata.get("kafka_type")
    if not is_array:
        marker = b""
        if kind is None and nullable and not tagged:
            marker = b"\xff" if value is None else b"\x01"
        return marker + naive_value(kind, value, flexible, inject)
    if value is None:
        return b"\0" if flexible else b"\xff\xff\xff\xff"
    count = unsigned_varint(len(value) + 1) if flexible else struct.pack(">i", len(value))
    return count + b"".join(naive_value(kind, item, flexible, inject) for item in value)


def naive_value(kind: str | None, value: Any, flexible: bool, inject: Inject) -> bytes:
    match kind:
        case None:
            return b"" if value is None else naive_bytes(value, inject)
        case "bool":
            return b"\1" if value else b"\0"
        case "float64":
            return struct.pack(">d", value)
        case "uuid":
            return bytes(16) if value is None else value.bytes
        case "string" | "bytes" | "records":
            if value is None:
                return b"\0" if flexible else b"\xff\xff" if kind == "string" else b"\xff" * 4
            content: bytes = value.encode() if kind == "string" else value
            if flexible:
                return unsigned_varint(len(content) + 1) + content
            return struct.pack(">h" if kind == "string" else ">i", len(content)) + content
    if value is None:
        value = -1
    return struct.pack(">" + INTEGERS[kind], plain(value))
