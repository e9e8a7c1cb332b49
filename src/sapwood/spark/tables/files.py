"""Parquet files: what a task writes, and what becomes of many small ones."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sapwood.spark.tables.schemas import conform, merge_schemas

DATE = "date"  # the column by which every table is partitioned

# Bytes in memory, of rows that wait to become a row group; and of all that wait in one task.
ROW_GROUP_BYTES = 16 * 2**20
_MOST_WAITING_BYTES = 64 * 2**20
_MOST_FILES_OPEN = 16
LARGEST_FILE_BYTES = 256 * 2**20
_ROWS_AT_ONCE = 16_384

# What Rust's libraries and SQLite say of a full disk: their errors have no number.
_FULL = ("No space left", "disk is full")

_FIRST_DAY = datetime.date(1970, 1, 1)
_LAST_DAY = datetime.date(9999, 12, 31)


class NoRoom(Exception):
    """The disk under a table is full; says what to do."""


class DataFile(NamedTuple):
    """One Parquet file, of one date."""

    path: str
    date: str  # 2026-11-18
    rows: int
    size_bytes: int


class Written(NamedTuple):
    file: DataFile
    table: str
    schema: pa.Schema  # without the date


@contextlib.contextmanager
def room_needed(folder: Path | str) -> Iterator[None]:
    """A full disk under this folder as one error that says so."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        has_words = any(words in str(error) for words in _FULL)
        if number not in (errno.ENOSPC, errno.EDQUOT) and not has_words:
            raise
        raise NoRoom(
            f"no room is left for the table at {folder}: make room and start again; it goes on "
            "where it was, and nothing is lost or doubled"
        ) from error


class FileWriter:
    """One file that grows by row groups, and is on disk for good when it is closed."""

    def __init__(self, path: Path, date: str, schema: pa.Schema) -> None:
        self.path, self.date, self.schema = path, date, schema
        self.rows = 0
        with room_needed(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb")
            self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")

    @property
    def size_bytes(self) -> int:
        return self._file.tell()

    def write(self, rows: pa.Table) -> None:
        with room_needed(self.path.parent):
            self._writer.write_table(rows)
        self.rows += rows.num_rows

    def close(self) -> DataFile:
        with room_needed(self.path.parent):
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            size_bytes = self._file.tell()
            self._file.close()
        return DataFile(str(self.path), self.date, self.rows, size_bytes)

    def discard(self) -> None:
        """What was written is of no use."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class _Open:
    """A table's rows of one date: those in a file, and those that wait for a row group."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.waiting: list[pa.Table] = []
        self.waiting_bytes = 0
        self.writer: FileWriter | None = None


class Rows:
    """Rows of many tables and dates, as a task meets them, written to files of one date each.

    Memory is bounded by what may wait for a row group, the number of open files by closing the one
    that was opened first. `name` is nobody else's; `with_date` keeps the date in the file, too.
    """

    def __init__(self, folder: Path, name: str, *, with_date: bool, suffix: str) -> None:
        self._folder, self._name, self._suffix = folder, name, suffix
        self._with_date = with_date
        self._open: dict[tuple[str, str], _Open] = {}
        self._count = 0
        self._done: list[Written] = []

    def add(self, table: str, rows: pa.Table, timestamps: pa.ChunkedArray) -> None:
        """The rows of one table, each of the day of its timestamp."""
        days = pc.cast(timestamps, pa.date32())
        found = pc.unique(days)
        for day in found:
            part = rows if len(found) == 1 else rows.filter(pc.equal(days, day))
            date = iso_date(day)
            if self._with_date:
                column = pa.repeat(datetime.date.fromisoformat(date), part.num_rows)
                part = part.append_column(DATE, column.cast(pa.date32()))
            self._add(table, date, part)

    def finished(self) -> list[Written]:
        """The files that were closed since somebody asked."""
        done, self._done = self._done, []
        return done

    def close(self) -> list[Written]:
        for key in list(self._open):
            self._close(key)
        return self.finished()

    def discard(self) -> None:
        """The task failed: what is open is of no use. Whoever clears the folder takes the rest."""
        for each in self._open.values():
            if each.writer is not None:
                each.writer.discard()
        self._open.clear()

    def _add(self, table: str, date: str, rows: pa.Table) -> None:
        key = table, date
        found = self._open.get(key)
        if found is not None and not found.schema.equals(rows.schema):
            self._close(key)  # its columns are settled: those that come have more of them
            found = None
        if found is None:
            found = self._open[key] = _Open(rows.schema)
        found.waiting.append(rows)
        found.waiting_bytes += rows.get_total_buffer_size()
        if found.waiting_bytes >= ROW_GROUP_BYTES:
            self._write(key)
        while sum(each.waiting_bytes for each in self._open.values()) > _MOST_WAITING_BYTES:
            self._write(max(self._open, key=lambda key: self._open[key].waiting_bytes))
        if found.writer is not None and found.writer.size_bytes >= LARGEST_FILE_BYTES:
            self._close(key)
        while len(self._open) > _MOST_FILES_OPEN:
            self._close(next(iter(self._open)))

    def _write(self, key: tuple[str, str]) -> None:
        each = self._open[key]
        if each.writer is None:
            path = self._folder / f"{self._name}-{self._count}{self._suffix}"
            self._count += 1
            each.writer = FileWriter(path, key[1], each.schema)
        each.writer.write(pa.concat_tables(each.waiting).combine_chunks())
        each.waiting, each.waiting_bytes = [], 0

    def _close(self, key: tuple[str, str]) -> None:
        if self._open[key].waiting:
            self._write(key)
        each = self._open.pop(key)
        if each.writer is not None:
            place = each.schema.get_field_index(DATE) if self._with_date else -1
            schema = each.schema if place < 0 else each.schema.remove(place)
            self._done.append(Written(each.writer.close(), key[0], schema))


def iso_date(day: pa.Date32Scalar) -> str:
    """The day as text; times that were never meant as such count as the first or the last day."""
    number = day.cast(pa.int32()).as_py() or 0
    latest = (_LAST_DAY - _FIRST_DAY).days
    return (_FIRST_DAY + datetime.timedelta(days=min(max(number, 0), latest))).isoformat()


def merge_files(sources: Sequence[DataFile], target: Path, date: str) -> DataFile:
    """The rows of all, in this order, in one file; in memory is never more than a few batches."""
    schema = pq.read_schema(sources[0].path)
    for source in sources[1:]:
        schema = merge_schemas(schema, pq.read_schema(source.path))
    writer = FileWriter(target, date, schema.remove_metadata())
    try:
        for rows in _row_groups(_batches(sources), writer.schema):
            writer.write(rows)
    except BaseException:
        writer.discard()
        raise
    return writer.close()


def _batches(sources: Sequence[DataFile]) -> Iterator[pa.Table]:
    for source in sources:
        with pq.ParquetFile(source.path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
                yield pa.Table.from_batches([batch])


def _row_groups(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for table in tables:
        waiting.append(conform(table.replace_schema_metadata(None), schema))
        waiting_bytes += table.get_total_buffer_size()
        if waiting_bytes >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()
