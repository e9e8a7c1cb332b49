"""What tests share: waiting for a condition, names nobody else uses, a process's memory."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

MIB = 2**20

_numbers = itertools.count(1)


class DeadlinePassed(AssertionError):
    """What a test waited for didn't come."""


def eventually(condition: Callable[[], T], deadline_s: float = 15, every_s: float = 0.02) -> T:
    """The condition's first true value; the one way to wait in the tests."""
    deadline = time.monotonic() + deadline_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"not true within {deadline_s} s: {condition}")
        time.sleep(every_s)


async def eventually_on_loop(
    condition: Callable[[], T], deadline_s: float = 15, every_s: float = 0.001
) -> T:
    """The same for a test that runs on the event loop, which goes on meanwhile."""
    deadline = time.monotonic() + deadline_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"not true within {deadline_s} s: {condition}")
        await asyncio.sleep(every_s)


def unique(prefix: str) -> str:
    """A name that no other test and no earlier run uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def port_of(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


def resident_bytes(pid: int) -> int:
    """Memory of a process and of its helper processes, as the system counts it."""
    process = psutil.Process(pid)
    total: int = process.memory_info().rss
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += child.memory_info().rss
    return total


def peak_resident_bytes(pid: int) -> int:
    """The most memory that a process ever held at once (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no VmHWM")
