"""Sapwood: one node as `sapwood up` runs it, several as `sapwood node` does."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.peers import Peer, PeerFailed
from bench.peers.confluent import ConfluentLoad
from sapwood.node import secret

COMMAND = str(Path(sys.executable).with_name("sapwood"))


class Sapwood(Peer):
    title = "Sapwood"
    is_clustered = True

    def __init__(self) -> None:
        super().__init__()
        self._directory: Path | None = None
        """Of what `up` has started."""

    def missing(self) -> str | None:
        if not Path(COMMAND).exists():
            return "Sapwood itself in this virtual environment (pip install -e .)"
        return None

    def start(self, directory: Path, ports: Sequence[int], *, synced: bool) -> float:
        started = time.monotonic()
        if len(ports) > 1:
            self._start_nodes(directory, ports)
        else:
            self._directory = directory
            gateway = ("--rest-port", "0", "--lines-port", "0")
            self._run("up", "--nodes", "1", "--port", str(ports[0]), *gateway, "--detach")
        return started

    def roots(self) -> list[int]:
        if self._directory is None:
            return super().roots()
        status: dict[str, Any] = json.loads(self._run("status", "-o", "json"))
        nodes = [int(node["pid"]) for node in status["nodes"]]
        # The supervisor counts too: it is what keeps the node running.
        parents = [psutil.Process(pid).ppid() for pid in nodes]
        return sorted({pid for pid in [*nodes, *parents] if pid > 1})

    def stop(self) -> None:
        super().stop()
        if self._directory is not None:
            self._run("down")
            self._directory = None

    def _start_nodes(self, directory: Path, ports: Sequence[int]) -> None:
        secret.ensure(directory / secret.FILE_NAME)
        for node, port in enumerate(ports):
            command = [COMMAND, "node", "--id", str(node), "--dir", str(directory / f"node-{node}")]
            command += ["--listen", f"127.0.0.1:{port}", "--set", "discoverable=false"]
            command += ["--secret-file", str(directory / secret.FILE_NAME)]
            command += ["--join", f"127.0.0.1:{ports[0]}"] if node else ["--bootstrap"]
            self.children.start(command, directory / f"node-{node}.log")

    def _run(self, verb: str, *flags: str) -> str:
        command = [COMMAND, verb, "--dir", str(self._directory), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerFailed(f"`sapwood {verb}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout


class SapwoodLoad(ConfluentLoad):
    def topic_configs(self) -> dict[str, str]:
        return {**super().topic_configs(), "flush": "sync" if self.synced else "os"}


PEER = Sapwood
LOAD = SapwoodLoad
