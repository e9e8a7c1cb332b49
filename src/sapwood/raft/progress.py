"""What a leader knows of a replica that fetches from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sapwood.raft.words import Position


class Contact(Protocol):
    """A link to another node, shared by all groups that use it."""

    @property
    def heard_at(self) -> float:
        """When the node was heard of last, -inf once the link is lost."""


@dataclass(slots=True)
class Progress:
    contact: Contact
    position: Position
    durable: Position
    high_watermark: int
    """How much the replica knows to be committed."""
