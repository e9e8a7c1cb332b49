"""When groups have to be told the time: a heap, so that those that wait cost nothing."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from sapwood.raft import Group
from sapwood.raft.roles import NEVER
from sapwood.replica.partition import GroupKey, Partition

TICK_S = 0.02
LATER_S = 0.1
MOST_AT_ONCE = 50
"""Groups that stand in one turn: the others do so a moment later, and nobody is held up."""


class Timers:
    def __init__(self, is_waiting: Callable[[Partition], bool]) -> None:
        """A group that is waiting for an answer isn't told that its time is up."""
        self._is_waiting = is_waiting
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, Partition]] = []
        self._planned: dict[GroupKey, float] = {}
        """Rows of the heap that say otherwise are out of date."""
        self._rows = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._not_before = 0.0
        self._is_closed = False

    def set(self, partition: Partition) -> None:
        """As its deadline is now."""
        key, at = partition.key, partition.group.deadline
        if at == NEVER or partition.offline_reason is not None or self._is_closed:
            self._planned.pop(key, None)
        elif self._planned.get(key) != at:
            self._plan(partition, at)
            self._wake()

    def drop(self, partition: Partition) -> None:
        self._planned.pop(partition.key, None)

    def close(self) -> None:
        self._is_closed = True
        self._planned.clear()
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self, partition: Partition, at: float) -> None:
        self._planned[partition.key] = at
        self._rows += 1
        heapq.heappush(self._due, (at, self._rows, partition))

    def _wake(self) -> None:
        # Not for each by itself: what is due about now goes into one message and one sync.
        at = max(self._due[0][0], self._not_before)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._turn), at

    def _turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._not_before = now + TICK_S
        left = MOST_AT_ONCE
        while left and self._due and self._due[0][0] <= now:
            at, _, partition = heapq.heappop(self._due)
            if self._planned.get(partition.key) != at:
                continue
            del self._planned[partition.key]
            if partition.group.deadline > now:
                self.set(partition)
            elif self._is_waiting(partition):
                self._plan(partition, now + LATER_S)
            else:
                left -= 1
                partition.tell(Group.tick, now)
                self.set(partition)
        if self._due:
            self._wake()
