"""What can be wrong with an archive's input: one line says it, and nothing is half done."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from chaos.disk import SmallDisk
from sapwood.bulk import BulkClient
from sapwood.cli.pipeline import standing
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.explaining import explain
from sapwood.spark.pipelines.state import Request
from tests.spark.killed import finish
from tests.spark.pipeline import refused
from tests.spark.test_tables import read

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk", size_mib=16)
    yield disk
    disk.close(keep=False)


def test_an_archive_that_fails_says_why_in_one_line_adds_nothing_and_goes_on_when_that_is_mended(
    spark: SparkSession, sapwood: SharedCluster, tmp_path: Path, disk: SmallDisk
) -> None:
    topic, tables = sapwood.topic("input"), tmp_path / "disk" / "tables"
    asked = f"archive --topics {topic} --tables {tables} --values json -b {sapwood.bootstrap}"
    (folder,) = standing(tmp_path, [asked])

    def run(**options: object) -> None:
        found = folder.run(folder.request())
        finish(spark, replace(found, once=True, options={**found.options, **options}))

    def failure(**options: object) -> str:
        with pytest.raises(Exception) as raised:
            run(**options)
        line = explain(raised.value)
        assert "\n" not in line
        return line

    def rows() -> list[int]:
        return sorted(read(tables, "parquet", topic)["id"].to_pylist())

    with BulkClient(sapwood.bootstrap) as client:

        def put(*values: bytes) -> None:
            client.produce_arrow(topic, pa.table({"value": list(values)}))

        put(b'{"id": 0}', b"what?")
        assert f"topic {topic}, partition 0, offset 1: not JSON" in failure(stop_at_bad=True)
        assert not (tables / topic).exists()
        run()
        assert rows() == [0]
        put(b'{"id": 1}', b'{"id": "x"}')
        wrong = failure(stop_at_bad=True)
        assert "offset 3: id is a string, where it was a long" in wrong
        assert rows() == [0]
        disk.fill()
        assert f"no room is left for the table at {tables}" in failure()
        assert rows() == [0]
        disk.free()
        run()
        assert rows() == [0, 1]
        assert read(tables, "parquet", f"{topic}.dead").num_rows == 2
        put(b'{"id": 2}', b'{"id": 3}')
        client.client.delete_records({(topic, 0): 5})
        lost = failure()
        assert f"topic {topic}, partition 0: offsets 4 to 4 are no longer there" in lost
        assert rows() == [0, 1]


def test_a_run_that_fails_in_spark_ends_in_one_line_and_a_status_that_tells(
    sapwood: SharedCluster, tmp_path: Path
) -> None:
    topic, tables = sapwood.topic("input"), tmp_path / "tables"
    with BulkClient(sapwood.bootstrap) as client:
        client.produce_arrow(topic, pa.table({"value": [b'{"id": 0}', b"what?"]}))
    arguments = ("archive", "--topics", topic, "--tables", str(tables), "--values", "json")
    line = refused(*arguments, "--stop-at-bad", directory=tmp_path, bootstrap=sapwood.bootstrap)
    assert f"topic {topic}, partition 0, offset 1: not JSON" in line
    assert not (tables / topic).exists()


def test_an_archive_of_all_that_matches_goes_on_without_a_topic_and_without_records_if_it_may(
    spark: SparkSession, sapwood: SharedCluster, tmp_path: Path
) -> None:
    kept, deleted = sapwood.topic("gone-kept"), sapwood.topic("gone-deleted")
    asked = f"archive --pattern 'gone-.*' --tables {tmp_path / 'tables'} -b {sapwood.bootstrap}"
    (folder,) = standing(tmp_path, [asked])
    strict = folder.request()
    (folder,) = standing(tmp_path, [f"{asked} --allow-data-loss"])
    lenient = folder.request()

    def run(request: Request) -> None:
        finish(spark, replace(folder.run(request), once=True))

    def offsets(topic: str) -> list[int]:
        return sorted(read(tmp_path / "tables", "parquet", topic)["offset"].to_pylist())

    with BulkClient(sapwood.bootstrap) as client:

        def put(topic: str) -> None:
            client.produce_arrow(topic, pa.table({"value": [b"x"] * 5}))

        put(kept)
        put(deleted)
        run(strict)
        client.client.delete_topics([deleted])
        put(kept)
        run(strict)
        assert (offsets(kept), offsets(deleted)) == (list(range(10)), list(range(5)))
        put(kept)
        client.client.delete_records({(kept, 0): 12})
        with pytest.raises(Exception) as raised:
            run(strict)
        assert "offsets 10 to 11 are no longer there" in explain(raised.value)
        assert "--allow-data-loss" in explain(raised.value)
        run(lenient)
        assert offsets(kept) == [*range(10), 12, 13, 14]
