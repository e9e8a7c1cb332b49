"""A disk whose syncs of logs end when, and as, the test says."""

import asyncio
import errno
from collections.abc import Awaitable
from typing import TypeVar

from sapwood.disk import File, OsDisk, SyncFailed

T = TypeVar("T")


class HeldDisk(OsDisk):
    def __init__(self) -> None:
        super().__init__()
        self.hold = True
        self.held: list[tuple[str, asyncio.Future[None]]] = []

    def sync(self, file: File) -> asyncio.Future[None]:
        """As the seam has it: one sync of a file runs, and one more waits for all who come."""
        if not self.hold or not file.path.endswith(".log"):
            return super().sync(file)
        known = [future for path, future in self.held if path == file.path]
        if len(known) == 2:
            return known[1]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append((file.path, future))
        return future

    async def release(self, only: str = "") -> None:
        for future in self._taken(only):
            future.set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def fail(self) -> None:
        held, self.held = self.held, []
        for _, future in held:
            future.set_exception(SyncFailed(errno.EIO, "sync failed"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def releasing(self, work: Awaitable[T], only: str = "") -> T:
        """What the work gives, if no sync whose path has `only` is held back."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self.release(only)
        return await task

    def _taken(self, only: str) -> list[asyncio.Future[None]]:
        """The syncs that run, by file."""
        taken = dict(reversed([held for held in self.held if only in held[0]]))
        running = set(taken.values())
        self.held = [held for held in self.held if held[1] not in running]
        return list(taken.values())
