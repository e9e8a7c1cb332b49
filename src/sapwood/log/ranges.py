"""Which parts of a file are known to be good."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

# Readers jump about little; beyond this the oldest knowledge is forgotten and checked again.
_MOST = 64


class Ranges:
    """A set of positions as disjoint, ascending ranges [start, end)."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if starts and start == ends[-1]:  # an append
            ends[-1] = end
            return
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        if len(starts) > _MOST:
            del starts[0], ends[0]

    def end_of(self, position: int) -> int:
        """The end of the range that holds `position`; `position` itself if none does."""
        index = bisect_right(self._starts, position) - 1
        return max(position, self._ends[index]) if index >= 0 else position

    def cut(self, position: int) -> None:
        """Forget everything from `position` on."""
        keep = bisect_left(self._starts, position)
        del self._starts[keep:], self._ends[keep:]
        if keep:
            self._ends[-1] = min(self._ends[-1], position)
