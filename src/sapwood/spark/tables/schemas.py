"""What a column's type may become: the widest of its kind from the start, and wider if need be.

Integers are stored as longs and floats as doubles at once. So the common changes of a schema, int
to long and float to double, are none for the table, in any format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

MOST_COLUMNS = 1000
# Deeper ones are data that went astray; readers recurse over types.
MOST_LEVELS = 32

_MOST_DIGITS = 38
UTC_MICROSECONDS = pa.timestamp("us", "UTC")


class CannotWiden(ValueError):
    """A column would have to be of two types that have no common one; says which."""


def widest(kind: pa.DataType) -> pa.DataType:
    """The type under which a column is stored."""
    return _mapped(kind, _WIDEST, MOST_LEVELS)


def widest_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, widest(field.type)) for field in schema])


def ordinary_schema(schema: pa.Schema) -> pa.Schema:
    """The same types as a library may tell them, which prefers large ones or views."""
    return pa.schema([(field.name, _mapped(field.type, _ORDINARY)) for field in schema])


_Rules = Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType]]

_ORDINARY: _Rules = (
    (lambda kind: pa.types.is_large_string(kind) or pa.types.is_string_view(kind), pa.string()),
    (lambda kind: pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind), pa.binary()),
)
_WIDEST: _Rules = (
    *_ORDINARY,
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_uint64, pa.decimal128(20)),
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_timestamp, UTC_MICROSECONDS),
    (pa.types.is_time, pa.time64("us")),
    (pa.types.is_date, pa.date32()),
)


def _mapped(kind: pa.DataType, rules: _Rules, levels: int = MOST_LEVELS) -> pa.DataType:
    """Each type in it replaced by what the first rule says that it belongs to."""
    if levels == 0:
        raise CannotWiden(f"it is nested more than {MOST_LEVELS} levels deep")
    types, inner = pa.types, levels - 1
    if types.is_struct(kind):
        return pa.struct([(field.name, _mapped(field.type, rules, inner)) for field in kind])
    if types.is_map(kind):
        item = _mapped(kind.item_type, rules, inner)
        return pa.map_(_mapped(kind.key_type, rules, inner), item)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_mapped(kind.value_type, rules, inner))
    if types.is_dictionary(kind):
        return _mapped(kind.value_type, rules, inner)
    return next((wide for belongs, wide in rules if belongs(kind)), kind)


def merge(one: pa.DataType, other: pa.DataType, name: str = "it") -> pa.DataType:
    """The type that holds the values of both."""
    types = pa.types
    if one.equals(other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_struct(one) and types.is_struct(other):
        return pa.struct(list(_merged_fields(one, other, f"{name}.")))
    if types.is_map(one) and types.is_map(other) and one.key_type.equals(other.key_type):
        return pa.map_(one.key_type, merge(one.item_type, other.item_type, f"{name}'s values"))
    if types.is_list(one) and types.is_list(other):
        return pa.list_(merge(one.value_type, other.value_type, f"{name}'s elements"))
    numbers = {one, other}
    if numbers == {pa.int64(), pa.float64()}:
        return pa.float64()
    if types.is_decimal128(one) and types.is_decimal128(other):
        scale = max(one.scale, other.scale)
        digits = scale + max(one.precision - one.scale, other.precision - other.scale)
        if digits <= _MOST_DIGITS:
            return pa.decimal128(digits, scale)
    raise CannotWiden(f"{name} is {shown(other)}, where it was {shown(one)}")


def merge_schemas(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of both, those of the first in front."""
    merged = pa.schema(list(_merged_fields(one, other, "")))
    if len(merged) > MOST_COLUMNS:
        raise CannotWiden(f"the table would have more than {MOST_COLUMNS} columns")
    # Spark tells no upper case from lower case.
    seen: dict[str, str] = {}
    for column in merged.names:
        twin = seen.setdefault(column.lower(), column)
        if twin != column:
            raise CannotWiden(f"{column} and {twin} differ in case only")
    return merged


def is_part_of(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a reader of `other` can read `one` as it is: only fields may be missing."""
    types = pa.types
    if types.is_struct(one) and types.is_struct(other):
        return has_part(other, one)
    if types.is_map(one) and types.is_map(other):
        return is_part_of(one.item_type, other.item_type)
    if types.is_list(one) and types.is_list(other):
        return is_part_of(one.value_type, other.value_type)
    return bool(one.equals(other))


def has_part(whole: pa.Schema | pa.StructType, part: pa.Schema | pa.StructType) -> bool:
    types = {field.name: field.type for field in whole}
    return all(field.name in types and is_part_of(field.type, types[field.name]) for field in part)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows under a schema that was merged from theirs: cast where it is wider, null if new."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        if field.name in table.schema.names:
            column = table.column(field.name)
            chunks = [_conformed(chunk, field.type) for chunk in column.chunks]
            columns.append(pa.chunked_array(chunks, field.type))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)


def shown(kind: pa.DataType) -> str:
    """A type in the words of those who write SQL."""
    types = pa.types
    if types.is_struct(kind):
        return "a struct"
    if types.is_list(kind):
        return f"an array of {shown(kind.value_type)}"
    names = {"int64": "a long", "bool": "a boolean", "string": "a string", "double": "a double"}
    return names.get(str(kind), f"of type {kind}")


def to_bytes(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


def from_bytes(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _merged_fields(
    one: Iterable[pa.Field], other: Iterable[pa.Field], prefix: str
) -> Iterable[tuple[str, pa.DataType]]:
    others = {field.name: field.type for field in other}
    for field in one:
        there = others.pop(field.name, None)
        kind = field.type
        yield field.name, kind if there is None else merge(kind, there, f"{prefix}{field.name}")
    yield from others.items()


def _conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """By name at every level: Arrow's own cast wants nested fields to be the same ones."""
    if array.type.equals(kind):
        return array
    types = pa.types
    if types.is_struct(kind) and types.is_struct(array.type):
        children = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        return pa.StructArray.from_arrays(
            [
                _conformed(children[field.name], field.type)
                if field.name in children
                else pa.nulls(len(array), field.type)
                for field in kind
            ],
            fields=list(kind),
            mask=array.is_null() if array.null_count else None,
        )
    if types.is_list(kind) and types.is_list(array.type):
        mask = array.is_null() if array.null_count else None
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
        values = _conformed(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
    return array.cast(kind)
