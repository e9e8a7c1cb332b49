"""`up`, `down`, `status` and `node` as commands, with real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from sapwood.node.local import edge_states
from tests.helpers import eventually


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from sapwood.cli import main; main()", *arguments]


def sapwood(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def status(directory: Path) -> dict[str, Any]:
    result = sapwood("status", "--dir", str(directory), "-o", "json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == (0 if found["healthy"] else 1)
    if found["healthy"]:
        assert {node["state"] for node in found["nodes"]} == {"running"}
    return found


def who_runs(directory: Path) -> tuple[str, list[tuple[int, int, dict[str, str]]]]:
    """What a restart or a second cluster would change, unlike the number of partitions."""
    found = status(directory)
    nodes = [(node["id"], node["pid"], node["addresses"]) for node in found["nodes"]]
    return found["cluster_id"], nodes


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for `up`; whatever a failed test left running in it is stopped."""
    path = tmp_path / "sapwood"
    yield path
    sapwood("down", "--dir", str(path))


@contextmanager
def up_in_the_foreground(directory: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command("up", "--nodes", "1", "--port", "0", "--dir", str(directory)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "Sapwood is up" in process.stdout.readline()
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_up_detached_returns_when_ready_and_down_when_gone(directory: Path) -> None:
    result = sapwood("up", "--nodes", "1", "--port", "0", "--detach", "--dir", str(directory))
    assert (result.returncode, result.stderr) == (0, "")

    found = status(directory)
    (node,) = found["nodes"]
    assert found["dir"] == str(directory)
    assert found["bootstrap"] == node["addresses"]["kafka"]
    assert (node["id"], node["kind"], node["state"]) == (0, "core", "running")
    assert found["bootstrap"] in result.stdout
    assert answers(found["bootstrap"])

    assert sapwood("down", "--dir", str(directory)).returncode == 0
    assert not answers(found["bootstrap"])
    assert not psutil.pid_exists(node["pid"])
    (stopped,) = status(directory)["nodes"]
    assert (stopped["state"], stopped["pid"], stopped["addresses"]) == ("stopped", None, {})


def test_the_directory_may_come_from_the_environment(directory: Path) -> None:
    environment = {"SAPWOOD_DIR": str(directory)}
    assert sapwood("up", "--nodes", "1", "--port", "0", "--detach", **environment).returncode == 0
    table = sapwood("status", **environment)
    assert table.returncode == 0
    assert "running" in table.stdout
    assert sapwood("down", **environment).returncode == 0


def test_a_second_up_finds_the_first(directory: Path) -> None:
    arguments = ["up", "--nodes", "1", "--port", "0", "--dir", str(directory)]
    assert sapwood(*arguments, "--detach").returncode == 0
    before = who_runs(directory)
    again = sapwood(*arguments, "--detach")
    assert again.returncode == 0
    assert "already up" in again.stdout
    in_the_foreground = sapwood(*arguments)
    assert in_the_foreground.returncode == 1
    assert "sapwood down" in in_the_foreground.stderr
    assert who_runs(directory) == before


def test_a_node_that_is_killed_is_started_again(directory: Path) -> None:
    sapwood("up", "--nodes", "1", "--port", "0", "--detach", "--dir", str(directory))
    (killed,) = status(directory)["nodes"]
    os.kill(killed["pid"], signal.SIGKILL)

    def another_runs() -> bool:
        (node,) = status(directory)["nodes"]
        same_place: bool = node["addresses"] == killed["addresses"]
        return same_place and node["pid"] != killed["pid"]

    eventually(another_runs, 60)
    assert "ended with status -9" in (directory / "supervisor.log").read_text()
    assert sapwood("down", "--dir", str(directory)).returncode == 0


def test_a_node_ends_with_a_supervisor_that_is_killed(directory: Path) -> None:
    sapwood("up", "--nodes", "1", "--port", "0", "--detach", "--dir", str(directory))
    pid = status(directory)["nodes"][0]["pid"]
    os.kill(int((directory / "supervisor.lock").read_text()), signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(pid), 60)
    assert status(directory)["nodes"][0]["state"] == "stopped"


@pytest.mark.parametrize("detach", [["--detach"], []])
def test_a_port_that_is_taken_is_one_clear_line(directory: Path, detach: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = ["--nodes", "1", "--port", port, "--rest-port", "0", "--lines-port", "0"]
        result = sapwood("up", *flags, "--dir", str(directory), *detach)
    assert result.returncode == 1
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert f"127.0.0.1:{port}" in last
    assert status(directory)["nodes"][0]["state"] == "stopped"


def test_a_directory_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for detach in ([], ["--detach"]):
        result = sapwood("up", "--port", "0", "--dir", str(tmp_path / "file" / "x"), *detach)
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")


def test_ctrl_c_stops_an_attached_up_and_its_node(directory: Path) -> None:
    with up_in_the_foreground(directory) as process:
        pid = status(directory)["nodes"][0]["pid"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not psutil.pid_exists(pid)
        assert process.stderr is not None
        assert "is ready" in process.stderr.read()
    assert "is ready" in (directory / "node-0" / "node.log").read_text()


def test_down_stops_an_attached_up_too(directory: Path) -> None:
    with up_in_the_foreground(directory) as process:
        assert sapwood("down", "--dir", str(directory)).returncode == 0
        assert process.wait(60) == 0


def test_where_nothing_runs_down_is_content_and_status_is_not(directory: Path) -> None:
    assert sapwood("down", "--dir", str(directory)).returncode == 0
    result = sapwood("status", "--dir", str(directory))
    assert result.returncode == 1
    assert "sapwood up" in result.stderr
    found = status(directory)
    assert (found["bootstrap"], found["dir"], found["nodes"]) == ("", str(directory), [])


def test_a_node_on_its_own_is_seen_by_status_and_stopped_by_down(directory: Path) -> None:
    with subprocess.Popen(
        command(
            "node", "--bootstrap", "--id", "7", "--dir", str(directory), "--listen", "127.0.0.1:0"
        ),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        eventually((directory / "ready.json").exists)
        (node,) = status(directory)["nodes"]
        assert (node["id"], node["pid"], node["state"]) == (7, process.pid, "running")
        assert sapwood("down", "--dir", str(directory)).returncode == 0
        assert process.wait(30) == 0


def test_a_node_with_a_bad_setting_says_so_in_one_line(directory: Path) -> None:
    result = sapwood("node", "--dir", str(directory), "--set", "colour=green")
    assert (result.returncode, result.stderr) == (1, "error: unknown setting 'colour'\n")


def test_a_disk_that_is_full_costs_lines_of_the_logs_and_nothing_else(directory: Path) -> None:
    logs = [directory / "supervisor.log", directory / "node-0" / "node.log"]
    for log in logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.symlink_to("/dev/full")
    sapwood("up", "--nodes", "1", "--port", "0", "--detach", "--dir", str(directory))
    before = status(directory)["nodes"][0]["pid"]
    os.kill(before, signal.SIGKILL)  # of which the supervisor has something to say
    eventually(lambda: status(directory)["nodes"][0]["pid"] not in (before, None), 30)
    eventually(lambda: status(directory)["healthy"], 30)
    (node,) = status(directory)["nodes"]
    for log in logs:
        log.unlink()
    host, _, port = node["addresses"]["kafka"].rpartition(":")

    def noted() -> bool:
        with socket.create_connection((host, int(port)), 5) as peer:
            peer.sendall(b"GET / HTTP/1.0\r\n\r\n")  # the node warns of what is no request
        return logs[1].exists() and "WARNING" in logs[1].read_text()

    eventually(noted)
    assert "could not be written here" in logs[1].read_text()
    assert status(directory)["nodes"][0]["pid"] == node["pid"]


def test_edges_are_kept_running_beside_the_nodes(directory: Path) -> None:
    at = ["--dir", str(directory)]
    asked = ("--nodes", "1", "--edges", "1", "--outbox", "--port", "0", "--detach")
    result = sapwood("up", *asked, *at)
    assert (result.returncode, result.stderr) == (0, "")
    (line,) = [it for it in result.stdout.splitlines() if it.startswith("Edges: ")]
    edge = line.removeprefix("Edges: ")
    put = ("produce", "greetings", "-b", edge)
    subprocess.run(command(*put), input="hello\n", text=True, timeout=60, check=True)
    (state,) = edge_states(directory)
    assert (state.kind, state.state) == ("edge", "running")
    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)
    eventually(lambda: edge_states(directory)[0].pid not in (None, state.pid), 30)
    eventually(lambda: edge_states(directory)[0].state == "running", 30)
    got = sapwood("consume", "greetings", "-o", "beginning", "-e", "-b", edge)
    assert "hello" in got.stdout
    (outbox,) = json.loads(sapwood("status", "--json", *at).stdout)["outboxes"]
    assert (outbox["cut_off"], outbox["records"]) == (False, 0)
    assert f"Outbox of edge {outbox['edge']}: connected" in sapwood("status", *at).stdout
    assert sapwood("down", *at).returncode == 0
    assert not answers(edge)
    (stopped,) = edge_states(directory)
    assert (stopped.id, stopped.kind, stopped.state) == (outbox["edge"], "edge", "stopped")
    fewer = ("--nodes", "1", "--edges", "0", "--detach")
    assert sapwood("up", *fewer, *at).returncode == 0
    assert [node["kind"] for node in status(directory)["nodes"]] == ["core"]
    assert sapwood("down", *at).returncode == 0
