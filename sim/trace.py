"""What happened, one line per event, with a hash that tells two runs apart."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from sim.loop import PROCESS, SimLoop


class Trace:
    """The hash also covers how many events came before each line: a run that took another way
    to the same lines has another hash."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, line: str, events: int) -> None:
        self.lines.append(line)
        self._hash.update(f"{events} {line}\n".encode())

    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, path: Path, head: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.write(head.rstrip() + "\n\n")
            file.writelines(line + "\n" for line in self.lines)


class LoopTrace(Trace):
    """Of a world: each line says when it was, and whose process it was."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def note(self, what: str) -> None:
        process = PROCESS.get(None)
        who = process.name if process is not None else "-"
        self.add(f"{self._loop.elapsed():12.6f} {who:<10} {what}", self._loop.events)


class TraceHandler(logging.Handler):
    """What the shipped code logs is part of the story."""

    def __init__(self, trace: LoopTrace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()} {record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f" ({type(error).__name__}: {error})"
        self._trace.note(text)
