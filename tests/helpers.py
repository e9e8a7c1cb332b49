"""What tests share: waiting for a condition, names nobody else uses, and a node to hurt."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

_numbers = itertools.count(1)


class DeadlinePassed(AssertionError):
    pass


def eventually(condition: Callable[[], T], deadline_s: float = 15, every_s: float = 0.02) -> T:
    """The condition's first true value; the one way to wait in the tests."""
    deadline = time.monotonic() + deadline_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"not true within {deadline_s} s: {condition}")
        time.sleep(every_s)


def unique(prefix: str) -> str:
    """A name that no other test and no earlier run uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class NodeProcess:
    """A node that a test may kill and start again: same directory, same port."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.flags = flags
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = directory.parent / f"{directory.name}.log"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError("the node isn't running")
        return self.process.pid

    def start(self, deadline_s: float = 30) -> "NodeProcess":
        command = [
            sys.executable, "-m", "sapwood.node",
            "--dir", str(self.directory), "--port", str(self.port), *self.flags,
        ]  # fmt: skip
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        eventually(self._is_listening_or_gone, deadline_s, every_s=0.005)
        if self.process.poll() is not None:
            raise RuntimeError(f"the node ended at its start:\n{self.log_tail()}")
        return self

    def _is_listening_or_gone(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            return True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """Kill -9: no good-bye, no last sync."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """An orderly stop; its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, signal_number: signal.Signals) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(signal_number)
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def resident_bytes(self) -> int:
        """Memory of the node and of its helper processes, as the system counts it."""
        node = psutil.Process(self.pid)
        total: int = node.memory_info().rss
        for child in node.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += child.memory_info().rss
        return total

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> "NodeProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.stop()
