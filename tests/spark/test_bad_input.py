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
from tests.spark.killed import finish
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
