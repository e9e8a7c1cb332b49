"""Windows of time: what is in them, and how they are told."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sapwood.bulk import produce_arrow
from sapwood.cli.pipeline import standing
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.pipelines.rollup import WindowTable, as_records, from_records, rollup
from sapwood.spark.tables import FORMATS, WrongTable
from tests.spark.killed import finish
from tests.spark.rows import FIRST, aged
from tests.spark.test_tables import read

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
            WindowTable(tmp_path, "parquet", "windows").take(windows, number)
            WindowTable(tmp_path, "parquet", "windows").take(windows.where("false"), number)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", "")
    table = pq.read_table(tmp_path / "rollup")
    assert sorted(table.column("records").to_pylist()) == [0] * 4 + [1] * 4
    assert {path.name for path in tmp_path.glob("rollup/date=*")} == {
        "date=2026-11-18",
        "date=2026-11-19",
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_of_windows_belongs_to_one_rollup_and_another_takes_nothing_from_it(
    tmp_path: Path, kind: str
) -> None:
    start = datetime(2026, 11, 18, tzinfo=UTC)
    schema = pa.schema([("start", pa.timestamp("us", "UTC")), ("records", pa.int64())])

    def add(windows_query: str, query: str, number: int, records: int) -> None:
        rows = pa.table([[start], [records]], schema=schema)
        WindowTable(tmp_path, kind, windows_query).add(rows, query, number)

    add("windows", "table", 0, 0)
    # Another rollup, and this one without the state of either of its queries.
    for others in (("other windows", "other table"), ("other windows", "table"), ("windows", "")):
        with pytest.raises(WrongTable, match="belong to another run"):
            add(*others, 0, 100)
    add("windows", "table", 1, 1)
    assert sorted(read(tmp_path, kind, "rollup").column("records").to_pylist()) == [0, 1]


def test_rollups_that_share_a_topic_have_tables_of_their_own_windows(
    spark: SparkSession, sapwood: SharedCluster, tmp_path: Path
) -> None:
    topic, told = sapwood.topic("aged"), sapwood.topic("told")
    produce_arrow(topic, aged(0, 3), bootstrap=sapwood.bootstrap)
    asked = f"rollup --topics {topic} --topic {told} --late '0 seconds' -b {sapwood.bootstrap}"
    lengths = {"one": 60, "other": 30}
    folders = standing(
        tmp_path,
        [f"{asked} --name {name} --window '{length} seconds'" for name, length in lengths.items()],
    )

    def has_its_own(name: str) -> bool:
        folder = next(it for it in folders if it.name == name)
        finish(spark, replace(folder.run(folder.request()), once=True))
        starts = read(folder.path / "tables", "parquet", "rollup").column("start").to_pylist()
        length = lengths[name]
        last = 180 // length - 1  # it is told when younger records come
        return sorted(starts) == [FIRST + timedelta(seconds=it * length) for it in range(last)]

    assert has_its_own("one")
    assert has_its_own("other")
    assert has_its_own("one")
    # Anew, as if it had never been: what it told then is in the topic still.
    for part in ("checkpoints", "tables"):
        shutil.rmtree(folders[0].path / part)
    assert has_its_own("one")
