"""Which part of a log is durable, and who waits for more to be.

A round of syncs covers the active segment and the closed ones that weren't durable yet. All who
come before the disk has begun to sync the active segment share a round. The first sync that fails
is the last: what is on disk is unknown from then on.

Positions are (last epoch, end offset): a marker moves only the first, and must be synced as well.
Within one log they ascend in both, so they compare as tuples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapwood.disk import Disk
from sapwood.log.errors import LogFailed
from sapwood.log.segment import Segment

Position = tuple[int, int]


class _Round:
    __slots__ = ("closed", "future", "outstanding", "position", "waiters")

    def __init__(self, future: asyncio.Future[None], closed: list[Segment]) -> None:
        self.future = future
        self.closed = closed
        self.outstanding = 1 + len(closed)
        self.position: Position = (-1, 0)
        self.waiters: list[asyncio.Future[int]] = []


class LogSync:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        durable: Position,
        unsynced: list[Segment],
        on_durable: Callable[[Position], None],
    ) -> None:
        self.durable = durable
        self.failed: LogFailed | None = None
        self._disk = disk
        self._directory = directory
        self._on_durable = on_durable
        # Closed segments that aren't durable, each with its sync once there is one.
        self._unsynced: dict[Segment, asyncio.Future[None] | None] = dict.fromkeys(unsynced)
        self._rounds: list[_Round] = []

    def wait(self, active: Segment, position: Position) -> asyncio.Future[int]:
        """Resolves with the durable end once the log's present position is durable."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.failed is not None:
            waiter.set_exception(self.failed)
            waiter.exception()
        elif self.durable >= position:
            waiter.set_result(self.durable[1])
        else:
            self._join(active, position).waiters.append(waiter)
        return waiter

    def rolled(self, closed: Segment, active: Segment, position: Position) -> None:
        """Start at once: with flush=os nobody may ask, but the durable end has to move."""
        self._unsynced[closed] = None
        self._join(active, position)

    def restarted(self, position: Position) -> None:
        """The log was cut or begun anew, is at this position and synced as a whole."""
        self._unsynced.clear()
        self.durable = position
        for it in self._rounds:
            # What they cover beyond this is gone; what will stand there is not covered.
            it.position = position

    def synced_now(self, active: Segment, position: Position) -> None:
        """Blocking, for closing and truncating."""
        for segment in (*self._unsynced, active):
            try:
                segment.file.sync()
            except OSError as error:
                self.fail(error)
                raise
        self._unsynced.clear()
        self.durable = position

    def _join(self, active: Segment, position: Position) -> _Round:
        future = self._disk.sync(active.file)
        if self._rounds and self._rounds[-1].future is future:
            it = self._rounds[-1]
        else:
            it = _Round(future, list(self._unsynced))
            self._rounds.append(it)
            for segment, known in self._unsynced.items():
                closed = known or self._disk.sync(segment.file)
                self._unsynced[segment] = closed
                closed.add_done_callback(lambda done: self._synced(it, done))
            future.add_done_callback(lambda done: self._synced(it, done))
        it.position = position
        return it

    def _synced(self, it: _Round, done: asyncio.Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self.fail(error)
        it.outstanding -= 1
        if it.outstanding:
            return
        self._rounds.remove(it)
        if self.failed is None:
            for segment in it.closed:
                self._unsynced.pop(segment, None)
            self.durable = max(self.durable, it.position)
        for waiter in it.waiters:
            if waiter.done():
                continue
            if self.failed is None:
                waiter.set_result(self.durable[1])
            else:
                waiter.set_exception(self.failed)
                waiter.exception()  # the log remembers it, so nobody has to retrieve it
        if self.failed is None:
            self._on_durable(self.durable)

    def fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = LogFailed(f"{self._directory} is out of service: {error}")
