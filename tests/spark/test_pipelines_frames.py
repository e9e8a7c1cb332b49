"""The functions on DataFrames that pipelines are made of."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sapwood.spark.pipelines.latest import LatestTable, latest
from sapwood.spark.pipelines.replay import in_order, read_table, replay
from sapwood.spark.pipelines.words import PipelineFailed
from sapwood.spark.tables import FORMATS
from tests.spark.test_tables import commit, numbered

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


def test_a_deleted_key_stays_so_though_older_records_come_later_from_another_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = LatestTable(tmp_path / "table")

    def merge(*row: object) -> dict[str, str]:
        table.merge(spark.createDataFrame([row], COLUMNS))
        current = tmp_path / "table" / "current"
        rows = spark.read.parquet(str(current)).collect()
        assert pq.read_table(current).num_rows == len(rows)
        return {row.key: row.value for row in rows}

    assert merge("other", "x", "t", 0, 4, 9) == {"other": "x"}
    assert merge("gone", None, "t", 1, 0, 20) == {"other": "x"}
    assert merge("other", "y", "t", 0, 5, 10) == {"other": "y"}
    assert merge("gone", "before partitions were added", "t", 0, 6, 11) == {"other": "y"}
    assert merge("gone", "and again", "t", 0, 7, 12) == {"other": "y"}
    assert merge("gone", "back", "t", 1, 1, 21) == {"gone": "back", "other": "y"}


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_some_dates_are_taken_from_a_table_of_any_format(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    commit(tmp_path, kind, 0, numbered(0, 9, days=3, value=[b"x"] * 9))
    commit(tmp_path, kind, 1, numbered(9, 18, days=3, value=[b"x"] * 9, more=["y"] * 9))
    table = in_order(read_table(spark, tmp_path / "orders", kind))
    chosen = replay(table, topic="t", where="date >= '2026-11-19'", value="offset")
    wanted = {number for number in range(18) if number % 3}
    assert {int(row.value) for row in chosen.collect()} == wanted


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
