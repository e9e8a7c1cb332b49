"""The words of the tree: where a node is, how near to the core, what is asked and answered."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

LARGEST_BEACON = 2**62
"""Whoever asks for more is mistaken: at four a second it takes far longer than there are stars."""


class TreeViolation(Exception):
    """Something happened that the rules of the tree rule out."""


@dataclass(slots=True, frozen=True)
class Timing:
    """In seconds."""

    beat_s: float = 0.25
    """Between two beacons, and the longest that a child waits for an answer."""
    silence_s: float = 2.0
    """After this long without a word a neighbour counts as gone."""
    attempt_s: float = 0.5
    """What one that may become the parent has to answer."""
    supervisor_s: float = 1.0
    patience_s: float = 1.5
    """How long one stays with a parent that has no way up itself: most find one before."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0


class Place(NamedTuple):
    """A node and where it is; -1 if only the address is known."""

    node_id: int
    host: str
    port: int


class Advert(NamedTuple):
    """How near to the core a node is, and by which beacon it knows."""

    beacon: int
    depth: int
    """0 for core nodes."""

    def is_better_than(self, other: Advert) -> bool:
        return (self.beacon, -self.depth) > (other.beacon, -other.depth)


NOWHERE = Advert(-1, 0)
"""Worse than any other."""


class Since(NamedTuple):
    """Which of a node's attachments: the larger one came later."""

    incarnation: int
    """Of the process: it grows with every start."""
    attachment: int


class Claim(NamedTuple):
    """What a father says of one that hangs below it."""

    child: Place
    father: int
    since: Since
    healing_ms: int = 0
    """How long the child had been without a father before; 0 if it never had one."""
    load: int = 0
    """Its clients."""


class Attach(NamedTuple):
    """A child asks; the answer comes when there is news, or after a beat."""

    child: Place
    since: Since
    number: int
    """Of the request: they grow, and so do those of the answers that count."""
    renewing: bool
    """Whether this is a child already."""
    feasible: Advert
    """The best that the child ever told others: only a better parent can't be below it."""
    wanted: int
    """A beacon newer than this one would help somebody below."""
    seen: int = -1
    """The version of the standing that the child knows."""
    claims: tuple[Claim, ...] | None = ()
    """Of all that hang below the child; None: as before."""
    healing_ms: int = 0
    load: int = 0


class Standing(NamedTuple):
    """What a node tells its children about itself."""

    version: int
    advert: Advert | None
    """None: it has no way up at present."""
    ancestors: tuple[Place, ...]
    """Of its children: itself first, a core node last."""
    cores: tuple[Place, ...]
    siblings: tuple[Place, ...] = ()
    is_cut_off: bool = False
    """A core node that has been without a controller for so long that others may have one."""


class Refusal(enum.IntEnum):
    NO_WAY_UP = 1
    """It is an orphan itself."""
    NOT_BETTER = 2
    """It may be below the asker, for all that is known; a newer beacon will tell."""
    BELOW = 3
    """It is below the asker, or is the asker."""
    FULL = 4
    NOT_A_CHILD = 5
    """It doesn't know the asker as its child, or not any longer."""


class Attached(NamedTuple):
    number: int
    standing: Standing


class Refused(NamedTuple):
    number: int
    reason: Refusal


Answer = Attached | Refused


# -- effects


class Ask(NamedTuple):
    """Send this there; tell `answered`, or `lost` if the connection breaks or can't be made."""

    place: Place
    attach: Attach


class AskSupervisor(NamedTuple):
    """Ask at one of these for a father; tell `offered` what came of it."""

    number: int
    places: tuple[Place, ...]


class Part(NamedTuple):
    """Nothing more is wanted there: the connection of this attachment, or attempt, may end."""

    place: Place
    since: Since


class Reply(NamedTuple):
    """The answer to a request of a child's."""

    child: int
    since: Since
    answer: Answer


class Changed(NamedTuple):
    """Who hangs below, or how this node stands, is not what it was."""


Effect = Ask | AskSupervisor | Part | Reply | Changed
