"""What `__consumer_offsets` holds of groups of the newer protocol, in Kafka's formats.

A key begins with a number that says which record it is, a value with the version of its format.
Topics that match a regular expression aren't stored (Kafka's record 16): they are looked up anew.
"""

import enum
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from sapwood.coordinator.assignors import Assignment
from sapwood.coordinator.consumer_member import Current, MemberMetadata, MemberState
from sapwood.coordinator.stored import Format, version_of
from sapwood.wire.codec import Struct
from sapwood.wire.private.words import Message, int8, int32, int64, string, tagged, uuid


class Kind(enum.IntEnum):
    GROUP_METADATA = 3
    MEMBER_METADATA = 5
    TARGET_METADATA = 6
    TARGET_MEMBER = 7
    CURRENT_ASSIGNMENT = 8


class GroupMetadata(NamedTuple):
    group_epoch: int
    metadata_hash: int
    """Of the topics that the members are subscribed to: another one asks for another target."""


Value = GroupMetadata | MemberMetadata | int | Assignment | Current
"""By the record's number; the epoch of the target is an `int`."""


class ConsumerRecord(NamedTuple):
    kind: Kind
    group_id: str
    member_id: str
    """Empty where the record is about the group."""
    value: Value | None
    """None takes the record away."""


class _GroupKey(Message):
    __flexible__ = False
    group_id: str = string()


class _MemberKey(Message):
    __flexible__ = False
    group_id: str = string()
    member_id: str = string()


class _GroupMetadata(Message):
    epoch: int = int32()
    metadata_hash: int = tagged(0, int64(0))


class _MemberMetadata(Message):
    instance_id: str | None = string(None)
    rack_id: str | None = string(None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: tuple[str, ...] = string()
    subscribed_topic_regex: str | None = string(None)
    rebalance_timeout_ms: int = int32(-1)
    server_assignor: str | None = string(None)


class _TargetMetadata(Message):
    assignment_epoch: int = int32()


class _TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: tuple[int, ...] = int32()


class _TargetMember(Message):
    topic_partitions: tuple[_TopicPartitions, ...]


class _CurrentAssignment(Message):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: tuple[_TopicPartitions, ...]
    partitions_pending_revocation: tuple[_TopicPartitions, ...]


def _formats(key: type[Message], kind: Kind, value: type[Message]) -> tuple[Format, Format]:
    return Format(key, kind), Format(value, 0)


_FORMATS = {
    Kind.GROUP_METADATA: _formats(_GroupKey, Kind.GROUP_METADATA, _GroupMetadata),
    Kind.MEMBER_METADATA: _formats(_MemberKey, Kind.MEMBER_METADATA, _MemberMetadata),
    Kind.TARGET_METADATA: _formats(_GroupKey, Kind.TARGET_METADATA, _TargetMetadata),
    Kind.TARGET_MEMBER: _formats(_MemberKey, Kind.TARGET_MEMBER, _TargetMember),
    Kind.CURRENT_ASSIGNMENT: _formats(_MemberKey, Kind.CURRENT_ASSIGNMENT, _CurrentAssignment),
}


def encode(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    key_format, value_format = _FORMATS[record.kind]
    key = key_format.encode(group_id=record.group_id, member_id=record.member_id)
    if record.value is None:
        return key, None
    return key, value_format.encode(**_spread(record.value))


def decode(key: bytes, value: bytes | None) -> ConsumerRecord:
    """MalformedMessage if it can't be understood."""
    kind = Kind(version_of(key))
    key_format, value_format = _FORMATS[kind]
    named = key_format.decode(key)
    gathered = None if value is None else _gathered(kind, value_format.decode(value))
    return ConsumerRecord(kind, named.group_id, getattr(named, "member_id", ""), gathered)


def topic_partitions(assignment: Iterable[tuple[bytes, int]]) -> list[Struct]:
    """By topic, as messages and records have them."""
    by_topic: defaultdict[bytes, list[int]] = defaultdict(list)
    for topic_id, index in sorted(assignment):
        by_topic[topic_id].append(index)
    return [Struct(topic_id=topic_id, partitions=made) for topic_id, made in by_topic.items()]


def assignment_of(topics: Iterable[Struct]) -> Assignment:
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)


def _spread(value: Value) -> dict[str, object]:
    match value:
        case GroupMetadata():
            return {"epoch": value.group_epoch, "metadata_hash": value.metadata_hash}
        case MemberMetadata():
            return value._asdict()
        case Current():
            return {
                "member_epoch": value.member_epoch,
                "previous_member_epoch": value.previous_member_epoch,
                "state": int(value.state),
                "assigned_partitions": topic_partitions(value.assigned),
                "partitions_pending_revocation": topic_partitions(value.pending_revocation),
            }
        case int():
            return {"assignment_epoch": value}
        case _:
            return {"topic_partitions": topic_partitions(value)}


def _gathered(kind: Kind, stored: Struct) -> Value:
    match kind:
        case Kind.GROUP_METADATA:
            return GroupMetadata(stored.epoch, stored.metadata_hash)
        case Kind.MEMBER_METADATA:
            stored.subscribed_topic_names = tuple(stored.subscribed_topic_names)
            return MemberMetadata(**vars(stored))
        case Kind.TARGET_METADATA:
            return int(stored.assignment_epoch)
        case Kind.TARGET_MEMBER:
            return assignment_of(stored.topic_partitions)
        case Kind.CURRENT_ASSIGNMENT:
            return Current(
                stored.member_epoch,
                stored.previous_member_epoch,
                MemberState(stored.state),
                assignment_of(stored.assigned_partitions),
                assignment_of(stored.partitions_pending_revocation),
            )
