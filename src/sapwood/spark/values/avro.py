"""Avro records: the writer's schema says the columns, and fastavro reads each value by it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException, UnknownType

from sapwood.spark.tables.schemas import MOST_LEVELS, conform, widest_schema
from sapwood.spark.values.decoding import (
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

_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}


class AvroDecoder(OneByOneDecoder):
    what = "Avro of this schema"

    def __init__(self, columns: pa.Schema, schema: Any) -> None:
        self._schema = schema
        self._row = row_type(schema)
        self._names = columns_of(pa.schema(list(self._row))).names
        super().__init__(columns)
        self.widen(widest_schema(columns_of(pa.schema(list(self._row)))))

    def _rows(self, read: Sequence[Any]) -> pa.Table:
        rows = pa.array(read, self._row)
        table = pa.Table.from_arrays(rows.flatten(), self._names)
        return conform(table, widest_schema(table.schema))

    def _read(self, data: pa.Buffer) -> Any:
        stream = io.BytesIO(data)
        found = schemaless_reader(stream, self._schema, None)
        if stream.tell() != data.size:
            raise ValueError(f"{data.size - stream.tell()} bytes are left over")
        return found


class _RegisteredAvro(SchemaDecoders):
    def __init__(self, address: str) -> None:
        self._address = address

    def find(self, schema_id: int, columns: pa.Schema) -> Decoder:
        return AvroDecoder(columns, read_schema(schema_of(self._address, schema_id, "AVRO")))


def make_avro_decoder(wanted: ValueFormat, columns: pa.Schema) -> Decoder:
    if wanted.registry is not None:
        return FramedDecoder(columns, _RegisteredAvro(wanted.registry))
    if wanted.schema is None:
        raise WrongSchema("Avro needs a schema: give its file, or the address of a registry")
    return AvroDecoder(columns, read_schema(wanted.schema.decode()))


def read_schema(text: str) -> Any:
    """A schema as fastavro wants it, or WrongSchema with the reason."""
    try:
        schema = parse_schema(_without_uuids(json.loads(text)))
        columns_of(pa.schema(list(row_type(schema))))
    except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
        if isinstance(error, WrongSchema):
            raise
        raise WrongSchema(f"not a usable Avro schema: {shortened(error)}") from None
    return schema


def row_type(schema: Any) -> pa.StructType:
    kind = _type(schema, {}, MOST_LEVELS)
    if not pa.types.is_struct(kind):
        raise WrongSchema("an Avro schema of a topic must be a record")
    return kind


def _type(schema: Any, named: dict[str, Any], levels: int) -> pa.DataType:
    if levels == 0:
        raise WrongSchema("the schema is recursive, or nested too deeply: that is no table")
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema not in named:
            raise WrongSchema(f"the schema has no type {schema}")
        return _type(named[schema], named, levels - 1)
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) > 1:
            raise WrongSchema("a union of several types can't be a column")
        return _type(others[0], named, levels) if others else pa.null()
    if "name" in schema:
        named[schema["name"]] = schema
    kind, inner = schema["type"], levels - 1
    if kind in ("record", "error"):
        return pa.struct(
            [(field["name"], _type(field["type"], named, inner)) for field in schema["fields"]]
        )
    if kind == "array":
        return pa.list_(_type(schema["items"], named, inner))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], named, inner))
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    logical = _LOGICAL.get(schema.get("logicalType", ""))
    return logical if logical is not None else _type(kind, named, inner)


def _without_uuids(schema: Any) -> Any:
    """A UUID is read as the text that it is in Avro: Arrow has no place for the object."""
    if isinstance(schema, Mapping):
        return {
            name: _without_uuids(each)
            for name, each in schema.items()
            if not (name == "logicalType" and each == "uuid")
        }
    if isinstance(schema, list):
        return [_without_uuids(each) for each in schema]
    return schema
