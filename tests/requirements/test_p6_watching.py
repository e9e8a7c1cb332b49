"""P6: people watch pipelines: on the terminal, from anywhere, and one line says what is wrong."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from sapwood.bulk import produce_arrow
from sapwood.pytest_plugin import SharedCluster
from tests.cli.command import sapwood as command
from tests.helpers import eventually
from tests.spark.pipeline import DEADLINE_S, refused, running
from tests.spark.test_tables import read

pytestmark = pytest.mark.timeout(900)


def test_p6_an_archive_is_seen_while_it_runs_here_and_elsewhere_and_is_stopped(
    tmp_path: Path, sapwood_cluster: SharedCluster
) -> None:
    bootstrap, topic = sapwood_cluster.bootstrap, sapwood_cluster.topic("orders", 2)
    tables = tmp_path / "tables"
    at = ("--dir", str(tmp_path))
    arguments = ("archive", "--topics", topic, "--tables", str(tables), "--values", "json")

    def seen(*where: str) -> list[dict[str, object]]:
        out, _ = command("pipeline", "status", "archive", "-o", "json", *where)
        (run,) = json.loads(out)
        return [query for query in run["queries"] if query["rows"] and run["state"] == "running"]

    values = [b'{"id": %d}' % number for number in range(3000)]
    values[7] = b"what?"
    produce_arrow(topic, pa.table({"value": values}), bootstrap=bootstrap)
    with running(
        *arguments, "--continuous", "--every=0.1", directory=tmp_path, bootstrap=bootstrap
    ) as continuous:
        continuous.reach("archive", 3000)
        for where in (at, ("-b", bootstrap)):
            (query,) = eventually(lambda where=where: seen(*where), DEADLINE_S)  # type: ignore[misc]
            assert (query["query"], query["rows"], query["lag"]) == ("archive", 3000, 0)
        again = refused(*arguments, directory=tmp_path, bootstrap=bootstrap)
        assert "archive is already running" in again
        table, _ = command("pipeline", "status", *at)
        assert "running" in table
        out, _ = command("pipeline", "stop", "archive", *at)
        assert out == "Stopped: archive\n"
        assert continuous.end().status == 0
    out, _ = command("pipeline", "status", "-o", "json", *at)
    (run,) = json.loads(out)
    assert (run["state"], run["pid"]) == ("stopped", None)
    # What was seen was done.
    found = sorted(read(tables, "parquet", topic)["id"].to_pylist())
    assert found == [number for number in range(3000) if number != 7]
    (dead,) = read(tables, "parquet", f"{topic}.dead").select(["value", "reason"]).to_pylist()
    assert dead["value"] == b"what?"
    assert dead["reason"].startswith("not JSON")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--topic", "nowhere", "there is no topic nowhere"),
        ("--bootstrap", "127.0.0.1:1", "127.0.0.1:1"),
    ],
)
def test_p6_what_is_wrong_with_the_cluster_is_said_in_one_line_before_spark_is_started(
    tmp_path: Path, bootstrap: str, option: str, value: str, words: str
) -> None:
    arguments = ["latest", "--topic", "orders", "--table", str(tmp_path / "table")]
    line = refused(*arguments, option, value, directory=tmp_path, bootstrap=bootstrap)
    assert words in line
    assert list(tmp_path.iterdir()) == []


def test_p6_wrong_usage_is_refused_before_spark_is_started(tmp_path: Path) -> None:
    for arguments, words in (
        (("run", "nothing"), "no pipeline and no .sql or .py file or folder 'nothing'"),
        (("run", "latest"), "Missing option '--topic'"),
        (("run", "latest", "--topic", "t", "--table", "x", "--name", "a/b"), "can't be the name"),
        (("run", "latest", "--topic", "t", "--table", "x", "--conf", "y"), "KEY=VALUE"),
        (("run", "latest", "--topic", "t", "--table", "x", "--remote", "sc://h"), "--master"),
        (("stop",), "or --all"),
    ):
        _, err = command("pipeline", *arguments, fails=2)
        assert words in err
    _, err = command("pipeline", "stop", "nobody", "--dir", str(tmp_path), fails=1)
    assert "was ever run" in err
