"""A log in memory, with a durable part and one that a power cut may take.

All logs of a run grow on one tree: an entry knows the entry before it, so that two logs hold the
same up to an entry exactly if they hold the same object. Two entries that end at one position are
what log matching rules out, and the tree refuses to grow them.
"""

from __future__ import annotations

from random import Random

from sapwood.raft import START, Position, Voters


class Broken(AssertionError):
    """An invariant of consensus does not hold."""


class Entry:
    """A marker, which takes no offset, or a record: a client's value or the voters."""

    __slots__ = ("before", "config", "depth", "epochs", "position", "told", "value")

    def __init__(
        self, before: Entry | None, position: Position, value: int | None, voters: Voters | None
    ) -> None:
        self.before = before
        self.position = position
        self.value = value
        self.told = False
        """Whether another replica may have it."""
        self.depth: int = before.depth + 1 if before else 0
        inherited = before.config if before else None
        self.config: tuple[int, Voters] | None = (
            inherited if voters is None else (position.offset - 1, voters)
        )
        """The newest voters up to here, and where they stand."""
        self.epochs: tuple[tuple[int, int], ...] = before.epochs if before else ()
        if not self.takes_offset:
            self.epochs = (*self.epochs, (position.epoch, position.offset))

    @property
    def takes_offset(self) -> bool:
        return self.position.offset > (self.before.position.offset if self.before else 0)

    def __repr__(self) -> str:
        place = f"{self.position.epoch}/{self.position.offset}"
        if not self.takes_offset:
            return f"marker {place}"
        if self.config is not None and self.config[0] == self.position.offset - 1:
            return f"voters {place}"
        return place


class Tree:
    def __init__(self) -> None:
        self.at: dict[Position, Entry] = {}
        self._values = 0

    def grow(
        self,
        before: Entry | None,
        epoch: int,
        *,
        marker: bool = False,
        voters: Voters | None = None,
    ) -> Entry:
        end = before.position.offset if before else 0
        if not marker:
            self._values += 1
            end += 1
        position = Position(epoch, end)
        if position in self.at:
            raise Broken(f"two logs hold something else at {position}")
        if before is not None and position <= before.position:
            raise Broken(f"{position} after {before}")
        entry = Entry(before, position, None if marker else self._values, voters)
        self.at[position] = entry
        return entry

    def forget(self, entry: Entry) -> None:
        """It is lost, and nobody else ever had it: as if it had never been."""
        if not entry.told and self.at[entry.position] is entry:
            del self.at[entry.position]


class MemoryLog:
    """What raft/ calls a log; `entries[:durable]` survives everything but a wipe."""

    def __init__(self, tree: Tree, *, flush_os: bool = False) -> None:
        self.tree = tree
        self.flush_os = flush_os
        self.entries: list[Entry] = []
        self.records: list[Entry] = []
        """The entries that take an offset, at their offset."""
        self.durable = 0
        self.start_offset = 0
        self.truncations = 0
        self.kept = 0
        """The owner's high watermark, below which nothing may go."""

    @property
    def position(self) -> Position:
        return self.entries[-1].position if self.entries else START

    @property
    def durable_position(self) -> Position:
        if self.flush_os:
            return self.position
        return self.entries[self.durable - 1].position if self.durable else START

    @property
    def voters(self) -> tuple[int, Voters] | None:
        return self.entries[-1].config if self.entries else None

    def end_of_epoch(self, epoch: int) -> Position:
        known, end = -1, -1
        epochs = self.entries[-1].epochs if self.entries else ()
        for index, (candidate, _) in enumerate(epochs):
            if candidate > epoch:
                break
            following = epochs[index + 1][1] if index + 1 < len(epochs) else self.position.offset
            if following >= self.start_offset:
                known, end = candidate, following
        return Position(known, end)

    def append(self, entry: Entry) -> None:
        if entry.before is not (self.entries[-1] if self.entries else None):
            raise Broken(f"{entry} appended to {self.entries[-1:]}, but follows {entry.before}")
        self.entries.append(entry)
        if entry.takes_offset:
            self.records.append(entry)

    def grow(self, epoch: int, *, marker: bool = False, voters: Voters | None = None) -> None:
        last = self.entries[-1] if self.entries else None
        self.append(self.tree.grow(last, epoch, marker=marker, voters=voters))

    def append_marker(self, epoch: int) -> None:
        self.grow(epoch, marker=True)

    def append_voters(self, voters: Voters, epoch: int) -> None:
        self.grow(epoch, voters=voters)

    def truncate(self, position: Position) -> None:
        if position.offset < max(self.kept, self.start_offset):
            raise Broken(f"cut to {position}, but what is below {self.kept} is committed")
        while self.position.offset > position.offset or self.position.epoch > position.epoch:
            self._drop()
        self.durable = min(self.durable, len(self.entries))
        self.truncations += 1

    def _drop(self) -> Entry:
        entry = self.entries.pop()
        if entry.takes_offset:
            self.records.pop()
        return entry

    def after(self, position: Position, limit: int) -> list[Entry]:
        first = self.tree.at[position].depth + 1 if position != START else 0
        return self.entries[first : first + limit]

    def marker(self, epoch: int) -> Entry:
        start = next(start for known, start in self.entries[-1].epochs if known == epoch)
        return self.tree.at[Position(epoch, start)]

    def holds(self, entry: Entry) -> bool:
        """Whether it is there for good."""
        end = len(self.entries) if self.flush_os else self.durable
        return entry.depth < end and self.entries[entry.depth] is entry

    def snapshot(self) -> list[Entry]:
        """What a log that begins at this one's start has to know."""
        return [it for it in self.entries if it.position.offset <= self.start_offset]

    def reset(self, snapshot: list[Entry]) -> None:
        self.entries = list(snapshot)
        self.records = [it for it in snapshot if it.takes_offset]
        self.start_offset = len(self.records)
        self.durable = len(snapshot)
        self.truncations += 1

    def copy(self) -> MemoryLog:
        twin = MemoryLog(self.tree, flush_os=self.flush_os)
        twin.entries, twin.records = list(self.entries), list(self.records)
        twin.durable, twin.start_offset = self.durable, self.start_offset
        return twin

    def lose_power(self, rng: Random) -> None:
        """Some of what was not synced is gone."""
        keep = rng.randint(self.durable, len(self.entries))
        while len(self.entries) > keep and self.position.offset > self.start_offset:
            self.tree.forget(self._drop())
        self.durable = len(self.entries)
