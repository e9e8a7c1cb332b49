"""From the bytes of values to rows, whatever the format: nulls, schema ids, and who is bad."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sapwood.spark.tables.schemas import CannotWiden, conform, is_part_of, merge_schemas, shown

FORMATS = ("raw", "json", "avro", "protobuf")

# Confluent's frame: a zero, then the number of the schema.
_FRAME = np.dtype([("magic", "i1"), ("id", ">i4")])
_FRAME_BYTES = _FRAME.itemsize
_LONGEST_REASON = 300

# What Arrow says of a value that its type can't hold, such as a decimal with more digits than were
# announced, or a time too far away; and Protobuf of a text that is none, when it is looked at.
_NO_VALUES = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError)


class WrongSchema(ValueError):
    """A schema that was given, or that a registry has, can't be used; says why."""


class BadValue(ValueError):
    """One value can't be understood; says why."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """What is in the values. It travels to the tasks, so it holds what was read, not where."""

    kind: str = "raw"
    schema: bytes | None = None  # Arrow's bytes for JSON, text for Avro, descriptors for Protobuf
    message: str | None = None  # Protobuf's, if not the first
    registry: str | None = None


class Decoded(NamedTuple):
    rows: pa.Table  # one for each value that is not bad, in their order
    bad: Mapping[int, str]  # by position, the reason


class Decoder(abc.ABC):
    """Values of one topic. It remembers which columns it has met."""

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = columns  # of the table: those that are known so far
        self._stored = columns

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """A value that is null is a row of nulls: a deletion is a record, too."""
        if not values.null_count:
            return self._decode(values)
        present = np.flatnonzero(np.asarray(values.is_valid()))
        rows, bad = self._decode(values.take(pa.array(present)))
        bad = {int(present[index]): reason for index, reason in bad.items()}
        place = np.full(len(values), -1)
        good = np.delete(present, np.searchsorted(present, sorted(bad))) if bad else present
        place[good] = np.arange(len(good))
        kept = np.delete(place, sorted(bad))
        return Decoded(rows.take(pa.array(kept, mask=kept < 0)), bad)

    @abc.abstractmethod
    def _decode(self, values: pa.BinaryArray) -> Decoded:
        """Values none of which is null."""

    def widen(self, columns: pa.Schema) -> None:
        """These columns are known from now on; raises if the table can't have them."""
        wider = merge_schemas(self.columns, columns)
        for field in self._stored:
            if not is_part_of(field.type, wider.field(field.name).type):
                there = shown(wider.field(field.name).type)
                raise CannotWiden(f"{field.name} is {there}, where it was {shown(field.type)}")
        self.columns = wider


class OneByOneDecoder(Decoder):
    """Each value is read alone, and columns are made of all that could be."""

    what: str
    """What values should be."""

    def _decode(self, values: pa.BinaryArray) -> Decoded:
        read, places, bad = [], [], {}
        for index, value in enumerate(values):
            try:
                read.append(self._read(value.as_buffer()))
                places.append(index)
            # Whatever a reader of strangers' bytes may stumble over.
            except Exception as error:
                bad[index] = f"not {self.what}: {shortened(error or type(error).__name__)}"
        try:
            return Decoded(self._rows(read), bad)
        except _NO_VALUES:
            pass
        good = []
        for index, each in zip(places, read, strict=True):
            try:
                self._rows([each])
                good.append(each)
            except _NO_VALUES as error:
                bad[index] = shortened(error)
        return Decoded(self._rows(good), bad)

    @abc.abstractmethod
    def _read(self, data: pa.Buffer) -> Any: ...

    @abc.abstractmethod
    def _rows(self, read: Sequence[Any]) -> pa.Table: ...


class FramedDecoder(Decoder):
    """Values with a schema id in front of each: one decoder for each schema."""

    def __init__(self, columns: pa.Schema, decoders: SchemaDecoders) -> None:
        super().__init__(columns)
        self._decoders = decoders

    def _decode(self, values: pa.BinaryArray) -> Decoded:
        ids, bad = _schema_ids(values)
        parts: list[tuple[np.ndarray, pa.Table]] = []
        for schema_id in sorted({number for number in ids.tolist() if number >= 0}):
            places = np.flatnonzero(ids == schema_id)
            try:
                decoder = self._decoders.find(schema_id, self.columns)
                found = decoder.decode(_unframed(values.take(pa.array(places))))
                self.widen(decoder.columns)
            except (CannotWiden, WrongSchema) as error:
                reason = f"schema {schema_id}: {error}"
                bad.update(dict.fromkeys(places.tolist(), reason))
                continue
            bad.update({int(places[index]): reason for index, reason in found.bad.items()})
            parts.append((np.delete(places, sorted(found.bad)), found.rows))
        if not parts:
            return Decoded(self.columns.empty_table().select([]), bad)
        whole = parts[0][1].schema
        for _, rows in parts[1:]:
            whole = merge_schemas(whole, rows.schema)
        rows = pa.concat_tables(conform(rows, whole) for _, rows in parts)
        order = np.argsort(np.concatenate([places for places, _ in parts]), kind="stable")
        return Decoded(rows.take(pa.array(order)), bad)


class SchemaDecoders(abc.ABC):
    """Finds the decoder of a schema id."""

    @abc.abstractmethod
    def find(self, schema_id: int, columns: pa.Schema) -> Decoder: ...


def shortened(reason: object) -> str:
    """A reason in one line of bounded length: it may quote what a stranger has sent."""
    return " ".join(str(reason).split())[:_LONGEST_REASON]


def make_decoder(wanted: ValueFormat, columns: pa.Schema) -> Decoder:
    """`columns` are those that the table has, ours included."""
    # Here and not above: a task needs one of these.
    if wanted.kind == "json":
        from sapwood.spark.values.json import make_json_decoder

        return make_json_decoder(wanted, columns)
    if wanted.kind == "avro":
        from sapwood.spark.values.avro import make_avro_decoder

        return make_avro_decoder(wanted, columns)
    if wanted.kind == "protobuf":
        from sapwood.spark.values.protobuf import make_protobuf_decoder

        return make_protobuf_decoder(wanted, columns)
    raise WrongSchema(f"there is no format {wanted.kind}: it is one of {', '.join(FORMATS)}")


def _schema_ids(values: pa.BinaryArray) -> tuple[np.ndarray, dict[int, str]]:
    """The schema id of each value; −1 for those that have none, which are bad."""
    heads = pc.binary_slice(values, 0, _FRAME_BYTES)
    is_whole = pc.equal(pc.binary_length(heads), _FRAME_BYTES)
    whole = heads.filter(is_whole)
    heads_of = np.array(whole.cast(pa.binary(_FRAME_BYTES)), dtype=f"S{_FRAME_BYTES}")
    found = np.frombuffer(heads_of.tobytes(), _FRAME)
    ids = np.full(len(values), -1, np.int64)
    ids[np.asarray(is_whole)] = np.where(found["magic"] == 0, found["id"], -1)
    ids[ids < 0] = -1
    return ids, dict.fromkeys(np.flatnonzero(ids < 0).tolist(), "no schema id stands in front")


def _unframed(values: pa.BinaryArray) -> pa.BinaryArray:
    """Without the first bytes of each; all have them. (`binary_slice` fails where none is left.)"""
    _, offsets, data = values.buffers()
    starts = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]]
    is_body = np.ones(len(content), np.bool_)
    is_body[(starts[:-1, None] - starts[0] + np.arange(_FRAME_BYTES)).ravel()] = False
    lengths = np.diff(starts, prepend=starts[0]) - _FRAME_BYTES
    lengths[0] = 0
    ends = np.cumsum(lengths, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(content[is_body])]
    )
