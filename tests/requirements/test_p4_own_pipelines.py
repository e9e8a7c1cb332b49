"""P4: users' own pipelines in SQL or Python, as single files or declarative pipelines."""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sapwood.bulk import fetch_arrow, produce_arrow
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.explaining import explain
from sapwood.spark.pipelines.own import own_pipeline
from sapwood.spark.pipelines.state import Request, run_folder
from tests.cli.command import sapwood as command
from tests.spark.killed import patiently
from tests.spark.pipeline import ran
from tests.spark.rows import numbered, numbers_of
from tests.spark.standalone import connect_server

pytestmark = pytest.mark.timeout(900)

SQL = """
-- Streams are read from their beginning; the cluster is the one that the run was given.
CREATE TEMPORARY VIEW orders USING sapwood OPTIONS (subscribe '{orders}');
CREATE TEMPORARY VIEW even USING sapwood OPTIONS (topic '{even}');

INSERT INTO even
SELECT key, value FROM orders WHERE cast(cast(value AS string) AS bigint) % 2 = 0;
INSERT INTO parquet.`{folder}/odd`
SELECT cast(value AS string) AS value FROM orders
WHERE cast(cast(value AS string) AS bigint) % 2 = 1;
"""
PYTHON = """
rows = spark.readStream.format("sapwood").option("subscribe", {orders!r})
rows = rows.option("startingOffsets", "earliest").load()
query = (
    rows.writeStream.queryName("copy").format("parquet")
    .option("path", {path!r}).trigger(**run.trigger).start()
)
print("started", run.name)
"""


def test_p4_a_sql_file_and_a_python_file_run_as_they_are_and_go_on_where_they_were(
    spark: SparkSession,
    sapwood_cluster: SharedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = sapwood_cluster.bootstrap
    orders, even = sapwood_cluster.topic("orders", 2), sapwood_cluster.topic("even")
    sql, python = tmp_path / "split.sql", tmp_path / "copy.py"
    sql.write_text(SQL.format(folder=tmp_path, orders=orders, even=even))
    python.write_text(PYTHON.format(path=str(tmp_path / "copy"), orders=orders))
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))  # which such a file may change

    def run_here(path: Path) -> None:
        """As the run's own process does it, on a Spark that is there already."""
        folder = run_folder(tmp_path, path.stem)
        request = Request(name=path.stem, pipeline=str(path), bootstrap=bootstrap)
        patiently(lambda: own_pipeline(path)(spark.newSession(), folder.run(request)))

    for start in (0, 1000):
        produce_arrow(orders, numbered(start, start + 1000), bootstrap=bootstrap)
        run_here(sql)
    assert numbers_of(fetch_arrow(even, 0, bootstrap=bootstrap)) == list(range(0, 2000, 2))
    odd = sorted(int(it) for it in pq.read_table(tmp_path / "odd")["value"].to_pylist())
    assert odd == list(range(1, 2000, 2))

    ended = ran(str(python), directory=tmp_path, bootstrap=bootstrap)
    assert ended.out == "started copy\n"
    assert numbers_of(pq.read_table(tmp_path / "copy")) == list(range(2000))
    python.write_text("raise LookupError('no such thing')")
    with pytest.raises(LookupError) as raised:
        run_here(python)
    assert explain(raised.value) == "LookupError: no such thing"


def test_p4_a_folder_that_init_makes_runs_as_a_declarative_pipeline_of_python_and_sql(
    sapwood_cluster: SharedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = sapwood_cluster.bootstrap
    monkeypatch.chdir(tmp_path)
    out, _ = command("pipeline", "init", "shop")
    assert "sapwood pipeline run shop" in out
    command("produce", "greetings", bootstrap=bootstrap, stdin=b"hello\nhello\ngood day\n")
    ran("shop", directory=tmp_path, bootstrap=bootstrap)
    tables = run_folder(tmp_path, "shop").path / "spark-warehouse"
    texts = pq.read_table(tables / "greetings")["text"].to_pylist()
    assert sorted(texts) == ["good day", "hello", "hello"]
    counts = pq.read_table(tables / "greeting_counts").to_pylist()
    assert {row["text"]: row["times"] for row in counts} == {"hello": 2, "good day": 1}


def test_p4_such_a_folder_runs_on_a_spark_connect_server_that_is_there(
    sapwood_cluster: SharedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap, topic = sapwood_cluster.bootstrap, sapwood_cluster.topic("greetings")
    monkeypatch.chdir(tmp_path)
    command("pipeline", "init", "shop")
    table = tmp_path / "shop" / "transformations" / "greetings.py"
    table.write_text(table.read_text().replace('"greetings")', f'"{topic}")'))
    command("produce", topic, bootstrap=bootstrap, stdin=b"hello\nhello\n")
    with connect_server(tmp_path / "server") as remote:
        ran("shop", "--remote", remote, directory=tmp_path, bootstrap=bootstrap)
    tables = tmp_path / "server" / "warehouse"
    assert pq.read_table(tables / "greetings")["text"].to_pylist() == ["hello", "hello"]
    (count,) = pq.read_table(tables / "greeting_counts").to_pylist()
    assert (count["text"], count["times"]) == ("hello", 2)
