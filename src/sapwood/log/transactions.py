"""Which transactions a log holds: those that are open, and those that were aborted.

A transaction is open from its producer's first transactional batch to the marker that decides it.
Readers of committed records stop at the last stable offset, the first offset of the earliest
transaction that was undecided when the high watermark was reached: a marker beyond it may still be
lost. Each marker therefore leaves a step that tells what was earliest before it; as of a high
watermark the first step at or beyond it counts, and the steps below it are of no more use.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from sapwood.log import columns

NEVER = 2**63 - 1

_COUNTS = struct.Struct(">III")  # open, steps, aborted
_OPEN = struct.Struct(">qq")
_STEP = struct.Struct(">qqqq")


class _Step(NamedTuple):
    """A marker, and what it changed."""

    offset: int
    earliest: int
    """Of all that were open before."""
    producer_id: int
    first_offset: int


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""


class TransactionTable:
    __slots__ = ("_firsts", "_lasts", "_open", "_producers", "_stable", "_steps")

    def __init__(self) -> None:
        # Producer → first offset. In the order of their beginning, so the earliest comes first.
        self._open: dict[int, int] = {}
        self._steps: deque[_Step] = deque()
        # The aborted ones by column, in the order of their markers.
        self._producers = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        # The earliest that was open after the marker: all that came later begin there or beyond.
        self._stable = array("q")

    # -- questions ---------------------------------------------------------------------------

    @property
    def earliest(self) -> int:
        """Where the earliest open transaction begins; NEVER if none is open."""
        return next(iter(self._open.values()), NEVER)

    def first_offset(self, producer_id: int) -> int | None:
        """Where the producer's open transaction begins, if it has one."""
        return self._open.get(producer_id)

    def last_stable_offset(self, high_watermark: int) -> int:
        """High watermarks only grow, so what lies below is forgotten here."""
        steps = self._steps
        while steps and steps[0].offset < high_watermark:
            steps.popleft()
        return min(steps[0].earliest if steps else self.earliest, high_watermark)

    def aborted(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that may have records from `offset` on and below `end_offset`, in their order."""
        found = []
        for number in range(bisect_left(self._lasts, offset), len(self._lasts)):
            if self._firsts[number] < end_offset:
                found.append(self._aborted(number))
            if self._stable[number] >= end_offset:
                break
        return sorted(found, key=lambda it: it.first_offset)

    def _aborted(self, number: int) -> AbortedTransaction:
        return AbortedTransaction(
            self._producers[number], self._firsts[number], self._lasts[number]
        )

    # -- changes -----------------------------------------------------------------------------

    def begin(self, producer_id: int, offset: int) -> None:
        """A transactional batch: the first one begins a transaction."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, offset: int, *, committed: bool) -> None:
        """A marker. One without a transaction decides nothing."""
        first = self._open.get(producer_id)
        if first is None:
            return
        self._steps.append(_Step(offset, self.earliest, producer_id, first))
        del self._open[producer_id]
        if not committed:
            self._add_aborted(producer_id, first, offset, min(self.earliest, offset + 1))

    def _add_aborted(self, producer_id: int, first: int, last: int, stable: int) -> None:
        self._producers.append(producer_id)
        self._firsts.append(first)
        self._lasts.append(last)
        self._stable.append(stable)

    def forget_before(self, offset: int) -> None:
        """What was aborted below has no records in the log any more."""
        count = bisect_left(self._lasts, offset)
        for column in (self._producers, self._firsts, self._lasts, self._stable):
            del column[:count]

    def as_of(self, offset: int) -> TransactionTable:
        """What was open at `offset`, which is committed; what follows makes it this table again.

        Of a transaction that was open there, but whose commit is committed itself, nobody knows
        any more: its marker will decide nothing, and nothing is missed.
        """
        table = TransactionTable()
        begun = [(it.producer_id, it.first_offset) for it in self._steps if it.offset >= offset]
        begun += self._open.items()
        for number in range(bisect_left(self._lasts, offset), len(self._lasts)):
            begun.append((self._producers[number], self._firsts[number]))
            if self._stable[number] >= offset:
                break
        begun.sort(key=lambda it: it[1])
        table._open = {producer_id: first for producer_id, first in begun if first < offset}
        return table

    # -- on disk -----------------------------------------------------------------------------

    def encode(self) -> bytes:
        count = len(self._lasts)
        parts = [_COUNTS.pack(len(self._open), len(self._steps), count)]
        parts += [_OPEN.pack(*it) for it in self._open.items()]
        parts += [_STEP.pack(*it) for it in self._steps]
        parts += map(columns.pack, (self._producers, self._firsts, self._lasts, self._stable))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, position: int) -> tuple[TransactionTable, int]:
        """The table that `encode` gave, and where it ends; the caller has checked its checksum."""
        table = cls()
        open_count, steps, count = _COUNTS.unpack_from(data, position)
        position += _COUNTS.size
        end = position + open_count * _OPEN.size
        table._open = dict(_OPEN.iter_unpack(data[position:end]))
        position, end = end, end + steps * _STEP.size
        table._steps.extend(_Step(*it) for it in _STEP.iter_unpack(data[position:end]))
        table._producers, position = columns.unpack("q", count, data, end)
        table._firsts, position = columns.unpack("q", count, data, position)
        table._lasts, position = columns.unpack("q", count, data, position)
        table._stable, position = columns.unpack("q", count, data, position)
        return table, position
