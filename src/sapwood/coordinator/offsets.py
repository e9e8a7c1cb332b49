"""Positions: up to where each group has come in each partition.

A position that is part of a transaction waits until the transaction's marker is in the log. Then
it counts as of when it was written: an ordinary commit after it is newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sapwood.coordinator.group_records import offset_key, offset_value
from sapwood.wire.codec import Struct

Place = tuple[str, int]
"""Topic and partition."""


class Position(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    topic_id: bytes
    order: int = 0
    """Among all positions of the shard, as they are in the log."""


class Offsets:
    def __init__(self) -> None:
        self._committed: dict[str, dict[Place, Position]] = {}
        self._pending: dict[int, dict[str, dict[Place, Position]]] = {}
        """By producer, then as the committed ones."""
        self._count = 0

    # -- questions ---------------------------------------------------------------------------

    def groups(self) -> list[str]:
        return list(self._committed)

    def of(self, group_id: str) -> dict[Place, Position]:
        return self._committed.get(group_id, {})

    def has_any(self, group_id: str) -> bool:
        return group_id in self._committed or any(group_id in it for it in self._pending.values())

    def is_pending(self, group_id: str, place: Place) -> bool:
        """Whether a transaction that hasn't ended yet may change it."""
        return any(place in it.get(group_id, ()) for it in self._pending.values())

    def topic_ids(self) -> set[bytes]:
        return {position.topic_id for _, _, position in self._each()}

    def _each(self) -> Iterator[tuple[str, Place, Position]]:
        for group_id, positions in self._committed.items():
            for place, position in positions.items():
                yield group_id, place, position

    # -- changes -----------------------------------------------------------------------------

    def put(self, group_id: str, place: Place, position: Position, producer_id: int = -1) -> None:
        self._count += 1
        position = position._replace(order=self._count)
        groups = self._committed if producer_id < 0 else self._pending.setdefault(producer_id, {})
        groups.setdefault(group_id, {})[place] = position

    def remove(self, group_id: str, place: Place) -> None:
        """Whatever is known of it, and whatever a transaction was going to make of it."""
        for groups in (self._committed, *self._pending.values()):
            positions = groups.get(group_id)
            if positions is not None and positions.pop(place, None) is not None and not positions:
                del groups[group_id]

    def settle(self, producer_id: int, *, committed: bool) -> list[str]:
        """A transaction has ended; the groups that have new positions by that."""
        pending = self._pending.pop(producer_id, {})
        if not committed:
            return []
        for group_id, positions in pending.items():
            known = self._committed.setdefault(group_id, {})
            for place, position in positions.items():
                if place not in known or known[place].order < position.order:
                    known[place] = position
        return list(pending)

    def tombstones(self, group_id: str) -> list[tuple[bytes, None]]:
        """Forget a group, and say what makes the log forget it."""
        places = set(self.of(group_id))
        for groups in self._pending.values():
            places |= groups.get(group_id, {}).keys()
        return self.removed(group_id, sorted(places))

    def removed(self, group_id: str, places: list[Place]) -> list[tuple[bytes, None]]:
        for place in places:
            self.remove(group_id, place)
        return [(key_of(group_id, place), None) for place in places]

    def deleted(self, topic_ids: set[bytes]) -> list[tuple[bytes, None]]:
        """What was committed for topics that are gone."""
        gone = [(group, place) for group, place, it in self._each() if it.topic_id in topic_ids]
        return [it for group, place in gone for it in self.removed(group, [place])]


def key_of(group_id: str, place: Place) -> bytes:
    return offset_key.encode(group=group_id, topic=place[0], partition=place[1])


def value_of(position: Position) -> bytes:
    return offset_value.encode(
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        commit_timestamp=position.commit_ms,
        topic_id=position.topic_id,
    )


def from_stored(value: Struct) -> Position:
    return Position(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.topic_id,
    )
