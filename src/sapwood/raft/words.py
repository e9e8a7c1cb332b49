"""The words of consensus: who votes, where a log ends, what is asked, answered and ordered."""

from __future__ import annotations

from typing import NamedTuple, Protocol

NOBODY = -1
"""The node id of nobody."""


class RaftViolation(Exception):
    """Something happened that consensus rules out: this replica must not go on."""


class Voter(NamedTuple):
    """A replica as it votes: one that has forgotten its log comes back as another one."""

    node: int
    incarnation: int


Voters = tuple[Voter, ...]


class Position(NamedTuple):
    """How far a log reaches: its last epoch, then its end. The larger one has seen more."""

    epoch: int
    offset: int


START = Position(-1, 0)


class HardState(NamedTuple):
    """What must be durable before anybody is told."""

    term: int = 0
    vote: Voter | None = None


class RaftLog(Protocol):
    """The group's log. Changes are in force at once and durable after the next sync."""

    @property
    def position(self) -> Position: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def voters(self) -> tuple[int, Voters] | None:
        """The newest record of voters, and its offset."""

    def end_of_epoch(self, epoch: int) -> Position:
        """The largest epoch at or below this one, and where it ends; (-1, -1) if none is known."""

    def append_marker(self, epoch: int) -> None: ...

    def append_voters(self, voters: Voters, epoch: int) -> None: ...

    def truncate(self, position: Position) -> None: ...


# -- messages


class Vote(NamedTuple):
    term: int
    candidate: Voter
    position: Position
    pre: bool
    """Only asking whether one would win: whoever is asked promises nothing."""


class VoteAnswer(NamedTuple):
    term: int
    voter: Voter
    granted: bool
    pre: bool
    leader: int = NOBODY
    """Whom the asked one follows, if it follows anybody."""


# -- a leader's verdict on a replica that fetches


class InStep(NamedTuple):
    """What the replica has is what the leader has: go on from its position."""


class Diverging(NamedTuple):
    """The replica has what the leader hasn't: it must cut back to where this epoch ends."""

    epoch: int
    offset: int


class Behind(NamedTuple):
    """What the replica needs next is gone here: it must begin anew from a snapshot."""


class NotLeader(NamedTuple):
    epoch: int
    leader: int


Verdict = InStep | Diverging | Behind | NotLeader


# -- effects


class Save(NamedTuple):
    """Make this durable before anybody is asked or answered about votes, or hears who leads."""

    state: HardState


class Ask(NamedTuple):
    vote: Vote
    nodes: tuple[int, ...]


class Sync(NamedTuple):
    """Something was appended: sync, then tell `synced`."""


class Changed(NamedTuple):
    """Another role, epoch or leader."""


class Committed(NamedTuple):
    offset: int


class HandOver(NamedTuple):
    """Tell this node to stand for election at once."""

    node: int
    epoch: int


Effect = Save | Ask | Sync | Changed | Committed | HandOver
