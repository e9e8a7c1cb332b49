"""Columns and the fields that they come from: each name of one has one of the other.

Beside the fields of its value a row has what Kafka knows of it, in columns that begin with `_`, and
`date`. Delta has no columns with spaces and the like in their names.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import pyarrow as pa

OURS = ("_key", "_partition", "_offset", "_timestamp", "_timestampType", "_headers", "date")
_RESERVED = re.compile(f"(?:{'|'.join(OURS)})_*", re.IGNORECASE)
_UNSUITABLE = re.compile(r"[ ,;{}()\n\t=%]")


class UnsuitableName(ValueError):
    """A field that can't be a column because of its name."""


def column_of(field: str) -> str:
    if not field:
        raise UnsuitableName("a field has no name")
    if _RESERVED.fullmatch(field):
        return f"{field}_"
    return _UNSUITABLE.sub(lambda found: f"%{ord(found[0]):02X}", field)


def field_of(column: str) -> str:
    return unquote(column[:-1] if _RESERVED.fullmatch(column) else column)


def columns_of(fields: pa.Schema) -> pa.Schema:
    for field in fields:
        check_nested(field.type, field.name)
    return pa.schema([field.with_name(column_of(field.name)) for field in fields])


def fields_of(columns: pa.Schema) -> pa.Schema:
    """Those that values have: without our own columns."""
    found = [column for column in columns if column.name not in OURS]
    return pa.schema([column.with_name(field_of(column.name)) for column in found])


def check_nested(kind: pa.DataType, name: str) -> None:
    """Fields of fields keep their names, so these have to do as they are."""
    types = pa.types
    if types.is_struct(kind):
        seen: dict[str, str] = {}
        for field in kind:
            path = f"{name}.{field.name}"
            if not field.name or _UNSUITABLE.search(field.name):
                raise UnsuitableName(f"{path}: such a name can't be a column's")
            if seen.setdefault(field.name.lower(), field.name) != field.name:
                raise UnsuitableName(f"{path} and another field differ in case only")
            check_nested(field.type, path)
    elif types.is_list(kind):
        check_nested(kind.value_type, name)
    elif types.is_map(kind):
        check_nested(kind.item_type, name)
