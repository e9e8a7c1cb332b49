"""A node's process from its start to its end, as whoever runs it sees it."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sapwood.node import discovery, identity, ready, secret
from sapwood.node.lock import is_locked
from sapwood.server import Limits
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.frames import encode_request_frame
from tests.helpers import eventually


@contextmanager
def node(*flags: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "sapwood.node", "--announce", "--bootstrap", *flags],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def announced(process: subprocess.Popen[str]) -> ready.Ready:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    found: ready.Ready = json.loads(line)
    return found


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def ask(client: socket.socket, api: Api, version: int, message: Struct) -> None:
    client.sendall(b"".join(encode_request_frame(api, version, 1, None, message)))
    length = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
    assert len(client.recv(length, socket.MSG_WAITALL)) == length


def ask_without_listening(client: socket.socket) -> None:
    """Ask until the node takes no more, since its answers aren't read."""
    question = Struct(
        resources=[Struct(resource_type=4, resource_name="0", configuration_keys=None)],
        include_synonyms=True,
    )
    frame = b"".join(encode_request_frame(Api.DESCRIBE_CONFIGS, 1, 1, None, question))
    client.settimeout(1)
    with pytest.raises(TimeoutError):
        client.sendall(frame * 1_000_000)


CREATE = Struct(
    topics=[
        Struct(name="topic", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    ],
    timeout=10_000,
    validate_only=False,
)
WAITING_FETCH = Struct(
    replica_id=-1,
    max_wait=3_600_000,
    min_bytes=1,
    max_bytes=1000,
    isolation_level=0,
    topics=[
        Struct(
            topic="topic",
            partitions=[Struct(partition=0, fetch_offset=0, partition_max_bytes=1000)],
        )
    ],
)


def failed_start(*flags: str, founding: bool = True) -> str:
    """What a node that can't start says, which is one line."""
    result = subprocess.run(
        [sys.executable, "-m", "sapwood.node", *(["--bootstrap"] if founding else []), *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_a_node_says_where_it_listens_and_takes_that_back_when_it_stops(tmp_path: Path) -> None:
    with node("--dir", str(tmp_path), "--id", "3", "--port", "0") as process:
        told = announced(process)
        assert told["pid"] == process.pid
        assert told["node_id"] == 3
        assert ready.read(tmp_path) == told
        connect(told["listeners"]["kafka"]).close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert ready.read(tmp_path) is None
        assert not is_locked(tmp_path / ready.LOCK_NAME)


def test_a_node_knows_its_cluster_and_is_found_by_others_while_it_runs(tmp_path: Path) -> None:
    with node("--dir", str(tmp_path), "--id", "3", "--port", "0") as process:
        told = announced(process)
        known = identity.read(tmp_path)
        assert known is not None
        (cluster,) = eventually(discovery.running_clusters)
        (entry,) = cluster.entries
        assert (entry.cluster_id, entry.node_id) == (known.cluster_id, 3)
        assert entry.address == told["listeners"]["kafka"]
        assert secret.read(Path(entry.secret_file))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not list(discovery.runtime_directory().iterdir())


def test_a_node_that_is_not_to_be_found_leaves_no_trace(tmp_path: Path) -> None:
    flags = ["--dir", str(tmp_path), "--port", "0", "--set", "discoverable=false"]
    with node(*flags) as process:
        announced(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not discovery.runtime_directory().exists()


def test_a_node_runs_though_it_cannot_be_found(tmp_path: Path, runtime_directory: Path) -> None:
    runtime_directory.write_text("not a directory")
    with node("--dir", str(tmp_path / "data"), "--port", "0") as process:
        announced(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert "won't find this one" in process.stderr.read()


def test_a_node_that_is_told_nothing_and_finds_nobody_says_what_to_tell_it(tmp_path: Path) -> None:
    line = failed_start("--dir", str(tmp_path / "data"), "--port", "0", founding=False)
    assert "--bootstrap" in line
    assert "--join HOST:PORT" in line


def test_ctrl_c_stops_a_node_cleanly_too(tmp_path: Path) -> None:
    with node("--dir", str(tmp_path), "--port", "0") as process:
        announced(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_fetch_that_waits_for_an_hour_is_answered_when_the_node_stops(tmp_path: Path) -> None:
    flags = ["--dir", str(tmp_path), "--port", "0", "--set", "stop_grace_s=3600"]
    with node(*flags) as process, connect(announced(process)["listeners"]["kafka"]) as client:
        ask(client, Api.CREATE_TOPICS, 4, CREATE)
        client.sendall(b"".join(encode_request_frame(Api.FETCH, 4, 2, None, WAITING_FETCH)))
        process.send_signal(signal.SIGTERM)
        assert client.recv(4, socket.MSG_WAITALL)
        assert process.wait(30) == 0


def test_a_second_signal_ends_a_node_that_still_waits_for_its_clients(tmp_path: Path) -> None:
    flags = ["--dir", str(tmp_path), "--port", "0", "--set", "stop_grace_s=3600"]
    with node(*flags) as process, connect(announced(process)["listeners"]["kafka"]) as client:
        ask_without_listening(client)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: ready.read(tmp_path) is None)

        def has_ended_when_told_again() -> bool:
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        eventually(has_ended_when_told_again)
        assert process.wait() == 1


def test_a_node_starts_again_where_one_was_killed(tmp_path: Path) -> None:
    address = "127.0.0.1:0"
    for _ in range(3):
        with node("--dir", str(tmp_path), "--listen", address) as process:
            address = announced(process)["listeners"]["kafka"]
            connect(address).close()
            process.kill()
            process.wait()
        assert ready.read(tmp_path) is not None


def test_a_node_ends_with_its_parent_if_it_was_told_to(tmp_path: Path) -> None:
    flags = ["--dir", str(tmp_path), "--port", "0", "--with-parent"]
    with node(*flags, stdin=subprocess.PIPE) as process:
        announced(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def test_several_listeners_are_told_by_name(tmp_path: Path) -> None:
    flags = ["--listen", "inside=127.0.0.1:0", "--listen", "outside=127.0.0.1:0"]
    with node("--dir", str(tmp_path), *flags) as process:
        listeners = announced(process)["listeners"]
        assert set(listeners) == {"inside", "outside"}
        for address in listeners.values():
            connect(address).close()


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = failed_start("--dir", str(tmp_path), "--port", str(port))
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


def test_a_directory_that_another_node_uses_is_one_clear_line(tmp_path: Path) -> None:
    with node("--dir", str(tmp_path), "--port", "0") as process:
        announced(process)
        line = failed_start("--dir", str(tmp_path), "--port", "0")
        assert f"{tmp_path} is in use by process {process.pid}" in line
        assert ready.read(tmp_path) is not None


def test_a_directory_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert str(file / "node") in failed_start("--dir", str(file / "node"), "--port", "0")


def test_a_damaged_journal_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"this is no journal" * 100)
    assert str(tmp_path / "journal") in failed_start("--dir", str(tmp_path), "--port", "0")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--set", "colour=green"], "colour"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["--listen", "nowhere"], "nowhere"),
    ],
)
def test_a_bad_setting_is_one_clear_line(tmp_path: Path, flags: list[str], complaint: str) -> None:
    assert complaint in failed_start("--dir", str(tmp_path), *flags)


def test_json_logs_are_json_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    with node("--dir", str(tmp_path), "--port", "0", "--log-format", "json") as process:
        announced(process)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        assert process.stderr is not None
        messages = [json.loads(line)["message"] for line in process.stderr]
    assert any("is ready" in message for message in messages)
    assert messages[-1] == "stopped"


def test_connections_leave_a_node_half_of_its_descriptors() -> None:
    from sapwood.node.shell import fitting

    assert fitting(Limits(max_connections=100), 1024).max_connections == 100
    assert fitting(Limits(max_connections=8192), 1024).max_connections == 512
    assert fitting(Limits(max_connections=8192), None).max_connections == 8192


def test_a_wildcard_address_is_told_as_the_hosts_name() -> None:
    from sapwood.node.shell import reachable

    told = reachable({"inside": ("127.0.0.1", 1), "outside": ("0.0.0.0", 2)})
    assert told == {"inside": ("127.0.0.1", 1), "outside": (socket.gethostname(), 2)}


def test_importing_the_package_or_a_node_process_loads_nothing_heavy() -> None:
    heavy = {"asyncio", "click", "kio", "msgspec", "rich", "uvloop"}
    for module in ("sapwood", "sapwood.node.process", "sapwood.node.local", "sapwood.cluster"):
        code = f"import sys, {module}; print(*sys.modules)"
        output = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert heavy.isdisjoint(output.stdout.split()), module
