"""Sapwood: `sapwood up --nodes 1 --detach`, as anybody starts it."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from bench.peers import PeerFailed
from bench.peers.confluent import ConfluentLoad

COMMAND = str(Path(sys.executable).with_name("sapwood"))


class Sapwood:
    title = "Sapwood"

    def __init__(self) -> None:
        self._directory: Path | None = None

    def missing(self) -> str | None:
        if not Path(COMMAND).exists():
            return "Sapwood itself in this virtual environment (pip install -e .)"
        return None

    def prepare(self) -> None:
        pass

    def start(self, directory: Path, port: int, *, synced: bool) -> float:
        self._directory = directory
        started = time.monotonic()
        self._run("up", "--nodes", "1", "--port", str(port), "--detach")
        return started

    def roots(self) -> list[int]:
        status: dict[str, Any] = json.loads(self._run("status", "-o", "json"))
        nodes = [int(node["pid"]) for node in status["nodes"]]
        # The supervisor counts too: it is what keeps the node running.
        parents = [psutil.Process(pid).ppid() for pid in nodes]
        return sorted({pid for pid in [*nodes, *parents] if pid > 1})

    def stop(self) -> None:
        if self._directory is not None:
            self._run("down")
            self._directory = None

    def _run(self, verb: str, *flags: str) -> str:
        command = [COMMAND, verb, "--dir", str(self._directory), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerFailed(f"`sapwood {verb}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout


class SapwoodLoad(ConfluentLoad):
    def topic_configs(self) -> dict[str, str]:
        return {"flush": "sync" if self.synced else "os"}


PEER = Sapwood
LOAD = SapwoodLoad
