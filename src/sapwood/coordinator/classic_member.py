"""A member of a group of the classic protocol, and what it asks for when it joins."""

import struct
from dataclasses import dataclass

from sapwood.wire.codec import Struct

_SUBSCRIPTION_HEAD = struct.Struct(">hi")
_SHORT = struct.Struct(">h")


@dataclass(slots=True, frozen=True)
class Join:
    """A JoinGroup request, whatever its version."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Assignors in the order of preference, and what this one is to know."""
    new_member_id: str
    """For whom has none yet."""
    requires_member_id: bool = True
    """Whether a first join only draws a member id, so that one that is repeated adds nobody."""
    may_skip_assignment: bool = True

    @property
    def size_bytes(self) -> int:
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """Never answered yet: it may be gone without anybody noticing, so even its wait ends."""
    deadline_ms: float = float("inf")
    joining: object = None
    """The token under which it waits for others to join."""
    syncing: object = None

    @property
    def is_kept_waiting(self) -> bool:
        """By this coordinator: then it can't be expected to be heard of."""
        return self.syncing is not None or (self.joining is not None and not self.is_new)

    def metadata(self, protocol: str | None) -> bytes:
        return next((it for name, it in self.protocols if name == protocol), b"")

    def describe(self, protocol: str | None) -> Struct:
        return Struct(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=self.metadata(protocol),
            member_assignment=self.assignment,
        )

    def stored(self, protocol: str | None) -> Struct:
        return Struct(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )


def from_stored(stored: Struct, protocol: str | None) -> Member:
    return Member(
        stored.member_id,
        stored.group_instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_timeout,
        stored.rebalance_timeout,
        ((protocol or "", bytes(stored.subscription)),),
        bytes(stored.assignment),
    )


def select_protocol(members: list[Member]) -> str:
    """The assignor that all know and most prefer; among equals the one of the first who voted."""
    common = set.intersection(*({name for name, _ in it.protocols} for it in members))
    votes: dict[str, int] = {}
    for member in members:
        choice = next(name for name, _ in member.protocols if name in common)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=lambda name: votes[name])


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """What a consumer told its assignor that it wants; None if that isn't a subscription."""
    try:
        _, count = _SUBSCRIPTION_HEAD.unpack_from(metadata)
        position = _SUBSCRIPTION_HEAD.size
        topics = set()
        for _ in range(count):
            (size,) = _SHORT.unpack_from(metadata, position)
            position += _SHORT.size
            if size < 0 or position + size > len(metadata):
                return None
            topics.add(metadata[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
