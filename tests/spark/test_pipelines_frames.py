"""The functions on DataFrames that pipelines are made of."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sapwood.spark.pipelines.latest import LatestTable, latest
from sapwood.spark.pipelines.replay import replay
from sapwood.spark.pipelines.words import PipelineFailed

pytestmark = pytest.mark.timeout(600)

COLUMNS = "key string, value string, topic string, partition int, offset long, timestamp long"


def test_newest_means_the_highest_offset_and_over_partitions_the_youngest(
    spark: SparkSession,
) -> None:
    rows = [
        ("a", "old but stamped late", "t", 0, 1, 99),
        ("a", "newest", "t", 0, 2, 5),
        ("b", "before partitions were added", "t", 0, 7, 10),
        ("b", "after", "t", 1, 0, 11),
        ("c", None, "t", 0, 8, 12),
        (None, "without a key", "t", 0, 9, 13),
    ]
    found = latest(spark.createDataFrame(rows, COLUMNS)).select("key", "value").collect()
    assert {row.key: row.value for row in found} == {"a": "newest", "b": "after", "c": None}


def test_a_merge_is_a_new_version_and_the_same_merge_again_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = LatestTable(tmp_path / "table")

    def merge(*rows: tuple[str, str | None, int]) -> dict[str, str]:
        full = [(key, value, "t", 0, offset, offset) for key, value, offset in rows]
        table.merge(spark.createDataFrame(full, COLUMNS))
        found = spark.read.parquet(str(tmp_path / "table" / "current")).collect()
        assert len({row.key for row in found}) == len(found)
        return {row.key: row.value for row in found}

    assert merge(*((f"k{number}", "0", number) for number in range(40))).keys() == {
        f"k{number}" for number in range(40)
    }
    change = (("k1", "1", 100), ("k2", None, 101), ("new", "1", 102))
    once = merge(*change)
    assert once["k1"] == once["new"] == "1"
    assert "k2" not in once
    assert len(once) == 40
    assert merge(*change) == once
    assert merge(("k1", "older", 5)) == once
    versions = sorted(path.name for path in (tmp_path / "table" / "versions").iterdir())
    assert versions[-1] == (tmp_path / "table" / "current").readlink().name


def test_rows_become_messages_as_they_are_or_as_json_shifted_and_chosen(
    spark: SparkSession,
) -> None:
    rows = [("a", 1, datetime(2026, 1, 1, tzinfo=UTC)), ("b", 2, datetime(2026, 1, 2, tzinfo=UTC))]
    frame = spark.createDataFrame(rows, "name string, amount int, timestamp timestamp")
    (message,) = replay(frame, topic="t", where="amount > 1", key="name", shift="3 days").collect()
    assert (message.key, message.topic, message.partition) == (b"b", "t", None)
    assert message.value == b'{"name":"b","amount":2}'
    shifted = spark.sql("select timestamp '2026-01-05 00:00:00'").collect()[0][0]
    assert message.timestamp == shifted
    (first, _) = replay(frame, topic="t", value="amount", shift="now").collect()
    assert first.value == b"1"
    assert first.timestamp.year >= 2026
    with pytest.raises(PipelineFailed, match="give --topic"):
        replay(frame)
    with pytest.raises(PipelineFailed, match="give --value"):
        replay(frame.select("timestamp"), topic="t")
