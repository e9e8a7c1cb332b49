"""Who leads what, as far as this node has heard: soft state, repaired by every new announcement."""

from __future__ import annotations

from typing import NamedTuple

from sapwood.raft import Voters
from sapwood.replica.partition import GroupKey


class Leadership(NamedTuple):
    epoch: int
    leader: int
    voters: Voters
    in_sync: tuple[int, ...]


class LeadersTable:
    """The highest epoch wins, so nobody is ever shown an older one than before."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._known: dict[GroupKey, Leadership] = {}

    def get(self, key: GroupKey) -> Leadership | None:
        return self._known.get(key)

    def note(self, key: GroupKey, leadership: Leadership) -> bool:
        known = self._known.get(key)
        if known == leadership or (known is not None and known.epoch > leadership.epoch):
            return False
        self._known[key] = leadership
        self.version += 1
        return True

    def forget_topic(self, topic_id: bytes) -> None:
        for key in [key for key in self._known if key[0] == topic_id]:
            del self._known[key]
