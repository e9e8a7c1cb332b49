"""What a replica can be in its group, and what can follow what.

    Unattached ──▶ Prospective ──▶ Candidate ──▶ Elected ──▶ Leader
        ▲  ▲            │              │            │           │
        │  └── Follower ◀──────────────┴────────────┴───────────┘

Whoever learns of a higher term is Unattached in it until it knows the leader. Prospective asks
whether it would win, and only then disturbs others as a Candidate. Elected leads and appends, but
doesn't know yet what its predecessors had committed; Leader does: its own marker is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sapwood.raft.progress import Progress
from sapwood.raft.words import Position, Voter

NEVER = float("inf")


@dataclass(slots=True)
class Unattached:
    """Knows of no leader; stands for election at the deadline if it has a vote."""

    deadline: float


@dataclass(slots=True)
class Follower:
    leader: int


@dataclass(slots=True)
class Prospective:
    deadline: float
    granted: set[Voter] = field(default_factory=set)


@dataclass(slots=True)
class Candidate:
    deadline: float
    granted: set[Voter] = field(default_factory=set)


@dataclass(slots=True)
class Elected:
    since: float
    durable: dict[Voter, Position] = field(default_factory=dict)
    progress: dict[Voter, Progress] = field(default_factory=dict)
    successor: int | None = None
    """To whom leadership is being handed; nothing is appended meanwhile."""
    successor_deadline: float = NEVER

    def hears(self, replica: Voter, since: float) -> bool:
        progress = self.progress.get(replica)
        return progress is not None and progress.contact.heard_at > since


class Leader(Elected):
    """Elected, and the own marker is committed."""

    __slots__ = ()


Role = Unattached | Follower | Prospective | Candidate | Elected

TRANSITIONS: dict[type[Role], frozenset[type[Role]]] = {
    Unattached: frozenset({Unattached, Follower, Prospective, Elected}),
    Follower: frozenset({Unattached, Follower, Candidate, Elected}),
    Prospective: frozenset({Unattached, Follower, Prospective, Candidate}),
    Candidate: frozenset({Unattached, Follower, Prospective, Elected}),
    Elected: frozenset({Unattached, Follower, Leader}),
    Leader: frozenset({Unattached, Follower}),
}
"""Unattached and Follower lead to Elected only by an operator's unsafe recovery."""
