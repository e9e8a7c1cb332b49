"""Windows of time: what is in them, and how they are told."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sapwood.spark.pipelines.rollup import WindowTable, as_records, from_records, rollup

pytestmark = pytest.mark.timeout(600)


def test_a_window_has_what_came_in_its_time(spark: SparkSession) -> None:
    now = datetime.now(UTC)
    began = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    rows: list[tuple[str, datetime, bytes | None, bytes | None]] = [
        (topic, began + timedelta(seconds=second), b"k%d" % (second % 7), b"12345")
        for topic, seconds in (("t", range(120)), ("u", range(0, 60, 2)))
        for second in seconds
    ]
    rows.append(("u", began, None, None))
    frame = spark.createDataFrame(
        rows, "topic string, timestamp timestamp, key binary, value binary"
    )
    windows = rollup(frame, "1 minute").orderBy("topic", "start")
    told = windows.selectExpr(
        *("topic", "unix_timestamp(start) as since", "unix_timestamp(stop) - since as seconds"),
        *("records", "records_per_s", "bytes", "keys"),
        *("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_max_ms"),
    ).collect()
    start = int(began.timestamp())
    assert [tuple(row)[:7] for row in told] == [
        ("t", start, 60, 60, 1.0, 420, 7),
        ("t", start + 60, 60, 60, 1.0, 420, 7),
        ("u", start, 60, 31, 31 / 60, 210, 7),
    ]
    for row in told:
        shortest = (now - began).total_seconds() * 1000 - 120_000
        latencies = tuple(row)[7:]
        assert shortest <= latencies[0]
        assert list(latencies) == sorted(latencies)
    again = from_records(as_records(windows)).orderBy("topic", "start")
    assert again.columns == windows.columns
    counts = ["topic", "start", "stop", "records", "bytes", "keys"]
    assert again.select(*counts).collect() == windows.select(*counts).collect()


def test_a_batch_of_windows_that_comes_again_is_added_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    start = datetime(2026, 11, 18, 23, 59, tzinfo=UTC)
    rows = [
        (topic, start + timedelta(minutes=minute), minute)
        for topic in ("t", "u")
        for minute in (0, 1)
    ]
    windows = spark.createDataFrame(rows, "topic string, start timestamp, records bigint")
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "query")
    try:
        for number in (0, 0, 1):
            WindowTable(tmp_path, "parquet").take(windows, number)
            WindowTable(tmp_path, "parquet").take(windows.where("false"), number)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", "")
    table = pq.read_table(tmp_path / "rollup")
    assert sorted(table.column("records").to_pylist()) == [0] * 4 + [1] * 4
    assert {path.name for path in tmp_path.glob("rollup/date=*")} == {
        "date=2026-11-18",
        "date=2026-11-19",
    }
