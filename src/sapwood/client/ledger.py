"""What of one partition a durable subscriber has behind it, in a form that a commit can carry.

The position is the lowest offset that isn't acknowledged; ranges beyond it that are, and the last
token of each recent owner of the partition, stand in the commit's metadata:
`owner.count,owner.count;from-to,from-to`, the ranges relative to the position. By its token an
owner that didn't hear the answer to a commit finds out later whether it went through.
"""

from __future__ import annotations

from bisect import bisect_right

from sapwood.client.groups import Committed

MAX_RANGES = 150
_MAX_OWNERS = 16
_MAX_REACH = 2**31  # beyond the position: ten digits at most


class Ledger:
    __slots__ = ("_ends", "_starts", "position", "read_to", "tokens", "told")

    def __init__(self, committed: Committed) -> None:
        self.position = max(committed.offset, 0)  # a partition that is new to us begins at 0
        tokens, _, ranges = committed.metadata.partition(";")
        self.tokens = [each for each in tokens.split(",") if "." in each]
        self._starts: list[int] = []
        self._ends: list[int] = []
        for each in ranges.split(",") if ranges else ():
            start, _, end = each.partition("-")
            self._starts.append(self.position + int(start))
            self._ends.append(self.position + int(end))
        self.told = self.position  # to the coordinator, or by it
        self.read_to = self.position  # everything below was looked at since this was loaded

    def is_acknowledged(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        return offset < self.position or (index >= 0 and offset < self._ends[index])

    def has_room_for(self, offset: int, unacknowledged: int) -> bool:
        """Whether the metadata will hold it, in whatever order those that are out come back."""
        ranges = len(self._starts) + unacknowledged
        return ranges < MAX_RANGES and offset - self.position < _MAX_REACH

    def acknowledge(self, start: int, end: int) -> None:
        """The offsets from `start` to before `end`."""
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if self._starts[0] <= self.position:
            self.position = max(self.position, self._ends[0])
            del self._starts[0], self._ends[0]

    def committed(self, token: str) -> Committed:
        """What to commit, signed with a token; its owner's earlier ones give way to it."""
        owner, _, _ = token.partition(".")
        others = [each for each in self.tokens if each.partition(".")[0] != owner]
        self.tokens = [token, *others][:_MAX_OWNERS]
        self.told = self.position
        ranges = ",".join(
            f"{start - self.position}-{end - self.position}"
            for start, end in zip(self._starts, self._ends, strict=True)
        )
        tokens = ",".join(self.tokens)
        return Committed(self.position, f"{tokens};{ranges}" if ranges else tokens)
