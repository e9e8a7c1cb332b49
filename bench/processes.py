"""Processes: brokers as children, free ports, what a tree of processes costs."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

STOP_TIMEOUT_S = 30.0
SAMPLE_S = 0.1
SAMPLES_PER_LISTING = 10
PORTS = (20_000, 30_000)
PORTS_PER_NODE = 4


def free_ports(nodes: int = 1) -> list[int]:
    """For each node the first of four neighbouring ports that nobody uses on the loopback address.

    Below the ports that systems hand out to clients: one of those could be taken by a client's
    connection between now and the broker's start.
    """
    span = nodes * PORTS_PER_NODE
    for _ in range(100):
        port = random.randrange(*PORTS)
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for neighbour in range(port, port + span):
                taken.enter_context(socket.create_server(("127.0.0.1", neighbour)))
            return list(range(port, port + span, PORTS_PER_NODE))
    raise OSError(f"no {span} neighbouring ports are free on 127.0.0.1")


class Child(NamedTuple):
    process: subprocess.Popen[bytes]
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]


class Children:
    """The processes of one broker, each in a session of its own so that Ctrl-C spares them.

    They are counted from 0, in the order of their first start.
    """

    def __init__(self) -> None:
        self._children: list[Child] = []

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._children.append(self._launched(command, log, environment or {}))

    def kill(self, number: int) -> None:
        """SIGKILL; returns when it is gone."""
        process = self._children[number].process
        process.kill()
        process.wait()

    def restart(self, number: int) -> None:
        """Start it as before; it has been killed."""
        _, command, log, environment = self._children[number]
        self._children[number] = self._launched(command, log, environment)

    def stop(self, *, by_force: bool = False) -> None:
        """SIGTERM to all at once; SIGKILL to the whole session of what doesn't end."""
        for child in reversed(self._children):
            child.process.terminate()
        deadline = time.monotonic() + (0.0 if by_force else STOP_TIMEOUT_S)
        for child in reversed(self._children):
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
        self._children.clear()

    @staticmethod
    def _launched(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Child:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return Child(process, command, log, environment)


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


def memory_bytes(roots: Sequence[int]) -> int:
    """Resident memory of the trees; pages that processes share count once for each."""
    return _resident_bytes(tree(roots))


def _resident_bytes(processes: Sequence[psutil.Process]) -> int:
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
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
    """Samples the resident memory of trees until it is told to end."""

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
            self.peak_bytes = max(self.peak_bytes, _resident_bytes(processes))
            self._ended.wait(SAMPLE_S)

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.peak_bytes
