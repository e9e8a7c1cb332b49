"""P7: pipelines are a standing part: started after the cluster, restarted, and stopped with it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos import brief_spark
from sapwood.bulk import produce_arrow
from sapwood.node.lock import holder, is_locked
from sapwood.spark.pipelines.state import run_folder
from tests.cli.command import sapwood as command
from tests.helpers import eventually
from tests.spark.pipeline import DEADLINE_S
from tests.spark.rows import numbered

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for `up`; whatever a failed test left running in it is stopped."""
    path = tmp_path / "sapwood"
    yield path
    command("down", "--dir", str(path))


def test_p7_up_keeps_a_pipeline_running_through_a_crash_and_down_stops_it(directory: Path) -> None:
    at = ("--dir", str(directory))
    table = directory / "table"
    words = ("latest", "--topic", "orders", "--table", str(table), "--text", *brief_spark.OPTIONS)
    spec = " ".join(f'"{word}"' for word in words)
    command("up", "--nodes", "1", "--port", "0", "--detach", "--pipeline", spec, *at)
    # `up` returned with the cluster; Spark takes longer than that.
    folder = run_folder(directory, "latest")
    (node,) = status(directory)["nodes"]
    bootstrap = node["addresses"]["kafka"]
    command("topic", "create", "orders", bootstrap=bootstrap)
    produce_arrow("orders", numbered(0, 1000), bootstrap=bootstrap)

    # What it is killed in the middle of, the rows P2 and P3 tell; here it is to come again.
    pid = eventually(lambda: holder(folder.lock), DEADLINE_S)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    def rows() -> int:
        found = folder.status()
        return sum(query.rows for query in found.queries) if found else 0

    eventually(lambda: rows() == 1000, DEADLINE_S)
    assert holder(folder.lock) not in (None, pid)
    (run,) = status(directory)["pipelines"]
    assert (run["name"], run["state"]) == ("latest", "running")
    command("down", *at)
    assert not is_locked(folder.lock)
    assert (found := folder.status()) is not None
    assert found.state == "stopped"
    assert found.started_ms <= time.time_ns() // 1_000_000


def status(directory: Path) -> dict[str, Any]:
    out, _ = command("status", "--dir", str(directory), "-o", "json")
    found: dict[str, Any] = json.loads(out)
    return found


def test_p7_a_pipeline_that_cannot_be_is_refused_before_anything_is_started(
    directory: Path,
) -> None:
    _, err = command("up", "--dir", str(directory), "--pipeline", "nothing", fails=2)
    assert "no pipeline" in err
    _, err = command("up", "--dir", str(directory), "--pipeline", "latest", fails=2)
    assert "Missing option '--topic'" in err
    assert not directory.exists()


def test_p7_make_run_has_them_and_who_lacks_java_gets_a_cluster_and_the_reason(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = subprocess.run(["make", "-n", "run"], capture_output=True, text=True, check=True)
    assert "--pipeline archive --pipeline rollup" in asked.stdout
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    both = ("--pipeline", "archive", "--pipeline", "rollup")
    out, _ = command(
        "up", "--nodes", "1", "--port", "0", "--detach", *both, "--dir", str(directory)
    )
    assert "Pipelines on Spark, which starts now: archive, rollup" in out
    log = directory / "supervisor.log"
    for name in ("archive", "rollup"):
        words = f"pipeline {name} ended with status 1: Spark needs Java 17 or newer; "
        eventually(lambda words=words: words in log.read_text(), DEADLINE_S)  # type: ignore[misc]
    runs = {run["name"]: run for run in status(directory)["pipelines"]}
    assert runs.keys() == {"archive", "rollup"}
