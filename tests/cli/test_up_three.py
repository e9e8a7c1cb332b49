"""`up` with several nodes: started together, kept running, grown, drained, found."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sapwood.client import KafkaClient
from sapwood.client.offsets import EARLIEST
from tests.cli.test_up import answers, sapwood, status
from tests.helpers import eventually


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "sapwood"
    monkeypatch.setenv("SAPWOOD_DIR", str(path))
    yield path
    sapwood("down")


def up(*flags: str) -> None:
    result = sapwood("up", "--port", "0", "--detach", *flags)
    assert result.returncode == 0, result.stderr


def told(*flags: str) -> dict[str, Any]:
    result = sapwood("status", "--json", "--exit-when-healthy", "--timeout", "60", *flags)
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_three_nodes_come_up_together_and_go_down_together(directory: Path) -> None:
    up()
    first = told()
    assert [node["id"] for node in first["nodes"]] == [0, 1, 2]
    assert len(set(first["bootstrap"].split(","))) == 3
    assert first["controller"] in (0, 1, 2)
    assert sapwood("down").returncode == 0
    for node in first["nodes"]:
        assert not psutil.pid_exists(node["pid"])
        assert not answers(node["addresses"]["kafka"])

    up()  # as many as there were, where they were
    again = told()
    assert again["cluster_id"] == first["cluster_id"]
    assert again["bootstrap"] == first["bootstrap"]
    fewer = sapwood("down") and sapwood("up", "--nodes", "1", "--detach")
    assert fewer.returncode == 1
    assert "cluster of 3 nodes" in fewer.stderr


def test_a_node_that_is_killed_or_wiped_comes_back_by_itself(directory: Path) -> None:
    up("--nodes", "3")
    victim = told()["nodes"][1]
    os.kill(victim["pid"], signal.SIGSTOP)
    for path in (directory / "node-1").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    os.kill(victim["pid"], signal.SIGKILL)
    eventually(lambda: status(directory)["nodes"][1]["pid"] not in (None, victim["pid"]), 60)
    back = told()["nodes"][1]
    assert back["addresses"] == victim["addresses"]
    assert (directory / "node-1" / "identity.json").exists()


def test_a_cluster_of_one_grows_to_three_and_replicates_what_it_had(directory: Path) -> None:
    up("--nodes", "1")
    with KafkaClient(told()["bootstrap"]) as client:
        client.send("orders", b"an apple").get()
    sapwood("down")
    up("--nodes", "3")
    found = told()
    assert [node["replicas"] > 0 for node in found["nodes"]] == [True] * 3
    with KafkaClient(found["bootstrap"]) as client:
        for partition in client.metadata(["orders"]).topics["orders"].partitions.values():
            assert sorted(partition.in_sync) == [0, 1, 2]
        values = [it.value for it in client.consume({("orders", 0): EARLIEST}, stop_at="end")]
    assert values == [b"an apple"]


def test_a_node_is_drained_and_removed_and_its_process_ends(directory: Path) -> None:
    up("--nodes", "4")
    pid = told()["nodes"][3]["pid"]
    drained = sapwood("node", "drain", "3", "--timeout", "60")
    assert drained.returncode == 0, drained.stderr
    assert told()["nodes"][3]["replicas"] == 0
    removed = sapwood("node", "remove", "3")
    assert removed.returncode == 0, removed.stderr
    eventually(lambda: not psutil.pid_exists(pid), 60)
    eventually(lambda: len(status(directory)["nodes"]) == 3, 60)
    assert told()["healthy"]


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""

    def is_free(port: int) -> bool:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return tried.connect_ex(("127.0.0.1", port)) != 0

    # Below the range from which the system gives ports to whoever asks for any.
    starts = range(20_000 + os.getpid() % 1000, 32_000, count)
    return next(it for it in starts if all(map(is_free, range(it, it + count))))


def test_ports_may_change_between_two_starts(directory: Path) -> None:
    up("--nodes", "3")
    before = told()
    sapwood("down")
    result = sapwood("up", "--detach", "--port", str(free_ports(3)))
    assert result.returncode == 0, result.stderr
    after = told()
    assert after["cluster_id"] == before["cluster_id"]
    assert after["bootstrap"] != before["bootstrap"]
