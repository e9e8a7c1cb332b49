"""P3e: `latest`, the newest value of each key as a table, whatever is killed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sapwood.bulk import produce_arrow
from tests.spark.killed import ROUNDS, Killed
from tests.spark.rows import KEYS

pytestmark = pytest.mark.timeout(900)


def state(table: Path) -> dict[str, str]:
    found = pq.read_table(table / "current", columns=["key", "value"])
    keys, values = found["key"].to_pylist(), found["value"].to_pylist()
    assert len(keys) == len(set(keys))
    return dict(zip(keys, values, strict=True))


def test_p3e_a_table_has_the_newest_value_of_each_key_after_a_killed_driver_and_deletions(
    killed: Killed, spark: SparkSession
) -> None:
    table = killed.directory / "latest"
    assert state(table)
    gone = pa.table({"key": [b"0", b"7"], "value": pa.array([None, None], pa.binary())})
    produce_arrow("users", gone, bootstrap=killed.bootstrap)
    killed.finish(spark, "latest", batch_rows=100_000)
    newest = str(2 * ROUNDS - 1)
    assert state(table) == {str(key): newest for key in range(KEYS) if key not in (0, 7)}
