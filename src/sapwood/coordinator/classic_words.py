"""The states of a classic group, and what its members are told."""

import enum
from collections.abc import Iterable, Mapping

from sapwood.coordinator.classic_member import Member
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode


class State(enum.Enum):
    """The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


MAY_FOLLOW: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING}),
    State.PREPARING: frozenset({State.EMPTY, State.COMPLETING}),
    State.COMPLETING: frozenset({State.PREPARING, State.STABLE}),
    State.STABLE: frozenset({State.PREPARING}),
}
"""Dead is a group that isn't there."""


class IllegalTransition(Exception):
    """A group went from one state to another that can't follow it."""


def joined(
    member: Member,
    generation: int,
    protocol_type: str,
    protocol: str | None,
    leader: str,
    listed: Iterable[Member],
    *,
    skip_assignment: bool = False,
) -> Struct:
    """Its leader is told of all members, the others of nobody."""
    return Struct(
        error_code=0,
        generation_id=generation,
        protocol_type=protocol_type,
        protocol_name=protocol,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=[
            Struct(
                member_id=it.member_id,
                group_instance_id=it.instance_id,
                metadata=it.metadata(protocol),
            )
            for it in listed
        ],
    )


def refused_join(code: ErrorCode, member_id: str = "") -> Struct:
    return Struct(
        error_code=int(code),
        generation_id=-1,
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=[],
    )


def synced(protocol_type: str, protocol: str | None, assignment: bytes) -> Struct:
    return Struct(
        error_code=0, protocol_type=protocol_type, protocol_name=protocol, assignment=assignment
    )


def refused_sync(code: ErrorCode) -> Struct:
    return Struct(error_code=int(code), protocol_type=None, protocol_name=None, assignment=b"")
