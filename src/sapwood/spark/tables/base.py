"""What every table can do, whatever its format; and when small files are worth merging."""

from __future__ import annotations

import abc
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from sapwood.spark.tables.files import DataFile, merge_files
from sapwood.spark.tables.schemas import merge_schemas

FORMATS = ("parquet", "delta", "iceberg")

# Where tasks write; no topic can have this name.
STAGING = "@staging"

# So many small files of one date are merged; not more bytes at once, so that it takes seconds.
SMALL_BYTES = 32 * 2**20
FEWEST_MERGED = 16
_MOST_MERGED_BYTES = 256 * 2**20


class WrongTable(ValueError):
    """A folder holds something else than the table that was asked for; says what."""


class Table(abc.ABC):
    """One table of a folder of tables. If it has two writers, one of them fails at its commit."""

    keeps_date = False  # whether the files themselves hold the date

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.folder = root / name

    @property
    @abc.abstractmethod
    def schema(self) -> pa.Schema | None:
        """Its columns without the date; none if there is no table yet."""

    @abc.abstractmethod
    def last_batch(self, query: str) -> int:
        """The number of the last batch of this query that is part of the table; −1 if none is."""

    @abc.abstractmethod
    def files(self, date: str | None = None) -> list[DataFile]:
        """Those that readers see, of one date or of all."""

    @abc.abstractmethod
    def _append(
        self, query: str, batch: int, staged: Sequence[DataFile], schema: pa.Schema
    ) -> None:
        """Take over the files and remember the batch, in one act."""

    @abc.abstractmethod
    def _replace(self, date: str, small: Sequence[DataFile], merged: DataFile) -> bool:
        """Put one staged file in the place of some, in one act; false where that can't be done."""

    def commit(self, query: str, batch: int, staged: Sequence[DataFile], schema: pa.Schema) -> bool:
        """Make staged files part of the table; false if this batch was it already.

        `schema` has the columns of all files; the table gets those that it doesn't have yet.
        """
        if batch <= self.last_batch(query):
            return False
        known = self.schema
        self._append(
            query, batch, staged, schema if known is None else merge_schemas(known, schema)
        )
        return True

    def compact(self, date: str, fewest: int = FEWEST_MERGED) -> int:
        """Merge the small files of a date, if they are many; how many there were."""
        small = [file for file in self.files(date) if file.size_bytes < SMALL_BYTES]
        chosen: list[DataFile] = []
        total_bytes = 0
        for file in sorted(small, key=lambda file: file.size_bytes):
            total_bytes += file.size_bytes
            if total_bytes > _MOST_MERGED_BYTES:
                break
            chosen.append(file)
        if len(chosen) < fewest:
            return 0
        chosen.sort()  # by batch, so that records stay near their neighbours
        target = self.root / STAGING / f"merged-{uuid.uuid4()}.staged"
        merged = merge_files(chosen, target, date)
        try:
            return len(chosen) if self._replace(date, chosen, merged) else 0
        finally:
            target.unlink(missing_ok=True)

    def _folder_of(self, date: str) -> Path:
        return self.folder / f"date={date}"

    def _take_over(self, staged: Sequence[DataFile], prefix: str) -> list[DataFile]:
        """The staged files at the places where the table will name them: nobody looks there yet."""
        taken = []
        for number, file in enumerate(staged):
            path = self._folder_of(file.date) / final_name(prefix, number, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.touch(exist_ok=False)  # a rename alone would replace what is there
            except FileExistsError:
                raise WrongTable(
                    f"{path} is there already: somebody else writes to {self.folder}, stop one of "
                    "both"
                ) from None
            Path(file.path).rename(path)
            taken.append(file._replace(path=str(path)))
        return taken


def final_name(prefix: str, number: int, file: DataFile) -> str:
    """A name that nobody else gives, not even for the same batch: a killed one's may lie there."""
    return f"{prefix}-{number:03}-{Path(file.path).stem}.parquet"
