"""JSON objects: Arrow's parser over many of them at once, and a search for the bad among them."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from sapwood.spark.tables.schemas import (
    MOST_LEVELS,
    CannotWiden,
    conform,
    from_bytes,
    merge_schemas,
    widest_schema,
)
from sapwood.spark.values.decoding import (
    Decoded,
    Decoder,
    FramedDecoder,
    SchemaDecoders,
    ValueFormat,
    WrongSchema,
    shortened,
)
from sapwood.spark.values.names import UnsuitableName, columns_of, fields_of
from sapwood.spark.values.shapes import are_objects

# Arrow counts bytes in 32 bits.
_MOST_BYTES = 2**30

# What says that values can't be rows; the last is of names of fields that are no text.
_NO_ROWS = (pa.ArrowInvalid, CannotWiden, UnsuitableName, UnicodeDecodeError)

_check = msgspec.json.Decoder()


class JsonDecoder(Decoder):
    """Fields become columns; those of a given schema only, or all that are met."""

    def __init__(self, columns: pa.Schema, given: pa.Schema | None = None) -> None:
        super().__init__(columns)
        self._is_given = given is not None
        # Under the names and types of the values: a schema may ask for a date, or a decimal.
        self._fields = fields_of(columns) if given is None else given
        if given is not None:
            self.widen(widest_schema(columns_of(given)))

    def _decode(self, values: pa.BinaryArray) -> Decoded:
        half = len(values) // 2
        if half and values.nbytes > _MOST_BYTES:
            return _joined(self._decode(values[:half]), self._decode(values[half:]), half)
        # Each value must be one object by itself: Arrow sees a stream of them, in which an open
        # bracket and a superfluous one elsewhere would shift all rows between by one.
        fine = are_objects(values, MOST_LEVELS)
        bad = {}
        if not fine.all():
            bad = {int(index): _why_not_json(values[index]) for index in np.flatnonzero(~fine)}
            values = values.filter(pa.array(fine))
        try:
            return Decoded(self._parse(values), bad)
        except _NO_ROWS:
            pass
        places = np.flatnonzero(fine)
        wrong = {index: reason for index in range(len(values)) if (reason := _fault(values[index]))}
        good = np.delete(np.arange(len(values)), list(wrong))
        rows, others = self._search(values.take(pa.array(good)))
        wrong.update({int(good[index]): reason for index, reason in others.items()})
        bad.update({int(places[index]): reason for index, reason in wrong.items()})
        return Decoded(rows, bad)

    def _search(self, values: pa.BinaryArray) -> Decoded:
        """Halve until what is bad stands alone."""
        try:
            return Decoded(self._parse(values), {})
        except _NO_ROWS as error:
            if len(values) > 1:
                half = len(values) // 2
                return _joined(self._search(values[:half]), self._search(values[half:]), half)
            return self._alone(values, error)

    def _alone(self, value: pa.BinaryArray, error: Exception) -> Decoded:
        """One value that doesn't fit: widen a column for it, or give it up."""
        nothing = Decoded(self._parse(value[:0]), {})
        try:
            if not self._is_given:
                self._learn(_read(value, pa.schema([]), is_given=False).schema)
                return Decoded(self._parse(value), {})
        except _NO_ROWS as another:
            error = another
        return nothing._replace(bad={0: shortened(error)})

    def _parse(self, values: pa.BinaryArray) -> pa.Table:
        if not len(values):
            return columns_of(fields_of(self.columns)).empty_table()
        rows = _read(values, self._fields, is_given=self._is_given)
        if not self._is_given and self._learn(rows.schema):
            rows = _read(values, self._fields, is_given=False)
        if rows.num_rows != len(values):
            raise pa.ArrowInvalid("its objects aren't one each")
        rows = rows.select(self._fields.names)
        columns = columns_of(rows.schema)
        return conform(rows.rename_columns(columns.names), widest_schema(columns))

    def _learn(self, met: pa.Schema) -> bool:
        """Take up fields that are new; whether there were any."""
        usable = [(field.name, kind) for field in met if (kind := _usable(field.type)) is not None]
        fields = merge_schemas(self._fields, pa.schema(usable))
        if fields.equals(self._fields):
            return False
        self.widen(columns_of(fields))
        self._fields = fields
        return True


class _FramedJson(SchemaDecoders):
    """With an id in front, but nothing of the schema is needed to read it."""

    def __init__(self, given: pa.Schema | None) -> None:
        self._given = given

    def find(self, schema_id: int, columns: pa.Schema) -> Decoder:
        return JsonDecoder(columns, self._given)


def make_json_decoder(wanted: ValueFormat, columns: pa.Schema) -> Decoder:
    given = None
    if wanted.schema is not None:
        given = from_bytes(wanted.schema)
        try:
            _read(pa.array([b"{}"], pa.binary()), given, is_given=True)
        except pa.ArrowNotImplementedError as error:
            raise WrongSchema(shortened(error)) from None
    if wanted.registry is not None:
        return FramedDecoder(columns, _FramedJson(given))
    return JsonDecoder(columns, given)


def _read(values: pa.BinaryArray, fields: pa.Schema, *, is_given: bool) -> pa.Table:
    """One parse of all; fields that aren't named are left out, or come with the type they have."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    data = pc.binary_join(whole, b"\n")[0].as_buffer()
    return pj.read_json(
        pa.BufferReader(data),
        pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        pj.ParseOptions(
            explicit_schema=fields,
            newlines_in_values=True,
            unexpected_field_behavior="ignore" if is_given else "infer",
        ),
    )


def _usable(kind: pa.DataType) -> pa.DataType | None:
    """The type to store something under of which only examples are known; none if it can't be told.

    What looks like a time may be a text tomorrow. Nothing is known yet of a field that was null,
    or an empty list, wherever it was met.
    """
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_timestamp(kind):
        return pa.string()
    if types.is_list(kind):
        value = _usable(kind.value_type)
        return None if value is None else pa.list_(value)
    if types.is_struct(kind):
        known = [
            (field.name, inner) for field in kind if (inner := _usable(field.type)) is not None
        ]
        return pa.struct(known) if known else None
    return kind


def _fault(value: pa.BinaryScalar) -> str | None:
    try:
        _check.decode(value.as_buffer())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"not JSON: {shortened(error)}"
    return None


def _why_not_json(value: pa.BinaryScalar) -> str:
    return _fault(value) or f"not a JSON object, or nested more than {MOST_LEVELS} levels deep"


def _joined(one: Decoded, other: Decoded, offset: int) -> Decoded:
    """The rows of both, one after the other; the second may know columns that the first didn't."""
    whole = merge_schemas(one.rows.schema, other.rows.schema)
    rows = pa.concat_tables([conform(one.rows, whole), conform(other.rows, whole)])
    if not whole.names:  # Arrow has forgotten how many there were
        count = one.rows.num_rows + other.rows.num_rows
        rows = pa.table([pa.nulls(count)], [""]).select([])
    return Decoded(rows, {**one.bad, **{offset + index: why for index, why in other.bad.items()}})
