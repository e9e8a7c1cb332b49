"""What a task of `archive` does: records in, staged Parquet files out, and a line about each.

It runs in Spark's workers as a function on Arrow batches, under a plan that the driver has made. It
changes no table. If the task is repeated, its first files are never named to anybody.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sapwood.spark.decoding import SCHEMA_WITH_HEADERS
from sapwood.spark.tables import DataFile, Rows
from sapwood.spark.tables.files import Written
from sapwood.spark.tables.schemas import from_bytes, to_bytes
from sapwood.spark.values import Decoder, ValueFormat, make_decoder

DEAD = ".dead"

# A table of raw records has the columns of the source, but its own name instead of the topic's.
RAW = pa.schema([field for field in SCHEMA_WITH_HEADERS if field.name != "topic"])
# Beside the fields of values: what else is known of a record, under names that those can't have.
BESIDE_FIELDS = pa.schema(
    [
        field.with_name(f"_{field.name}")
        for field in SCHEMA_WITH_HEADERS
        if field.name not in ("topic", "value")
    ]
)
DEAD_COLUMNS = RAW.append(pa.field("reason", pa.string()))

# The lines, as Arrow and as Spark write it.
LINES = pa.schema(
    [
        ("table", pa.string()),
        ("path", pa.string()),
        ("date", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("schema", pa.binary()),
    ]
)
LINES_DDL = "table string, path string, date string, rows long, size_bytes long, schema binary"


class BadRecord(ValueError):
    """A record can't be understood, and the user wants to stop at the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the records of one batch are to be staged."""

    folder: Path
    values: ValueFormat
    schemas: Mapping[str, bytes]  # of the tables that exist
    with_date: bool
    may_be_bad: bool = True


class Staged(NamedTuple):
    table: str
    file: DataFile
    schema: pa.Schema

    @property
    def is_dead(self) -> bool:
        """Whether these are records that were put aside, of whatever topic."""
        return self.table.endswith(DEAD) and "reason" in self.schema.names


def stage(batches: Iterator[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Write all records; afterwards a line for each file."""
    rows = Rows(plan.folder, f"{uuid.uuid4()}", with_date=plan.with_date, suffix=".staged")
    task = _Task(plan, rows)
    try:
        for batch in batches:
            if batch.num_rows:
                task.add(pa.Table.from_batches([batch]))
            yield from map(line_of, rows.finished())
        yield from map(line_of, rows.close())
    except BaseException:
        rows.discard()
        raise


def read_lines(lines: pa.Table) -> list[Staged]:
    return [
        Staged(
            line["table"],
            DataFile(line["path"], line["date"], line["rows"], line["size_bytes"]),
            from_bytes(line["schema"]),
        )
        for line in lines.to_pylist()
    ]


class _Task:
    def __init__(self, plan: Plan, rows: Rows) -> None:
        self._plan, self._rows = plan, rows
        self._decoders: dict[str, Decoder] = {}

    def add(self, records: pa.Table) -> None:
        topics = records.column("topic")
        found = pc.unique(topics)
        for topic in found:
            its = records if len(found) == 1 else records.filter(pc.equal(topics, topic))
            self._add(topic.as_py(), its.drop_columns("topic").combine_chunks())

    def _add(self, topic: str, records: pa.Table) -> None:
        times = records.column("timestamp")
        if self._plan.values.kind == "raw":
            self._rows.add(topic, records.cast(RAW), times)
            return
        decoder = self._decoders.get(topic)
        if decoder is None:
            known = self._plan.schemas.get(topic)
            columns = BESIDE_FIELDS if known is None else from_bytes(known)
            decoder = self._decoders[topic] = make_decoder(self._plan.values, columns)
        values = records.column("value").combine_chunks()
        fields, bad = decoder.decode(_one_array(values))
        if bad:
            self._bury(topic, records, bad)
            is_good = [index not in bad for index in range(records.num_rows)]
            records = records.filter(pa.array(is_good))
        if records.num_rows:
            beside = records.drop_columns("value").rename_columns(BESIDE_FIELDS.names)
            columns = [*beside.cast(BESIDE_FIELDS).columns, *fields.columns]
            names = [*BESIDE_FIELDS.names, *fields.column_names]
            whole = pa.table(columns, names)
            self._rows.add(topic, whole, records.column("timestamp"))

    def _bury(self, topic: str, records: pa.Table, bad: Mapping[int, str]) -> None:
        places = sorted(bad)
        dead = records.take(pa.array(places))
        if not self._plan.may_be_bad:
            where = f"partition {dead['partition'][0]}, offset {dead['offset'][0]}"
            raise BadRecord(
                f"topic {topic}, {where}: {bad[places[0]]}; correct the schema, or leave out "
                "--stop-at-bad to put such records aside"
            )
        reasons = pa.array([bad[place] for place in places], pa.string())
        buried = dead.cast(RAW).append_column("reason", reasons)
        self._rows.add(f"{topic}{DEAD}", buried, dead.column("timestamp"))


def line_of(written: Written) -> pa.RecordBatch:
    file = written.file
    schema = to_bytes(written.schema)
    values = (written.table, file.path, file.date, file.rows, file.size_bytes, schema)
    return pa.record_batch([pa.array([value]) for value in values], schema=LINES)


def _one_array(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    return values
