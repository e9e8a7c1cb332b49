"""A spool is read in its order, from anywhere, and no faster than wanted."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from sapwood.spark.decoding import HEADERS_TYPE
from sapwood.spark.spooled import SpoolReader, Task

LANES = {0: [3, 4], 5: [2]}  # rows of each lane's files


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    for lane, files in LANES.items():
        folder = tmp_path / f"sapwood_lane={lane}"
        folder.mkdir()
        first = 0
        for number, rows in enumerate(files):
            values = [b"%d-%d" % (lane, first + row) for row in range(rows)]
            table = pa.table(
                {
                    "key": pa.array([None] * rows, pa.binary()),
                    "value": values,
                    "headers": pa.array([None] * rows, HEADERS_TYPE),
                    "topic": ["t"] * rows,
                    "partition": pa.array([lane] * rows, pa.int32()),
                    "timestamp": pa.array(
                        [datetime(2026, 1, 1, tzinfo=UTC)] * rows, pa.timestamp("us", "UTC")
                    ),
                    "sapwood_place": list(range(rows)),
                }
            )
            pq.write_table(table, folder / f"part-0.c{number:03d}.parquet", row_group_size=2)
            first += rows
    return tmp_path


def drain(reader: SpoolReader, batch: int) -> list[dict[int, list[str]]]:
    """What each micro-batch brings, by lane."""
    found = []
    position = reader.initialOffset()
    while (end := reader.latestOffset(position, ReadMaxRows(batch))) != position:
        rows: dict[int, list[str]] = {}
        for task in reader.partitions(position, end):
            assert isinstance(task, Task)
            for piece in reader.read(task):
                values = [value.decode() for value in piece.column("value").to_pylist()]
                rows.setdefault(task.portion.lane, []).extend(values)
        found.append(rows)
        position = end
    return found


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
@pytest.mark.parametrize("rate", [0.0, 1e6])
def test_every_row_comes_once_and_in_the_order_of_its_lane(
    spool: Path, batch: int, rate: float
) -> None:
    batches = drain(SpoolReader(spool, 100, rate), batch)
    for lane, files in LANES.items():
        told = [value for rows in batches for value in rows.get(lane, [])]
        assert told == [f"{lane}-{number}" for number in range(sum(files))]


def test_what_there_is_is_known_beforehand(spool: Path) -> None:
    reader = SpoolReader(spool, 100, 0)
    assert reader.reportLatestOffset() == {"rows": {"0": 7, "5": 2}}
