"""A machine's disk on virtual time: it takes its time, fails, fills up, and forgets.

Each process gets the disk anew. After a crash it finds all that was written, since the page cache
is the kernel's; after a power cut it finds what was synced and some 512-byte sectors of the rest.
The handles of a process that has died don't do anything any more.
"""

from __future__ import annotations

import asyncio
import fnmatch
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sapwood.disk import File
from sim.loop import PROCESS, SimLoop
from tests.disk.faulty import Crashed, FaultyDisk, FaultyFile, Inode

__all__ = ["Crashed", "DiskWeather", "SimDisk"]

T = TypeVar("T")


@dataclass(slots=True)
class DiskWeather:
    """How a machine's disk is doing. It outlives processes and power cuts."""

    chance: random.Random
    sync_s: float = 0.001
    slow_chance: float = 0.0
    slow_s: float = 1.0
    failure_chance: float = 0.0
    """Per sync."""
    forgets_failures: bool = False
    """After a failed sync the kernel takes the pages for clean: the next sync, even one of another
    process, succeeds without writing them."""
    capacity: int | None = None

    def latency_s(self) -> float:
        latency_s = self.sync_s * (0.5 + self.chance.expovariate(2.0))
        if self.slow_chance and self.chance.random() < self.slow_chance:
            latency_s += self.chance.uniform(0, self.slow_s)
        return latency_s

    def fails(self) -> bool:
        return bool(self.failure_chance) and self.chance.random() < self.failure_chance


class SimFile(FaultyFile):
    waiting: asyncio.Future[None] | None = None
    """For those who asked before a sync began that isn't running yet."""
    is_syncing = False

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        super().__init__(disk, path, inode)
        self._sim_disk = disk

    def sync(self) -> None:
        super().sync()
        self._sim_disk.block()

    def begin_sync(self) -> Callable[[], None]:
        covered = len(self.inode.changes)
        finish = super().begin_sync()

        def finish_or_forget() -> None:
            try:
                finish()
            except OSError:
                if self._sim_disk.weather.forgets_failures:
                    self.inode.changes[:covered] = [
                        (size, None) for size, data in self.inode.changes[:covered] if data is None
                    ]
                raise

        return finish_or_forget


class SimDisk(FaultyDisk):
    def __init__(self, loop: SimLoop, weather: DiskWeather, boots: int = 0) -> None:
        super().__init__()
        self.weather = weather
        self.fails_sync = lambda path: self.weather.fails()
        self.on_crash: Callable[[], None] | None = None
        """Called when a crash that was ordered for some step has come."""
        self._loop = loop
        self._boots = boots

    # -- what happens to machines --------------------------------------------------------------

    def after_exit(self) -> SimDisk:
        """What the next process finds after this one's end."""
        self.crashed = True
        disk = SimDisk(self._loop, self.weather, self._boots)
        disk.live, disk.durable = self.live, self.durable
        disk.links, disk.directories = self.links, self.directories
        return disk

    def after_power_cut(self) -> SimDisk:
        self.crashed = True
        found = self.after_crash(self.weather.chance)
        disk = SimDisk(self._loop, self.weather, self._boots + 1)
        disk.live, disk.durable, disk.directories = found.live, found.durable, found.directories
        return disk

    def wiped(self) -> SimDisk:
        self.crashed = True
        return SimDisk(self._loop, self.weather, self._boots)

    def flip_somewhere(self, pattern: str) -> str | None:
        """One bit of what is stored in one of the files that match; where it was."""
        chance = self.weather.chance
        files = sorted(fnmatch.filter(self.live, pattern))
        chance.shuffle(files)
        for path in files:
            content = self.live[path].durable
            used = len(content.rstrip(b"\0"))
            if used:
                position = chance.randrange(used)
                self.flip(path, position, chance.randrange(8))
                return f"{path} at byte {position}"
        return None

    # -- Disk --------------------------------------------------------------------------------

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def room(self) -> int:
        self.check_alive()
        if self.weather.capacity is None:
            return 1 << 60
        return self.weather.capacity - self.used_bytes()

    def used_bytes(self) -> int:
        return sum(len(inode.live) for inode in self.live.values())

    def step(self, change: Callable[[], None]) -> None:
        try:
            super().step(change)
        except Crashed:
            on_crash, self.on_crash = self.on_crash, None
            if on_crash is not None:
                on_crash()
            raise

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimFile:
        opened = super().open(path, create=create, write=write)
        return SimFile(self, path, opened.inode)

    def rename(self, old: str, new: str) -> None:
        if old not in self.directories:
            super().rename(old, new)
            return
        self.check_alive()
        self.directories.discard(old)
        self.directories.add(new)
        moved: dict[str, Inode | None] = {}
        for path, inode in sorted(self.live.items()):
            if path.startswith(old + "/"):
                moved[path] = None
                moved[new + path[len(old) :]] = inode
        self.step(lambda: self._link(moved))

    def sync_dir(self, directory: str) -> None:
        super().sync_dir(directory)
        self.block()

    def block(self) -> None:
        """The caller stood still for as long as this takes."""
        process = PROCESS.get(None)
        if process is not None:
            process.stall(self.weather.latency_s())

    def sync(self, file: File) -> asyncio.Future[None]:
        if not isinstance(file, SimFile):
            raise TypeError(f"{file!r} was not opened by this disk")
        self.check_alive()
        if file.waiting is not None:
            return file.waiting
        future: asyncio.Future[None] = self._loop.create_future()
        if file.failed is not None:
            future.set_exception(file.failed)
            return future
        file.waiting = future
        if not file.is_syncing:
            file.is_syncing = True
            self._loop.call_later(self.weather.latency_s() / 10, self._begin, file)
        return future

    def _begin(self, file: SimFile) -> None:
        future, file.waiting = file.waiting, None
        if future is not None:
            finish = file.begin_sync()
            self._loop.call_later(self.weather.latency_s(), self._finish, file, future, finish)

    def _finish(
        self, file: SimFile, future: asyncio.Future[None], finish: Callable[[], None]
    ) -> None:
        error: Exception | None = None
        try:
            finish()
        except OSError as caught:
            error = caught
        waiting: list[asyncio.Future[None]] = [future]
        if error is not None and file.waiting is not None:
            waiting.append(file.waiting)
            file.waiting = None
        file.is_syncing = file.waiting is not None
        if file.is_syncing:
            self._begin(file)
        for each in waiting:
            if not each.done():
                if error is None:
                    each.set_result(None)
                else:
                    each.set_exception(error)

    def _later(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What is offloaded runs in one go, some time later."""
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Crashed:
                raise
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self._loop.call_later(self.weather.latency_s(), run)
        return future
