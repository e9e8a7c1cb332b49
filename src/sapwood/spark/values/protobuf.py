"""Protobuf messages: descriptors say the columns, each of which is taken out of all messages."""

from __future__ import annotations

import base64
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from sapwood.spark.tables.schemas import MOST_LEVELS, widest_schema
from sapwood.spark.values.decoding import (
    Decoded,
    Decoder,
    FramedDecoder,
    OneByOneDecoder,
    SchemaDecoders,
    ValueFormat,
    WrongSchema,
    shortened,
)
from sapwood.spark.values.names import columns_of
from sapwood.spark.values.registry import schema_of

_TIMESTAMP = "google.protobuf.Timestamp"

_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: pa.int64(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


class ProtobufDecoder(OneByOneDecoder):
    def __init__(self, columns: pa.Schema, message: Descriptor) -> None:
        self.what = f"a {message.full_name}"
        self._message = message
        self._class = message_factory.GetMessageClass(message)
        fields = pa.schema([(field.name, _type(field, MOST_LEVELS)) for field in message.fields])
        self._names = columns_of(fields).names
        super().__init__(columns)
        self.widen(widest_schema(columns_of(fields)))

    def _read(self, data: pa.Buffer) -> Any:
        return self._class.FromString(data.to_pybytes())

    def _rows(self, read: Sequence[Any]) -> pa.Table:
        columns = [_column(field, read) for field in self._message.fields]
        return pa.Table.from_arrays(columns, self._names)


class _IndexedDecoder(Decoder):
    """Behind the schema id stands which of the schema's messages it is."""

    def __init__(self, columns: pa.Schema, messages: Sequence[Descriptor]) -> None:
        super().__init__(columns)
        self._messages = messages
        self._decoders: dict[tuple[int, ...], ProtobufDecoder] = {}

    def _decode(self, values: pa.BinaryArray) -> Decoded:
        bodies, bad = [], {}
        path: tuple[int, ...] | None = None
        for index, value in enumerate(values):
            try:
                its, body = _split(value.as_py())
                if path not in (None, its):
                    raise WrongSchema("one topic holds several kinds of messages")
            except WrongSchema as error:
                bad[index] = shortened(error)
                continue
            path = its
            bodies.append(body)
        if path is None:
            return Decoded(pa.table({}), bad)
        rows, more = self._decoder(path).decode(pa.array(bodies, pa.binary()))
        good = [index for index in range(len(values)) if index not in bad]
        return Decoded(rows, {**bad, **{good[place]: why for place, why in more.items()}})

    def _decoder(self, path: tuple[int, ...]) -> ProtobufDecoder:
        if path not in self._decoders:
            found = ProtobufDecoder(self.columns, _by_path(self._messages, path))
            self._decoders[path] = found
            self.widen(found.columns)
        return self._decoders[path]


class _RegisteredProtobuf(SchemaDecoders):
    def __init__(self, address: str) -> None:
        self._address = address

    def find(self, schema_id: int, columns: pa.Schema) -> Decoder:
        text = schema_of(self._address, schema_id, "PROTOBUF")
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
        except (DecodeError, ValueError):
            raise WrongSchema("the registry doesn't give its descriptor") from None
        return _IndexedDecoder(columns, _messages([file]))


def make_protobuf_decoder(wanted: ValueFormat, columns: pa.Schema) -> Decoder:
    if wanted.registry is not None:
        return FramedDecoder(columns, _RegisteredProtobuf(wanted.registry))
    if wanted.schema is None:
        raise WrongSchema("Protobuf needs a schema: give its file, or the address of a registry")
    return ProtobufDecoder(columns, read_message(wanted.schema, wanted.message))


def read_message(descriptors: bytes, name: str | None) -> Descriptor:
    """One message of a set of descriptors, as `protoc --descriptor_set_out` writes it."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except DecodeError:
        raise WrongSchema(
            "not a set of descriptors: make it with protoc --include_imports --descriptor_set_out"
        ) from None
    messages = _messages(files)
    for message in messages:
        if name in (None, message.name, message.full_name):
            return message
    there = ", ".join(message.full_name for message in messages) or "none"
    raise WrongSchema(f"there is no message {name}: there are {there}")


def _messages(files: Sequence[descriptor_pb2.FileDescriptorProto]) -> Sequence[Descriptor]:
    """The messages of the last file: those before it are what it imports."""
    pool = descriptor_pool.DescriptorPool()
    default = descriptor_pool.Default()
    file = None
    for proto in files:
        for name in proto.dependency:
            _add_known(pool, default, name)
        try:
            pool.Add(proto)
            file = pool.FindFileByName(proto.name)
        except (TypeError, KeyError) as error:
            raise WrongSchema(f"{proto.name}: {shortened(error)}") from None
    return [] if file is None else list(file.message_types_by_name.values())


def _add_known(pool: Any, default: Any, name: str) -> None:
    """Google's own files come with the package, and with none of its users."""
    from google.protobuf import timestamp_pb2, wrappers_pb2

    for module in (timestamp_pb2, wrappers_pb2):
        if module.DESCRIPTOR.name == name:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _by_path(messages: Sequence[Descriptor], path: tuple[int, ...]) -> Descriptor:
    try:
        found = messages[path[0]]
        for index in path[1:]:
            found = found.nested_types[index]
    except IndexError:
        raise WrongSchema(f"the schema has no message {path}") from None
    return found


def _split(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """The path to a message, zigzag varints behind their count; 0 alone is the first message."""
    position = 0

    def number() -> int:
        nonlocal position
        found = shift = 0
        while True:
            if position >= len(data) or shift > 28:
                raise WrongSchema("which message it is can't be read")
            byte = data[position]
            position += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)

    count = number()
    if not 0 <= count <= MOST_LEVELS:
        raise WrongSchema("which message it is can't be read")
    path = tuple(number() for _ in range(count)) or (0,)
    if min(path) < 0:
        raise WrongSchema("which message it is can't be read")
    return path, data[position:]


def _type(field: FieldDescriptor, levels: int) -> pa.DataType:
    if levels == 0:
        raise WrongSchema("messages are recursive, or nested too deeply: that is no table")
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_one(entry["key"], levels - 1), _one(entry["value"], levels - 1))
    kind = _one(field, levels - 1)
    return pa.list_(kind) if field.is_repeated else kind


def _one(field: FieldDescriptor, levels: int) -> pa.DataType:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _TYPES[field.cpp_type]
    if field.message_type.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    inner = [(each.name, _type(each, levels)) for each in field.message_type.fields]
    if not inner:
        raise WrongSchema(f"{field.full_name} is a message without fields: that is no column")
    return pa.struct(inner)


def _column(field: FieldDescriptor, messages: Sequence[Any]) -> pa.Array:
    name, value_of = field.name, _converter(field)
    kind = _type(field, MOST_LEVELS)
    if field.has_presence and not field.is_repeated:
        found = [
            value_of(getattr(each, name)) if each.HasField(name) else None for each in messages
        ]
    else:
        found = [value_of(getattr(each, name)) for each in messages]
    return pa.array(found, kind)


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if _is_map(field):
        value_of = _single(field.message_type.fields_by_name["value"])
        return lambda found: [(key, value_of(found[key])) for key in found]
    one = _single(field)
    if field.is_repeated:
        return lambda found: [one(each) for each in found]
    return one


def _single(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return decimal.Decimal
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return lambda found: found
    if field.message_type.full_name == _TIMESTAMP:
        return lambda found: found.seconds * 1_000_000 + found.nanos // 1000
    inner = [(each, _converter(each)) for each in field.message_type.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            each.name: value_of(getattr(message, each.name))
            if each.is_repeated or not each.has_presence or message.HasField(each.name)
            else None
            for each, value_of in inner
        }

    return convert


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and message.GetOptions().map_entry
