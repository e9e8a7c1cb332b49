"""The segments of a log, in order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from sapwood.log.segment import Segment


class SegmentList:
    """Never empty; the last one is active."""

    __slots__ = ("_bases", "_closed_bytes", "_segments", "active")

    def __init__(self, segments: list[Segment]) -> None:
        self._replace(segments)

    def _replace(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._closed_bytes = sum(segment.size for segment in segments[:-1])
        self.active = segments[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + self.active.size

    @property
    def closed(self) -> list[Segment]:
        return self._segments[:-1]

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """The segment that has `offset` and those behind it."""
        number = max(0, bisect_right(self._bases, offset) - 1)
        while number < len(self._segments):
            yield self._segments[number]
            number += 1

    def first_kept(self, offset: int) -> int:
        """The base of the first segment that isn't closed with nothing at or above `offset`."""
        closed = self._segments[:-1]
        bases = (it.base_offset for it in closed if it.end_offset > offset)
        return next(bases, self.active.base_offset)

    def previous(self, segment: Segment) -> Segment | None:
        number = self._segments.index(segment)
        return self._segments[number - 1] if number else None

    def holds_before(self, offset: int) -> bool:
        """Whether there is a segment of which nothing lies at or above `offset`."""
        return len(self._segments) > 1 and self._segments[0].end_offset <= offset

    def add(self, segment: Segment) -> None:
        """Roll: what was active is closed now."""
        self._replace([*self._segments, segment])

    def remove_before(self, offset: int) -> list[Segment]:
        """Take out the closed segments of which nothing lies at or above `offset`."""
        keep = [s for s in self._segments if s.end_offset > offset or s is self.active]
        gone = self._segments[: len(self._segments) - len(keep)]
        if gone:
            self._replace(keep)
        return gone

    def remove_after(self, segment: Segment) -> list[Segment]:
        """Truncate: `segment` becomes the last one."""
        number = self._segments.index(segment) + 1
        gone = self._segments[number:]
        self._replace(self._segments[:number])
        return gone

    def restart(self, segment: Segment) -> None:
        """Reset: nothing but a new segment."""
        self._replace([segment])

    def swap(self, old: list[Segment], new: list[Segment]) -> None:
        """Put `new` in the place of the adjacent `old`."""
        number = self._segments.index(old[0])
        segments = list(self._segments)
        segments[number : number + len(old)] = new
        self._replace(segments)
