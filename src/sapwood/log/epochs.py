"""Which leader epoch began at which offset."""

from __future__ import annotations

from collections.abc import Iterable

UNKNOWN = (-1, -1)


class EpochList:
    """Ascending in both: (epoch, start offset). Epochs that are empty share their start."""

    __slots__ = ("starts",)

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self.starts = list(starts)

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

    def start_after(self, epoch: int, log_end: int) -> int:
        """Where the first epoch above `epoch` begins; the log's end if there is none."""
        return next((start for known, start in self.starts if known > epoch), log_end)

    def starting_at(self, offset: int, epoch: int) -> list[int]:
        """The epochs above `epoch` that begin at `offset`."""
        return [known for known, start in self.starts if start == offset and known > epoch]

    def before(self, offset: int) -> int:
        """The epoch of what lies in front of `offset`."""
        return max((known for known, start in self.starts if start < offset), default=-1)

    def as_of(self, offset: int) -> tuple[tuple[int, int], ...]:
        """What a log that starts and ends at `offset` knows."""
        known = EpochList(it for it in self.starts if it[1] <= offset)
        known.advance(offset)
        return tuple(known.starts)

    def advance(self, start_offset: int) -> None:
        """Forget epochs that ended before the log's start.

        One that ends just there is still the last epoch of a log that ends there, too.
        """
        while len(self.starts) > 1 and self.starts[1][1] < start_offset:
            del self.starts[0]
