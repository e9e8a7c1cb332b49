"""P3f: `timeline`, topics in one order of time, each record once, whatever is killed."""

from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sapwood.bulk import fetch_arrow, produce_arrow
from sapwood.client import Client
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.pipelines.timeline import ORDER, timeline
from tests.spark.killed import Killed
from tests.spark.rows import numbered, numbers_of

pytestmark = pytest.mark.timeout(900)

Row = tuple[str, int, int, str | None]


def in_table(killed: Killed) -> list[Row]:
    table = pq.read_table(killed.directory / "timeline" / "timeline")
    ordered = table.sort_by([(name, "ascending") for name in ORDER])
    columns = (ordered[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
    return list(zip(*columns, strict=True))


def in_topic(killed: Killed) -> list[Row]:
    rows: list[dict[str, Any]] = fetch_arrow("merged", 0, bootstrap=killed.bootstrap).to_pylist()
    found = []
    for row in rows:
        origin = {each["key"]: each["value"].decode() for each in row["headers"]}
        place = origin["sapwood-topic"], origin["sapwood-partition"], origin["sapwood-offset"]
        found.append((place[0], int(place[1]), int(place[2]), text(row["value"])))
    return found


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def test_p3f_table_and_topic_have_the_order_of_every_merged_reader_after_a_killed_driver(
    killed: Killed, spark: SparkSession
) -> None:
    assert in_table(killed), "it had begun when it was killed"
    killed.finish(spark, "timeline")
    with Client(killed.bootstrap) as client:
        reader = client.merged("numbers", "users", "idle", start="earliest", stop="now")
        expected = [(it.topic, it.partition, it.offset, text(it.value)) for it in reader]
    assert {topic for topic, *_ in expected} == {"numbers", "users"}
    assert in_table(killed) == expected
    assert in_topic(killed) == expected


def test_p3f_a_frame_with_append_times_is_ordered_and_a_job_that_is_repeated_is_written_once(
    spark: SparkSession, sapwood_cluster: SharedCluster
) -> None:
    bootstrap = sapwood_cluster.bootstrap
    first, second = sapwood_cluster.topic("first", 2), sapwood_cluster.topic("second")
    result = sapwood_cluster.topic("result")
    for start in range(0, 60, 10):  # each of them is acknowledged before the next is sent
        topic = first if start % 20 else second
        produce_arrow(topic, numbered(start, start + 10), bootstrap=bootstrap)
    at = {"kafka.bootstrap.servers": bootstrap}
    reader = spark.read.format("sapwood").options(**at, appendTimes="true")
    ordered = timeline(reader.option("subscribe", f"{first},{second}").load())
    sent = [int(row.value) // 10 for row in ordered.select("value").collect()]
    assert sent == [number // 10 for number in range(60)]

    for version in (7, 7, 6, 8):
        writer = ordered.select("value").write.format("sapwood").options(**at, topic=result)
        writer = writer.option("txnAppId", result).option("txnVersion", version)
        writer.mode("append").save()
    written = fetch_arrow(result, 0, bootstrap=bootstrap)
    assert numbers_of(written) == sorted([*range(60)] * 2)
