"""A node's clock: what its logs are stamped with, and what of it outlives the node's process.

Leaders close times: no record behind an offset will ever be of that time or before. For that a
majority of the voters must promise never to fall behind it, whatever becomes of them. But a host's
clock may be minutes back when a process starts again. So a bound a few seconds ahead lies in the
node's journal: nothing beyond it is promised, and a start begins from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapwood.log import HybridClock
from sapwood.log.clock import COUNTER_BITS
from sapwood.replica.notes import Notes

AHEAD = 5_000 << COUNTER_BITS


class NodeClock:
    def __init__(self, notes: Notes, now_ms: Callable[[], int]) -> None:
        self._notes = notes
        self._now_ms = now_ms
        self._clock = HybridClock(notes.clock())
        self._reserved = self._clock.last
        self._is_reserving = False
        self.on_reserved: Callable[[], None] = lambda: None

    @property
    def last(self) -> int:
        """At or after everything that has happened here, or that this node has heard of."""
        return self._clock.last

    def now(self) -> int:
        return self._clock.now(self._now_ms())

    def observe(self, reading: int) -> None:
        self._clock.observe(reading)

    def hear(self, reading: int) -> None:
        """A client's reading, believed within reason."""
        self._clock.hear(reading, self._now_ms())

    @property
    def promised(self) -> int:
        """This clock will never show less again, not even after a restart."""
        return min(self._clock.last, self._reserved)

    def note(self) -> None:
        """Have it outlive the process with the journal's next flush.

        For a log that begins anew from a snapshot: it has no entries to tell how late it is.
        """
        self._notes.note_clock(max(self._notes.clock(), self._clock.last))

    def reserve(self) -> None:
        """Have more to promise, soon. Costs a sync every few seconds, and only if it is asked."""
        now = self.now()
        if self._is_reserving or now <= self._reserved - AHEAD // 2:
            return
        bound = now + AHEAD
        self._notes.note_clock(bound)
        self._is_reserving = True

        def reserved(done: asyncio.Future[None]) -> None:
            self._is_reserving = False
            # If it failed, upkeep flushes again, and reports what is wrong with the journal.
            if not done.cancelled() and done.exception() is None:
                self._reserved = max(self._reserved, bound)
                self.on_reserved()

        self._notes.flush().add_done_callback(reserved)
