"""What a log has to know that its segments can't tell: where it starts, what is being swapped.

Each change is a new file `<number>.state`, written whole, synced and renamed into place; the
highest number counts. So a change that is still on its way to disk can't undo a later one.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict

import msgspec
from crc32c import crc32c

from sapwood.disk import Disk
from sapwood.disk import replace as replace_file
from sapwood.log.errors import CorruptLog

_SUFFIX = ".state"
_HEADER = struct.Struct(">4sHHI")  # magic, version, reserved, crc32c of the body
_MAGIC = b"SAPS"
_VERSION = 1
_ANY_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Swap:
    """Segments, by base offset, that compaction replaces: not done until this is gone again."""

    removed: tuple[int, ...]
    added: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogState:
    start_offset: int = 0
    durable_end: int = 0
    """Everything below was synced before this was written."""
    timeline: int = 0
    """Counts truncations: a snapshot of another timeline may hold what was cut off."""
    cut_offset: int = 0
    cut_epoch: int = _ANY_EPOCH
    """Where the last truncation cut: what the timeline before says up to there still holds."""
    cut_end: int = -1
    """Where the log ended then: lower than that if it cut a batch or met a gap; -1: unknown."""
    cleaned: tuple[tuple[int, int], ...] = ()
    """(offset, time): up to there compaction had been by then; ascending in both."""
    swap: Swap | None = None
    first_segment: int = -1
    """Segments that end at or below this are deleted; -1: at or below the start, as it was before
    there were markers. One that ends at the start may have got markers since this was written."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, start) of those that began at or before the start: their markers may be deleted."""
    voters: tuple[tuple[int, bytes], ...] = ()
    """(offset, value) of what was said before the start."""
    reset: bytes = b""
    """The snapshot that this log begins anew with: not done until this is gone again."""

    @property
    def cleaned_end(self) -> int:
        return self.cleaned[-1][0] if self.cleaned else 0


class Start(TypedDict):
    """What changes together when the front of a log goes."""

    start_offset: int
    first_segment: int
    epochs: tuple[tuple[int, int], ...]
    voters: tuple[tuple[int, bytes], ...]


class StateFile:
    def __init__(self, disk: Disk, directory: str, number: int, state: LogState | None) -> None:
        self._disk = disk
        self._directory = directory
        self._number = number
        self._stale = [number] if state is not None else []
        self._under_way = 0
        self.state = state or LogState()

    @classmethod
    def load(cls, disk: Disk, directory: str, names: list[str]) -> StateFile:
        numbers = sorted(
            int(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)
        )
        if not numbers:
            return cls(disk, directory, 0, None)
        path = _path(directory, numbers[-1])
        file = disk.open(path, write=False)
        try:
            data = file.pread(file.size, 0)
        finally:
            file.close()
        it = cls(disk, directory, numbers[-1], _decode(path, data))
        it._stale = numbers
        return it

    def change(
        self, *, first: Callable[[], None] | None = None, **changes: object
    ) -> asyncio.Future[None]:
        """Change at once in memory; the future tells when on disk.

        `first` is done off the loop before the change is written.
        """
        write = self._prepare(changes)

        def work() -> None:
            if first is not None:
                first()
            write()

        self._under_way += 1
        future = self._disk.offload(work)
        future.add_done_callback(self._finished)
        return future

    def change_now(self, **changes: object) -> None:
        """Change in memory and on disk before this returns."""
        self._prepare(changes)()

    def take_back(self, **changes: object) -> None:
        """After a change that failed: the next one that is written undoes it."""
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]

    def close(self, start: Start) -> None:
        """Leave nothing behind that could still change what the next one finds."""
        if self._under_way or self.state.start_offset != start["start_offset"]:
            self.change_now(**start)

    def _finished(self, future: asyncio.Future[None]) -> None:
        self._under_way -= 1
        if not future.cancelled():
            future.exception()  # whoever asked for the change may not be waiting for it

    def _prepare(self, changes: dict[str, object]) -> _Write:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        self._number += 1
        stale, self._stale = self._stale, [self._number]
        return _Write(self._disk, self._directory, self._number, self.state, stale)


@dataclass(frozen=True, slots=True)
class _Write:
    disk: Disk
    directory: str
    number: int
    state: LogState
    stale: list[int]

    def __call__(self) -> None:
        body = msgspec.json.encode(self.state)
        header = _HEADER.pack(_MAGIC, _VERSION, 0, crc32c(body))
        replace_file(self.disk, _path(self.directory, self.number), [header, body])
        for number in self.stale:
            self.disk.remove(_path(self.directory, number))


def _path(directory: str, number: int) -> str:
    return f"{directory}/{number:010d}{_SUFFIX}"


def _decode(path: str, data: bytes) -> LogState:
    body = data[_HEADER.size :]
    if data[: _HEADER.size] != _HEADER.pack(_MAGIC, _VERSION, 0, crc32c(body)):
        # It was synced before it got its name, so no crash explains this.
        raise CorruptLog(path, 0, "the log's state file is damaged or of an unknown version")
    return msgspec.json.decode(body, type=LogState)
