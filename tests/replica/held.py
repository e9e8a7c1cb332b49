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
        if not self.hold or not file.path.endswith(".log"):
            return super().sync(file)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append((file.path, future))
        return future

    async def release(self, only: str = "") -> None:
        for future in self._taken(only):
            future.set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def fail(self) -> None:
        for future in self._taken(""):
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
        taken = [future for path, future in self.held if only in path]
        self.held = [(path, future) for path, future in self.held if only not in path]
        return taken
