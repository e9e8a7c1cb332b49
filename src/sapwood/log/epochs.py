"""Which leader epoch began at which offset."""

from __future__ import annotations

UNKNOWN = (-1, -1)


class EpochList:
    """Ascending (epoch, start offset)."""

    __slots__ = ("starts",)

    def __init__(self, starts: list[tuple[int, int]] | None = None) -> None:
        self.starts = starts or []

    @property
    def last(self) -> int:
        return self.starts[-1][0] if self.starts else -1

    def note(self, epoch: int, base_offset: int) -> None:
        if epoch > self.last:
            self.starts.append((epoch, base_offset))

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch at or below `epoch` and where it ends."""
        known = -1
        for candidate, start in self.starts:
            if candidate > epoch:
                return (known, start) if known >= 0 else UNKNOWN
            known = candidate
        return (known, log_end) if known >= 0 else UNKNOWN

    def truncate(self, end_offset: int) -> None:
        """Forget epochs that began at or after the log's new end."""
        while self.starts and self.starts[-1][1] >= end_offset:
            self.starts.pop()

    def advance(self, start_offset: int) -> None:
        """Forget epochs of which nothing is left."""
        while len(self.starts) > 1 and self.starts[1][1] <= start_offset:
            del self.starts[0]
