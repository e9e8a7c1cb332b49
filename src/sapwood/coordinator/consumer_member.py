"""A member of a group of the newer protocol: how it gets from what it has to what it should have.

    STABLE ─────────────▶ UNREVOKED   it has to give something up first, and keeps its epoch
      ▲  ╲                    │       until it says that it has
      │   ▼                   ▼
      └── UNRELEASED ◀────────┘       it has the new epoch, and gets the rest when its owners let go

A partition is free when no member has it assigned or still to give up. So nobody ever has what
somebody else may be reading.
"""

import enum
from collections.abc import Callable
from typing import NamedTuple

from sapwood.coordinator.assignors import NOTHING, Assignment, TopicPartition

JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""A static member that will be back: its partitions wait for it."""


class MemberState(enum.IntEnum):
    """Kafka's, by the numbers that its records have for them."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class MemberMetadata(NamedTuple):
    """What a member tells of itself, and where it calls from."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None

    def subscribes_like(self, other: "MemberMetadata") -> bool:
        return (
            self.subscribed_topic_names == other.subscribed_topic_names
            and self.subscribed_topic_regex == other.subscribed_topic_regex
            and self.server_assignor == other.server_assignor
        )


class Current(NamedTuple):
    """Where a member stands."""

    member_epoch: int = JOINING
    previous_member_epoch: int = JOINING
    """The last answer with a new epoch may have been lost; then it comes with this one."""
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    pending_revocation: Assignment = NOTHING

    @property
    def held(self) -> Assignment:
        """What nobody else may have."""
        return self.assigned | self.pending_revocation


def reconciled(
    current: Current,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[TopicPartition], bool],
) -> Current:
    """Where a member stands after a heartbeat; `owned` is what it says it has, if it says so."""
    if current.state is MemberState.STABLE and current.member_epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and _holds(owned, current.pending_revocation):
        return current
    kept = current.assigned & target
    given_up = current.assigned - target
    if _holds(owned, given_up):
        return current._replace(
            state=MemberState.UNREVOKED, assigned=kept, pending_revocation=given_up
        )
    missing = target - kept
    free = frozenset(filter(is_free, missing))
    previous = current.previous_member_epoch
    if current.member_epoch != target_epoch:
        previous = current.member_epoch
    return Current(
        target_epoch,
        previous,
        MemberState.STABLE if free == missing else MemberState.UNRELEASED,
        kept | free,
    )


def _holds(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether a member may still have some of them: silence means that nothing has changed."""
    return bool(partitions if owned is None else owned & partitions)
