"""The operating system's files, with group commit on a few threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sapwood.disk.seam import Buffer, File, Names, SyncFailed

T = TypeVar("T")

SYNC_THREADS = 8
# The kernel takes at most this many buffers in one call.
_MAX_BUFFERS = 1024
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_datasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class OsFile:
    """See `File`. The fields from `waiting` on belong to `OsDisk`, under its lock."""

    __slots__ = ("_disk", "closing", "descriptor", "failed", "path", "queued", "size", "waiting")

    def __init__(self, disk: OsDisk, path: str, descriptor: int) -> None:
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self.descriptor = descriptor
        self.failed: SyncFailed | None = None
        self._disk = disk
        self.waiting: asyncio.Future[None] | None = None
        self.queued = False
        self.closing = False

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self.descriptor, length, offset)
        if len(data) == length or offset + len(data) >= self.size:
            return data
        parts = [data]
        position = offset + len(data)
        while data and position < offset + length:
            data = os.pread(self.descriptor, offset + length - position, position)
            parts.append(data)
            position += len(data)
        return b"".join(parts)

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        expected = sum(map(len, buffers))
        written = os.pwritev(self.descriptor, buffers, offset)
        if written != expected:
            # A full disk or a signal can cut a write short; the next call says which it was.
            rest = memoryview(b"".join(buffers))
            while written < expected:
                written += os.pwrite(self.descriptor, rest[written:], offset + written)
        if offset + expected > self.size:
            self.size = offset + expected

    def allocate(self, offset: int, length: int) -> None:
        if not hasattr(os, "posix_fallocate"):
            self.truncate(max(self.size, offset + length))
            return
        try:
            os.posix_fallocate(self.descriptor, offset, length)
        except OSError:
            # What was reserved before the disk was full would stay reserved.
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size = max(self.size, offset + length)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        self.size = size

    def sync(self) -> None:
        if self.failed is not None:
            raise self.failed
        try:
            _datasync(self.descriptor)
            self._disk.sync_names(self.path)
        except OSError as error:
            self.failed = SyncFailed(error.errno, f"sync failed: {error.strerror}", self.path)
            raise self.failed from error

    def close(self) -> None:
        self._disk.close_file(self)


class OsDisk:
    """See `Disk`. Safe to call from one event loop and from work given to `offload`."""

    def __init__(self, threads: int = SYNC_THREADS) -> None:
        self._max_threads = threads
        self._threads = 0
        self._outstanding = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Paths whose entry in their directory isn't durable yet: new files, new directories.
        self._unlisted: set[str] = set()
        self._reports: dict[asyncio.AbstractEventLoop, list[_Report]] = {}

    def open(self, path: str, *, create: bool = False, write: bool = True) -> OsFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0)
        if create:
            try:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                pass
            else:
                with self._lock:
                    self._unlisted.add(path)
                return OsFile(self, path, descriptor)
        return OsFile(self, path, os.open(path, flags))

    def list(self, directory: str) -> Names:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def makedirs(self, directory: str) -> None:
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            os.mkdir(path)
            with self._lock:
                self._unlisted.add(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def remove(self, path: str) -> None:
        try:
            os.remove(path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            if not os.path.isdir(path):
                raise
            shutil.rmtree(path)
        with self._lock:
            self._unlisted.discard(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)
        with self._lock:
            self._unlisted.discard(old)
            self._unlisted.add(new)

    def sync_dir(self, directory: str) -> None:
        with self._lock:
            listed = {path for path in self._unlisted if os.path.dirname(path) == directory}
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with self._lock:
            self._unlisted -= listed

    def sync_names(self, path: str) -> None:
        """Make a path's entry in its directory durable, and those of new directories above it."""
        while path in self._unlisted:
            directory = os.path.dirname(path)
            self.sync_dir(directory)
            path = directory

    def free_bytes(self, directory: str) -> int:
        return shutil.disk_usage(directory).free

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def sync(self, file: File) -> asyncio.Future[None]:
        if not isinstance(file, OsFile):
            raise TypeError(f"{file!r} was not opened by this disk")
        with self._lock:
            if file.waiting is not None:
                return file.waiting
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if file.failed is not None:
                future.set_exception(file.failed)
                return future
            file.waiting = future
            if file.queued:
                return future
            file.queued = True
        self._submit(lambda: self._sync(file))
        return future

    def offload(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                self._report(future, None, error)
            else:
                self._report(future, result, None)

        self._submit(run)
        return future

    def close_file(self, file: OsFile) -> None:
        """Close now, or after the sync under way: its descriptor must not go to another file."""
        with self._lock:
            if file.descriptor < 0:
                return
            if file.queued:
                file.closing = True
                return
            descriptor, file.descriptor = file.descriptor, -1
        os.close(descriptor)

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._outstanding += 1
            grow = self._threads < min(self._outstanding, self._max_threads)
            self._threads += grow
        self._queue.put(work)
        if grow:
            threading.Thread(target=self._work, name="sapwood-disk", daemon=True).start()

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            work()
            with self._lock:
                self._outstanding -= 1

    def _sync(self, file: OsFile) -> None:
        with self._lock:
            future, file.waiting = file.waiting, None
        error: OSError | None = None
        try:
            file.sync()
        except OSError as caught:
            error = caught
        with self._lock:
            late = None
            if error is not None:
                late, file.waiting = file.waiting, None
            again = file.waiting is not None
            file.queued = again
            descriptor = -1
            if file.closing and not again:
                descriptor, file.descriptor = file.descriptor, -1
        if again:
            self._submit(lambda: self._sync(file))
        for waiter in (future, late):
            if waiter is not None:
                self._report(waiter, None, error)
        if descriptor >= 0:
            os.close(descriptor)

    def _report(
        self, future: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        """Tell the loop. Reports that pile up while it is busy cost it one wake-up together."""
        loop = future.get_loop()
        with self._lock:
            reports = self._reports.setdefault(loop, [])
            reports.append((future, result, error))
            if len(reports) > 1:
                return
        try:
            loop.call_soon_threadsafe(self._deliver, loop)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            with self._lock:
                del self._reports[loop]

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            reports = self._reports.pop(loop)
        for future, result, error in reports:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


_Report = tuple["asyncio.Future[Any]", object, "BaseException | None"]
