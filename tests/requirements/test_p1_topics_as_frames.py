"""P1: topics are DataFrames, in batches and streams: `format("sapwood")` as users write it."""

from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import sapwood
from sapwood.bulk import BulkClient, produce_arrow
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.decoding import HEADERS_TYPE
from tests.helpers import eventually
from tests.spark.rows import numbered

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(600)

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
HEADERS = "array<struct<key:string,value:binary>>"
NUMBER = "cast(cast(value as string) as bigint)"
# Each number from 0 on is there once if and only if these three agree.
EXACT = [f"count({NUMBER})", f"count(distinct {NUMBER})", f"max({NUMBER}) + 1"]


def exact(frame: DataFrame) -> tuple[int, ...]:
    (row,) = frame.selectExpr(*EXACT).collect()
    return tuple(row)


def test_p1_a_topic_is_a_dataframe_without_any_set_up(
    spark: SparkSession, sapwood_cluster: SharedCluster
) -> None:
    topic = sapwood_cluster.topic("frame", 3)
    bootstrap = sapwood_cluster.bootstrap
    produce_arrow(topic, numbered(0, 30_000), bootstrap=bootstrap, batch_bytes=4096)
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}]], HEADERS_TYPE)
    last = pa.table({"key": [None], "value": [b"30000"], "headers": headers})
    produce_arrow(topic, last, bootstrap=bootstrap)
    reader = spark.read.format("sapwood").option("kafka.bootstrap.servers", bootstrap)
    whole = reader.option("subscribe", topic).load()
    assert whole.columns == COLUMNS
    assert whole.rdd.getNumPartitions() == 3
    frame = reader.option("subscribe", topic).option("minPartitions", 5).load()
    assert frame.rdd.getNumPartitions() >= 5
    assert exact(frame) == (30_001, 30_001, 30_001)
    assert spark.sparkContext.getConf().get("spark.jars", "") == ""
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


def test_p1_a_stream_reads_each_record_once_through_a_killed_leader_and_a_restart(
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


def test_p1_rows_become_messages_where_every_client_would_put_them(
    spark: SparkSession, sapwood_cluster: SharedCluster
) -> None:
    ours, theirs = sapwood_cluster.topic("ours", 5), sapwood_cluster.topic("theirs", 5)
    bootstrap = sapwood_cluster.bootstrap
    header = "array(struct('h' as key, cast('v' as binary) as value)) as headers"
    keys = [f"key {number}" for number in range(1000)]
    frame = spark.range(1000).selectExpr(
        "concat('key ', id) as key", "cast(id as string) as value", header, f"'{ours}' as topic"
    )
    last = spark.sql(
        f"select cast(null as string) as key, 'last' as value, cast(null as {HEADERS}) as headers, "
        f"'{ours}' as topic, 4 as partition"
    )
    rows = frame.selectExpr("*", "cast(null as int) as partition").union(last)
    writer = rows.write.format("sapwood").option("kafka.bootstrap.servers", bootstrap)
    writer.mode("append").save()
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, b"", key=key.encode())
    assert producer.flush(60) == 0
    with BulkClient(bootstrap) as client:
        for partition in range(5):
            found = client.fetch_arrow(ours, partition).to_pylist()
            expected = client.fetch_arrow(theirs, partition)["key"].to_pylist()
            keyed = [row for row in found if row["key"] is not None]
            assert sorted(row["key"] for row in keyed) == sorted(expected)
            assert all(row["headers"][0]["key"] == "h" for row in keyed)
            rest = [row["value"] for row in found if row["key"] is None]
            assert rest == ([b"last"] if partition == 4 else [])


def test_p1_what_cant_be_written_ends_in_one_clear_line_and_leaves_nothing(
    spark: SparkSession, sapwood_cluster: SharedCluster
) -> None:
    topic = sapwood_cluster.topic("refused")
    bootstrap = sapwood_cluster.bootstrap

    def save(frame: DataFrame, **options: str) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, **options}
        frame.write.format("sapwood").options(**given).mode("append").save()

    good = spark.sql("select 'x' as value")
    with pytest.raises(PySparkException, match="there is no column 'value' among other"):
        save(spark.sql("select 'x' as other"), topic=topic)
    with pytest.raises(PySparkException, match="nothing says which topic to write to"):
        save(good)
    with pytest.raises(PySparkException, match="there is no topic nowhere at"):
        save(good, topic="nowhere", **{"kafka.max.block.ms": "500"})
    half = spark.sql("select if(id = 999, raise_error('no'), 'x') as value from range(1000)")
    with pytest.raises(PySparkException, match="no"):
        save(half, topic=topic)
    save(good, topic=topic)
    with BulkClient(bootstrap) as client:
        # As soon as what the failed job has left is aborted, too.
        found = eventually(lambda: client.fetch_arrow(topic, 0)["value"].to_pylist(), 60)
        assert found == [b"x"]
