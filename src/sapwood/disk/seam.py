"""What the rest of the house may ask of a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Buffer = bytes | bytearray | memoryview
Names = list[str]
T = TypeVar("T")


class SyncFailed(OSError):
    """This file could not be made durable; it can't be trusted again until it is reopened."""


class File(Protocol):
    """One open file. Positions are explicit; there is no cursor."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Length of the file, with whatever was allocated ahead."""

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all of `buffers`, one after the other, or raise OSError."""

    def allocate(self, offset: int, length: int) -> None:
        """Reserve room that reads as zeros, or raise OSError and leave the file as it was."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Blocking twin of `Disk.sync`: for opening, closing and helper processes."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute strings."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File: ...

    def list(self, directory: str) -> Names:
        """Names in a directory, sorted; empty if there is no such directory."""

    def makedirs(self, directory: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; it is no error if it is gone already."""

    def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`, replacing what had it."""

    def sync_dir(self, directory: str) -> None:
        """Make renames and removals in this directory durable (blocking)."""

    def free_bytes(self, directory: str) -> int: ...

    def boot_id(self) -> str:
        """Changes when the machine starts: what a kill leaves in the page cache, a power cut
        doesn't. Empty where nobody can tell one boot from another."""

    def sync(self, file: File) -> asyncio.Future[None]:
        """Make a file's content and name durable, off the loop. The future is shared: all who
        ask before the sync begins get the same one, so nobody may cancel it."""

    def offload(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run blocking file work off the loop."""
