"""A spool: rows that are to be sent, in their order, as a stream that can stop and go on anywhere.

There is a folder `sapwood_lane=…` for each sequence whose order counts; in it Parquet files, in the
order of their names. A position is the number of rows of each lane that were taken. Nothing in a
spool ever changes, so a range that was planned once reads the same again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sapwood.spark.planning import Offsets, admit, from_json, to_json

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "sapwood_spool"
_LANE = "sapwood_lane="
COLUMNS = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "topic string, partition int, timestamp timestamp"
)
# Rows are let go in portions of so much time: a micro-batch for each row would cost too much.
_PORTION_S = 1.0
_CATCH_UP_S = 10.0
_ROWS_PER_READ = 32_768


class SpoolSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> SpoolReader:  # noqa: N802
        rate = float(self.options.get("rate", "0"))
        return SpoolReader(Path(self.options["path"]), int(self.options["batchRows"]), rate)


class Portion(NamedTuple):
    lane: int
    start: int
    end: int


class Task(InputPartition):
    def __init__(self, portion: Portion) -> None:
        super().__init__(tuple(portion))
        self.portion = portion


class SpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, path: Path, batch_rows: int, rate_per_s: float) -> None:
        """`rate_per_s`: so many rows at most, of all lanes together; 0 for no limit."""
        self._path = path
        self._batch_rows = batch_rows
        self._rate_per_s = rate_per_s
        self._totals: Offsets | None = None
        self._looked_at_s: float | None = None
        self._due = 0.0  # rows that may go by now

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(dict.fromkeys(self._ends(), 0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._batch_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin, ends = from_json(start), self._ends()
        left = sum(ends.values()) - sum(begin.values())
        if left <= 0:
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else left
        if self._rate_per_s:
            most = self._wait_for_some(min(most, left))
        return to_json(admit(begin, ends, most))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin = from_json(start)
        return [
            Task(Portion(lane, begin.get((topic, lane), 0), rows))
            for (topic, lane), rows in sorted(from_json(end).items())
            if rows > begin.get((topic, lane), 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Task):  # else Spark's stand-in for "there is nothing to read"
            yield from read_portion(self._path, partition.portion)

    def _wait_for_some(self, left: int) -> int:
        """How many rows may go now; waits until they are worth a micro-batch.

        Who was held up may catch up on some of it, but not let everything go at once.
        """
        least = max(1, min(left, int(self._rate_per_s * _PORTION_S)))
        while True:
            now_s = time.monotonic()
            since_s = _PORTION_S if self._looked_at_s is None else now_s - self._looked_at_s
            self._looked_at_s = now_s
            most = max(float(least), self._rate_per_s * _CATCH_UP_S)
            self._due = min(self._due + since_s * self._rate_per_s, most)
            if self._due >= least:
                break
            time.sleep((least - self._due) / self._rate_per_s)
        taken = min(left, int(self._due))
        self._due -= taken
        return taken

    def _ends(self) -> Offsets:
        if self._totals is None:
            self._totals = {
                ("rows", int(folder.name.removeprefix(_LANE))): sum(
                    rows for _, rows in _files(folder)
                )
                for folder in sorted(self._path.glob(f"{_LANE}*"))
            }
        return self._totals


def read_portion(path: Path, portion: Portion) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sapwood.spark.decoding import HEADERS_TYPE

    wanted = pa.schema(
        {
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": HEADERS_TYPE,
            "topic": pa.string(),
            "partition": pa.int32(),
            "timestamp": pa.timestamp("us", "UTC"),
        }
    )
    skip, left = portion.start, portion.end - portion.start
    for file, rows in _files(path / f"{_LANE}{portion.lane}"):
        if skip >= rows:
            skip -= rows
            continue
        for batch in pq.ParquetFile(file).iter_batches(_ROWS_PER_READ, columns=wanted.names):
            piece = batch.slice(skip, left)
            skip = max(0, skip - batch.num_rows)
            left -= piece.num_rows
            if piece.num_rows:
                yield from pa.Table.from_batches([piece]).cast(wanted).to_batches()
            if not left:
                return


def _files(folder: Path) -> list[tuple[Path, int]]:
    """In their order, with their rows. Spark numbers the files of a task at the end of the name."""
    import pyarrow.parquet as pq

    # As long as the numbers have the same width names sort as numbers do; past that, they grow.
    found = sorted(folder.glob("*.parquet"), key=lambda path: (len(path.name), path.name))
    return [(path, pq.read_metadata(path).num_rows) for path in found]
