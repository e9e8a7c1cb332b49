"""What a leader knows of a replica that fetches from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sapwood.raft.words import START, Position

LONGEST_SILENCE_MS = 10**13
"""Before any time that a clock shows."""


class Contact(Protocol):
    """A link to another node, shared by all groups that use it."""

    @property
    def heard_at(self) -> float:
        """When the node is known to have listened, -inf once the link is lost.

        That is when the newest answer was sent that a request of the node shows to have arrived.
        A request may have lain in a socket while this process was stopped: when it was read, or
        even sent, says nothing about whom the node follows now.
        """

    @property
    def promised(self) -> int:
        """A time that the node's clock had passed for good while it followed as it does now."""


@dataclass(slots=True, frozen=True)
class LastWord:
    """A contact that is not heard of again."""

    heard_at: float
    promised: int = -1


@dataclass(slots=True)
class Progress:
    contact: Contact
    position: Position = START
    durable: Position = START
    high_watermark: int = 0
    """How much the replica knows to be committed."""
    level_at: float = float("-inf")
    """When it is known to have held all that was committed just then."""
    _goal: int = -1
    _goal_at: float = float("-inf")

    def reached(self, committed: int, now: float) -> None:
        """Note how it keeps up.

        Under load it may never hold all that is committed by now, only what was a moment ago:
        what is committed at one fetch is the goal that a later one has to reach.
        """
        held = self.durable.offset
        if held >= self._goal:
            self.level_at = now if held >= committed else self._goal_at
            self._goal, self._goal_at = committed, now

    def silent_ms(self, now: float) -> int:
        """Since it was heard of, which a contact that is lost never was."""
        return int(min(max(now - self.contact.heard_at, 0.0) * 1000, LONGEST_SILENCE_MS))

    def keeps_up(self, committed: int, since: float) -> bool:
        """Whether its node is heard of, and it holds all that was committed until then."""
        if self.contact.heard_at <= since:
            return False
        return self.durable.offset >= committed or self.level_at > since
