"""Processes: brokers as children, free ports, what a tree of processes costs."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 30.0
SAMPLE_S = 0.1
SAMPLES_PER_LISTING = 10
PORTS = (20_000, 30_000)


def free_port(span: int = 4) -> int:
    """The first of `span` neighbouring ports that nobody uses on the loopback address.

    Below the ports that systems hand out to clients: one of those could be taken by a client's
    connection between now and the broker's start.
    """
    for _ in range(100):
        port = random.randrange(*PORTS)
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for neighbour in range(port, port + span):
                taken.enter_context(socket.create_server(("127.0.0.1", neighbour)))
            return port
    raise OSError(f"no {span} neighbouring ports are free on 127.0.0.1")


class Children:
    """The processes of one broker, each in a session of its own so that Ctrl-C spares them."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._processes.append(process)

    def stop(self) -> None:
        """SIGTERM, newest first; SIGKILL to the whole session of what doesn't end."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()


def tree(roots: Sequence[int]) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            found |= {process.pid: process for process in [root, *root.children(recursive=True)]}
    return list(found.values())


def cpu_seconds(roots: Sequence[int]) -> float:
    """User and system time of the living and of the children they have waited for."""
    total = 0.0
    for process in tree(roots):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class OthersWatch:
    """How much of the machine anybody else has used: a measurement among them is worth less."""

    def __init__(self) -> None:
        self._before = self._now([])

    def share(self, roots: Sequence[int]) -> float:
        """Of all cores, since the start, without a tree that began after it and without ours."""
        idle, busy, ours = (
            now - then for now, then in zip(self._now(roots), self._before, strict=True)
        )
        return max(0.0, busy - ours) / max(idle + busy, 0.01)

    def _now(self, roots: Sequence[int]) -> tuple[float, float, float]:
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        own = os.times()
        ours = own.user + own.system + own.children_user + own.children_system
        return idle, sum(machine) - idle, ours + cpu_seconds(roots)


class MemoryWatch(threading.Thread):
    """Samples the resident memory of a tree; shared pages count once for each process."""

    def __init__(self, roots: Sequence[int]) -> None:
        super().__init__(name="memory-watch", daemon=True)
        self.peak_bytes = 0
        self._roots = list(roots)
        self._ended = threading.Event()

    def run(self) -> None:
        processes: list[psutil.Process] = []
        sample = 0
        while not self._ended.is_set():
            # Listing a tree reads the whole process table: too dear for every sample.
            if sample % SAMPLES_PER_LISTING == 0:
                processes = tree(self._roots)
            sample += 1
            total = 0
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
            self.peak_bytes = max(self.peak_bytes, total)
            self._ended.wait(SAMPLE_S)

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.peak_bytes
