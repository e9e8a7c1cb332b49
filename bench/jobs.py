"""Measurements of one running broker, each in a process of its own."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.peers import LoadFailed, Peer

RATE_PER_S = 1_000
# Of single messages while leaders die: as fine as the gaps that are looked for.
FAILOVER_RATE_PER_S = 200
JOB_TIMEOUT_S = 300.0
FAULTS_TIMEOUT_S = 1200.0


class Jobs:
    def __init__(self, peer: str, ports: Sequence[int], synced: bool) -> None:
        self.roots: list[int] = []
        self._common = {"peer": peer, "ports": ports, "synced": synced}
        self._number = 0

    def first(self, start: Callable[[], float]) -> float:
        """Seconds from the start command to the first acknowledged message."""
        with _load({**self._common, "job": "first"}) as process:
            if process.stdout is None or process.stdin is None or not process.stdout.readline():
                raise LoadFailed(_error_of(process))
            process.stdin.write("\n")
            process.stdin.flush()
            started = start()
            return float(_result_of(process)["acknowledged"]) - started

    def throughput(
        self, size: int, partitions: int, count: int, limit_s: float, *, keyed: bool
    ) -> dict[str, Any]:
        return self._run("throughput", size, partitions, count=count, limit_s=limit_s, keyed=keyed)

    def latency(self, size: int, partitions: int, seconds: int) -> dict[str, Any]:
        return self._run("latency", size, partitions, rate=RATE_PER_S, count=RATE_PER_S * seconds)

    def failover(self, peer: Peer, kills: int) -> dict[str, Any]:
        what = self._what("failover", 100, 1, rate=FAILOVER_RATE_PER_S, kills=kills)
        return self._run_with_faults(peer, what)

    def many(self, peer: Peer, partitions: int, idle_s: int, settle_s: int) -> dict[str, Any]:
        what = self._what("many", 100, partitions, idle_s=idle_s, settle_s=settle_s)
        return self._run_with_faults(peer, what)

    def _what(self, job: str, size: int, partitions: int, **more: object) -> dict[str, Any]:
        self._number += 1
        return {
            **self._common,
            "roots": self.roots,
            "job": job,
            "topic": f"bench-{self._number}",
            "size": size,
            "partitions": partitions,
            **more,
        }

    def _run(self, job: str, size: int, partitions: int, **more: object) -> dict[str, Any]:
        with _load(self._what(job, size, partitions, **more)) as process:
            return _result_of(process)

    def _run_with_faults(self, peer: Peer, what: dict[str, Any]) -> dict[str, Any]:
        """The load says whom to kill and whom to restart, and in the end what it has found."""
        do = {"kill": peer.children.kill, "restart": peer.children.restart}
        with _load(what) as process:
            if process.stdout is None or process.stdin is None:
                raise LoadFailed("the load has no pipes")
            patience = threading.Timer(FAULTS_TIMEOUT_S, process.kill)
            patience.start()
            try:
                for line in process.stdout:
                    said = json.loads(line)
                    if "please" not in said:
                        self.roots = peer.roots()
                        found: dict[str, Any] = said
                        return found
                    do[said["please"]](said["node"])
                    process.stdin.write("\n")
                    process.stdin.flush()
            finally:
                patience.cancel()
            raise LoadFailed(_error_of(process))


@contextlib.contextmanager
def _load(job: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.load", json.dumps(job)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # unless it has ended by itself


def _result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=JOB_TIMEOUT_S)
    if process.returncode:
        raise LoadFailed(_last_line(errors))
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _error_of(process: subprocess.Popen[str]) -> str:
    return _last_line(process.communicate(timeout=JOB_TIMEOUT_S)[1])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "the load ended without a word"
