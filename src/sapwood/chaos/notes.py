"""What a client notes of its life: one line per step, in the file before the next step is taken.

A line is handed to the operating system at once, so it outlives the process however that ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

What = Literal[
    "began",  # a process, the first or after a crash
    "ended",  # in good order, with nothing left to do
    "stalls",
    "puts",  # publishers: about to
    "stored",
    "subscribes",  # subscribers: about to
    "subscribed",
    "unsubscribes",
    "unsubscribed",
    "asks",
    "nothing",
    "got",
    "acknowledged",
]


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    what: What
    at_s: float = 0.0
    topic: str = ""
    partition: int = -1
    offset: int = -1
    publisher: str = ""
    number: int = -1
    start: str = ""
    positions: dict[int, int] = {}
    process: int = 0
    """Which, of those that one subscriber has at a time; the file says it, not the line."""


class Notebook:
    def __init__(self, path: Path) -> None:
        self.earlier = list(read(path)) if path.exists() else []
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._descriptor, b"\n")  # a kill tore the last line

    def write(self, what: What, **fields: Any) -> None:
        line = msgspec.json.encode(Note(what, time.time(), **fields)) + b"\n"
        os.write(self._descriptor, line)


def read(path: Path) -> Iterator[Note]:
    with path.open("rb") as file:
        yield from decoded(file)


def decoded(lines: Iterable[bytes]) -> Iterator[Note]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=Note)
        except msgspec.DecodeError:
            continue  # torn by a kill: the step that it announced wasn't taken
