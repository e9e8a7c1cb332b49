"""P3b: `rollup`, windows of time, each told once and as if nobody had been killed."""

from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sapwood.bulk import fetch_arrow
from sapwood.spark.pipelines.rollup import TOPIC, from_records
from tests.spark.killed import MINUTES, Killed
from tests.spark.rows import FIRST, PER_MINUTE

pytestmark = pytest.mark.timeout(900)

COLUMNS = ["topic", "start", "stop", "records", "records_per_s", "bytes", "keys"]
# The last one is told when younger records come.
WINDOWS = [
    {
        "topic": "aged",
        "start": FIRST + timedelta(minutes=minute),
        "stop": FIRST + timedelta(minutes=minute + 1),
        "records": PER_MINUTE,
        "records_per_s": PER_MINUTE / 60,
        "bytes": PER_MINUTE * 6,
        "keys": 7,
    }
    for minute in range(int(2 * MINUTES) - 1)
]


def test_p3b_each_window_is_told_once_in_topic_and_table_though_the_driver_is_killed_within_one(
    killed: Killed, spark: SparkSession
) -> None:
    killed.finish(spark, "rollup")
    table = pq.read_table(killed.directory / "rollup").sort_by("start")
    assert table.select(COLUMNS).to_pylist() == WINDOWS
    for row in table.to_pylist():
        assert 0 < row["latency_p50_ms"] <= row["latency_p95_ms"] <= row["latency_p99_ms"]
    told = spark.createDataFrame(fetch_arrow(TOPIC, 0, bootstrap=killed.bootstrap))
    again = from_records(told).orderBy("start").select(*COLUMNS).toArrow()
    assert again.to_pylist() == WINDOWS
