"""A disk in memory that forgets, tears, fills up, fails and crashes as it is told.

What was not synced is lost at a crash in 512-byte sectors, each by itself, and so are creations,
renames and removals in directories that were not synced. Every change is a step; a crash can be
ordered for any of them, and then nothing works any more until `after_crash` gives the disk that
the next process would find.
"""

from __future__ import annotations

import asyncio
import errno
import os.path
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from sapwood.disk import Buffer, File, SyncFailed

T = TypeVar("T")
SECTOR = 512
Names = list[str]


class Crashed(Exception):
    """The machine has lost its power."""


class Inode:
    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.live = bytearray(content)
        self.changes: list[tuple[int, bytes | None]] = []
        """Since the last sync: (offset, data), or (size, None) for a new size."""

    def apply(self, content: bytearray, offset: int, data: bytes | None) -> None:
        if data is None:
            del content[offset:]
            content.extend(bytes(offset - len(content)))
        else:
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data

    def change(self, offset: int, data: bytes | None) -> None:
        self.apply(self.live, offset, data)
        self.changes.append((offset, data))

    def persist(self, changes: int) -> None:
        for offset, data in self.changes[:changes]:
            self.apply(self.durable, offset, data)
        del self.changes[:changes]

    def after_crash(self, chance: random.Random, kept: float) -> Inode:
        content = bytearray(self.durable)
        for offset, data in self.changes:
            if data is None:
                if chance.random() < kept:
                    self.apply(content, offset, None)
                continue
            start = offset
            while start < offset + len(data):
                end = min((start // SECTOR + 1) * SECTOR, offset + len(data))
                if chance.random() < kept:
                    self.apply(content, start, data[start - offset : end - offset])
                start = end
        return Inode(bytes(content))


class FaultyFile:
    def __init__(self, disk: FaultyDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self.path = path
        self.inode = inode
        self.failed: SyncFailed | None = None
        self.closed = False

    @property
    def size(self) -> int:
        return len(self.inode.live)

    def pread(self, length: int, offset: int) -> bytes:
        self._disk.check_alive()
        if self.closed:
            raise ValueError(f"{self.path} is closed")
        data = bytes(self.inode.live[offset : offset + length])
        self._disk.bytes_read += len(data)
        self._disk.reads += 1
        return data

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        room = self._disk.room()
        grown = offset + len(data) - self.size
        if grown > room:
            # A real disk writes what fits.
            if offset + len(data) - grown + room > offset:
                self.inode.change(offset, data[: len(data) - grown + room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._disk.step(lambda: self.inode.change(offset, data))

    def allocate(self, offset: int, length: int) -> None:
        if offset + length - self.size > self._disk.room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        if offset + length > self.size:
            self._disk.step(lambda: self.inode.change(offset + length, None))

    def truncate(self, size: int) -> None:
        self._disk.step(lambda: self.inode.change(size, None))

    def sync(self) -> None:
        self.begin_sync()()

    def begin_sync(self) -> Callable[[], None]:
        """What is written now will be durable when the result is called."""
        changes = len(self.inode.changes)

        def finish() -> None:
            if self.failed is not None:
                raise self.failed
            self._disk.syncs.append(self.path)
            if self._disk.fails_sync(self.path):
                self.failed = SyncFailed(errno.EIO, "sync failed", self.path)
                raise self.failed
            self._disk.step(lambda: self._persist(min(changes, len(self.inode.changes))))

        return finish

    def _persist(self, changes: int) -> None:
        self.inode.persist(changes)
        self._disk.persist_link(self.path, self.inode)

    def close(self) -> None:
        self.closed = True


class FaultyDisk:
    def __init__(self) -> None:
        self.live: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.links: list[dict[str, Inode | None]] = []
        """Since the last sync of their directories: what paths lead to now. A rename is one change
        of two paths, and happens as a whole or not at all."""
        self.directories: set[str] = set()
        self.capacity: int | None = None
        self.fails_sync: Callable[[str], bool] = lambda path: False
        """Of a file or a directory."""
        self.fails_open: Callable[[str], bool] = lambda path: False
        self.steps = 0
        self.crash_at: int | None = None
        self.crashed = False
        self.holds_syncs = False
        self.held: list[Callable[[], None]] = []
        self.syncs: list[str] = []
        self.bytes_read = 0
        self.reads = 0
        self.boots = 0

    # -- what tests ask for ------------------------------------------------------------------

    def after_crash(self, chance: random.Random) -> FaultyDisk:
        """What is found after the power is back."""
        disk = FaultyDisk()
        disk.boots = self.boots + 1
        disk.directories = set(self.directories)
        kept = chance.choice([0.0, 0.3, 0.7, 0.95, 1.0])
        names = dict(self.durable)
        for change in self.links:
            if chance.random() < kept:
                _relink(names, change)
        twins: dict[int, Inode] = {}
        for path, inode in sorted(names.items()):
            twin = twins.setdefault(id(inode), inode.after_crash(chance, kept))
            disk.live[path] = disk.durable[path] = twin
        return disk

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        inode = self.live[path]
        for content in (inode.live, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def contents(self) -> dict[str, bytes]:
        return {path: bytes(inode.live) for path, inode in self.live.items()}

    def release_syncs(self) -> None:
        """Let the syncs that were held finish, in the order of their beginning."""
        held, self.held = self.held, []
        for finish in held:
            finish()

    # -- what files ask for ------------------------------------------------------------------

    def room(self) -> int:
        if self.capacity is None:
            return 1 << 60
        return self.capacity - sum(len(inode.live) for inode in self.live.values())

    def check_alive(self) -> None:
        if self.crashed:
            raise Crashed

    def step(self, change: Callable[[], None]) -> None:
        """Do one change; the crash comes before or after it, which nobody will see."""
        self.check_alive()
        self.steps += 1
        if self.crash_at is not None and self.steps >= self.crash_at:
            self.crashed = True
            if self.steps % 2:
                change()
            raise Crashed
        change()

    def persist_link(self, path: str, inode: Inode) -> None:
        """A file that is synced has its name, and what the name stood for before is over."""
        if self.live.get(path) is inode:
            self._persist_links(lambda change: path in change)
            self.durable[path] = inode

    # -- Disk --------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = True) -> FaultyFile:
        self.check_alive()
        if self.fails_open(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        if path not in self.live:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if os.path.dirname(path) not in self.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.step(lambda: self._link({path: Inode()}))
        return FaultyFile(self, path, self.live[path])

    def _link(self, change: dict[str, Inode | None]) -> None:
        _relink(self.live, change)
        self.links.append(change)

    def list(self, directory: str) -> Names:
        self.check_alive()
        prefix = directory + "/"
        return sorted(p[len(prefix) :] for p in self.live if p.startswith(prefix))

    def makedirs(self, directory: str) -> None:
        self.check_alive()
        while directory and directory not in self.directories:
            self.directories.add(directory)
            directory = os.path.dirname(directory)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return path in self.live or path in self.directories

    def remove(self, path: str) -> None:
        self.check_alive()
        for victim in [p for p in self.live if p == path or p.startswith(path + "/")]:
            self.step(lambda victim=victim: self._link({victim: None}))  # type: ignore[misc]
        self.directories.discard(path)

    def rename(self, old: str, new: str) -> None:
        inode = self.live[old]
        self.step(lambda: self._link({old: None, new: inode}))

    def sync_dir(self, directory: str) -> None:
        def is_inside(change: dict[str, Inode | None]) -> bool:
            return any(os.path.dirname(path) == directory for path in change)

        if self.fails_sync(directory):
            raise OSError(errno.EIO, os.strerror(errno.EIO), directory)
        self.step(lambda: self._persist_links(is_inside))

    def _persist_links(self, wanted: Callable[[dict[str, Inode | None]], bool]) -> None:
        kept = []
        for change in self.links:
            if wanted(change):
                _relink(self.durable, change)
            else:
                kept.append(change)
        self.links = kept

    def free_bytes(self, directory: str) -> int:
        return self.room()

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def sync(self, file: File) -> asyncio.Future[None]:
        if not isinstance(file, FaultyFile):
            raise TypeError(file)
        if file.failed is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(file.failed)
            return future
        return self._later(file.begin_sync())

    def offload(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._later(work)

    def _later(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish() -> None:
            try:
                result = work()
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        if self.holds_syncs:
            self.held.append(finish)
        else:
            loop.call_soon(finish)
        return future


def _relink(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
