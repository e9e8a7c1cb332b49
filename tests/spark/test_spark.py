"""Real Spark against real clusters: `format("sapwood")` as users write it."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import sapwood
from sapwood.bulk import BulkClient, produce_arrow
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.decoding import HEADERS_TYPE
from tests.helpers import eventually

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(600)

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
NUMBER = "cast(cast(value as string) as bigint)"
# Each number from 0 on is there once if and only if these three agree.
EXACT = [f"count({NUMBER})", f"count(distinct {NUMBER})", f"max({NUMBER}) + 1"]


def numbered(start: int, stop: int) -> pa.Table:
    values = [b"%d" % number for number in range(start, stop)]
    return pa.table({"key": values, "value": values})


def exact(frame: DataFrame) -> tuple[int, ...]:
    (row,) = frame.selectExpr(*EXACT).collect()
    return tuple(row)


def test_a_topic_is_a_dataframe_without_any_set_up(
    spark: SparkSession, sapwood_cluster: SharedCluster
) -> None:
    topic = sapwood_cluster.topic("frame", 3)
    bootstrap = sapwood_cluster.bootstrap
    produce_arrow(topic, numbered(0, 30_000), bootstrap=bootstrap, batch_bytes=4096)
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}]], HEADERS_TYPE)
    last = pa.table({"key": [None], "value": [b"30000"], "headers": headers})
    produce_arrow(topic, last, bootstrap=bootstrap)
    reader = spark.read.format("sapwood").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("subscribe", topic).option("minPartitions", 5).load()
    assert frame.columns == COLUMNS
    assert exact(frame) == (30_001, 30_001, 30_001)
    (row,) = (
        reader.option("subscribe", topic)
        .option("includeHeaders", True)
        .load()
        .where("headers is not null")
        .collect()
    )
    assert (row.key, row.value, row.topic, row.timestampType) == (None, b"30000", topic, 0)
    assert [tuple(each) for each in row.headers] == [("a", b"1"), ("b", None)]
    with pytest.raises(PySparkException, match="there is no topic nowhere at"):
        reader.option("subscribe", "nowhere").load().count()


def test_a_stream_reads_each_record_once_through_a_killed_leader_and_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    with sapwood.Cluster(nodes=3, topics={"events": 2}) as cluster:

        def run(most: int) -> None:
            query = (
                spark.readStream.format("sapwood")
                .option("kafka.bootstrap.servers", cluster.bootstrap)
                .option("subscribe", "events")
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", most)
                .load()
                .writeStream.format("parquet")
                .option("path", table)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            eventually(lambda: query.recentProgress or not query.isActive, deadline_s=120)
            if len(cluster.running) == 3:
                cluster.kill(cluster.leader("events", 0))
            query.awaitTermination(120)
            assert not query.isActive

        with BulkClient(cluster.bootstrap) as client:
            client.produce_arrow("events", numbered(0, 20_000))
            run(5_000)
            assert exact(spark.read.parquet(table)) == (20_000, 20_000, 20_000)
            # While the query is down, the topic grows in both ways.
            client.client.create_partitions({"events": 3})
            client.produce_arrow("events", numbered(20_000, 30_000))
            run(100_000)
    assert exact(spark.read.parquet(table)) == (30_000, 30_000, 30_000)
