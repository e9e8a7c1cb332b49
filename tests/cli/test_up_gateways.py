"""`up` starts a gateway beside each node, keeps it running, and starts nodes for it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sapwood.node.layout import free_port
from tests.cli.command import COMMAND
from tests.cli.test_up import answers, sapwood, status
from tests.helpers import eventually


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("up") / "sapwood"
    flags = ("--nodes", "2", "--edges", "1", "--port", "0", "--detach", "--dir", str(path))
    result = sapwood("up", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    (path / "greeting").write_text(result.stdout)
    yield path
    names = ("rest", "lines", "edge_rest", "edge_lines")
    addresses = [it for name in names for it in places(path, name).values()]
    assert sapwood("down", "--dir", str(path)).returncode == 0
    assert not any(map(answers, addresses))


def places(directory: Path, name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / "cluster.json").read_text())[name]
    return found


def gateway_of(directory: Path, node: int) -> psutil.Process:
    flag = f"--bootstrap {places(directory, 'nodes')[str(node)]}"

    def found() -> list[psutil.Process]:
        running = psutil.process_iter(["cmdline"])
        lines = {it: " ".join(it.info["cmdline"] or ()) for it in running}
        return [it for it, line in lines.items() if "sapwood.gateway" in line and flag in line]

    return eventually(found)[0]


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_the_greeting_says_how_to_use_them_and_they_answer(directory: Path) -> None:
    greeting = (directory / "greeting").read_text()
    url = re.search(r"curl (http://\S+)/status", greeting)
    line = re.search(r"nc (\S+) (\d+)", greeting)
    assert url is not None
    assert line is not None
    for node, address in places(directory, "rest").items():
        found = httpx.get(f"http://{address}/status", timeout=30).json()
        assert (found["status"], found["node"]) == ("broker running", int(node))
    assert httpx.get(url[1], timeout=30).status_code == 200
    with socket.create_connection((line[1], int(line[2])), 30) as connection:
        assert connection.recv(100) == b"[RESULT] OK\n"


def test_an_edge_has_a_gateway_that_speaks_through_it(directory: Path) -> None:
    url = f"http://{places(directory, 'edge_rest')['0']}"
    found = httpx.get(f"{url}/status", timeout=30).json()
    assert (found["status"], found["role"]) == ("broker running", "edge")
    assert found["node"] >= 10_000
    assert "sapwood_tree_depth 1.0" in httpx.get(f"{url}/metrics", timeout=30).text
    raft = httpx.get(f"{url}/raft_status", timeout=30).json()
    assert raft["silent"] == []
    assert {it["node"] for group in raft["groups"] for it in group["replicas"]} == {0, 1}
    host, _, port = places(directory, "edge_lines")["0"].rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        assert connection.recv(100) == b"[RESULT] OK\n"


def test_a_node_of_its_own_has_a_gateway_if_it_is_told_where_and_both_go_together(
    tmp_path: Path,
) -> None:
    rest, lines = (f"127.0.0.1:{free_port()}" for _ in range(2))
    flags = ["--bootstrap", "--dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    flags += ["--rest", rest, "--lines", lines]
    node = subprocess.Popen([*COMMAND, "node", *flags], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(rest) and answers(lines), 60)
        found = httpx.get(f"http://{rest}/status", timeout=30).json()
        assert (found["node"], found["role"]) == (0, "primary manager")
    finally:
        node.kill()
        node.wait()
    eventually(lambda: not answers(rest) and not answers(lines), 60)


def test_status_says_where_nodes_edges_and_their_gateways_are(directory: Path) -> None:
    found = status(directory)
    cores = [it for it in found["nodes"] if it["kind"] == "core"]
    (edge,) = [it for it in found["nodes"] if it["kind"] == "edge"]
    for node, prefix, key in [*((it, "", str(it["id"])) for it in cores), (edge, "edge_", "0")]:
        assert node["addresses"].keys() == {"kafka", "http", "lines"}
        assert node["addresses"]["http"] == places(directory, f"{prefix}rest")[key]
        assert node["addresses"]["lines"] == places(directory, f"{prefix}lines")[key]
    assert found["http"] == [it["addresses"]["http"] for it in cores]
    about = httpx.get(f"http://{edge['addresses']['http']}/status", timeout=30).json()
    assert about["node"] == edge["id"]
    (row,) = [
        line
        for line in sapwood("status", "--dir", str(directory)).stdout.splitlines()
        if line.startswith(f"{edge['id']} ")
    ]
    for shown in ("edge", "running", str(edge["pid"]), *edge["addresses"].values()):
        assert shown in row


def test_a_cluster_is_not_healthy_while_an_edge_ends_whenever_it_is_started(
    directory: Path,
) -> None:
    def edge() -> dict[str, Any]:
        found: list[dict[str, Any]] = status(directory)["nodes"]
        return next(it for it in found if it["kind"] == "edge")

    before = edge()
    # With what makes its directory one of a node, it refuses to start.
    identity = directory / "edge-0" / "identity.json"
    shutil.copy(directory / "node-0" / "identity.json", identity)
    os.kill(before["pid"], signal.SIGKILL)
    said = "edge 0 ended with status 1"
    eventually(lambda: said in (directory / "supervisor.log").read_text(), 60)
    down = status(directory)
    assert not down["healthy"]
    assert (edge()["id"], edge()["state"]) == (before["id"], "starting")
    identity.unlink()
    eventually(lambda: status(directory)["healthy"], 60)


def test_a_gateway_that_is_killed_is_back_and_its_port_was_never_closed(directory: Path) -> None:
    address = places(directory, "rest")["1"]
    httpx.get(f"http://{address}/livez", timeout=30)
    before = gateway_of(directory, 1)
    before.kill()
    eventually(lambda: has_ended(before))
    found = httpx.get(f"http://{address}/livez", timeout=30)
    assert found.json() == {"status": "ok"}


def test_another_broker_is_started_on_request(directory: Path) -> None:
    address = places(directory, "rest")["0"]
    response = httpx.post(f"http://{address}/brokers", timeout=60)
    assert response.status_code == 201, response.text
    new = response.json()
    assert answers(new["address"])
    brokers = httpx.get(f"http://{address}/brokers", timeout=30).json()["brokers"]
    assert sorted(it["broker"] for it in brokers) == [0, 1, new["broker"]]
    beside = places(directory, "rest")[str(new["broker"])]
    found = httpx.get(f"http://{beside}/status", timeout=30).json()
    assert found["node"] == new["broker"]


def test_what_is_no_pipeline_is_not_started(directory: Path) -> None:
    address = places(directory, "rest")["0"]
    asked = {"pipeline": "no-such-pipeline"}
    response = httpx.post(f"http://{address}/pipelines", json=asked, timeout=60)
    assert response.status_code == 400, response.text
    assert "no-such-pipeline" in response.json()["detail"]
    assert httpx.get(f"http://{address}/pipelines", timeout=30).json() == {"pipelines": []}


def test_a_port_that_is_taken_is_named_with_the_flag_for_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ("--nodes", "1", "--port", "0", "--rest-port", port, "--detach")
        result = sapwood("up", *flags, "--dir", str(tmp_path / "sapwood"))
    assert result.returncode == 1
    assert f":{port}" in result.stderr
    assert "--rest-port" in result.stderr
