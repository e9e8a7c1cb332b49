"""The records of `__consumer_offsets` for positions and for groups of the classic protocol."""

from sapwood.coordinator.stored import Format
from sapwood.wire.private.words import Message, binary, int32, int64, string, tagged, uuid

OFFSET_KEY, GROUP_KEY = 1, 2
"""The version of a key is the kind of its record."""


class OffsetCommitKey(Message):
    __flexible__ = False
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message):
    offset: int = int64()
    leader_epoch: int = int32()
    metadata: str = string()
    commit_timestamp: int = int64()
    topic_id: bytes = tagged(0, uuid(None))


class GroupMetadataKey(Message):
    __flexible__ = False
    group: str = string()


class MemberMetadata(Message):
    __flexible__ = False
    member_id: str = string()
    group_instance_id: str | None = string()
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32()
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


class GroupMetadataValue(Message):
    __flexible__ = False
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string()
    leader: str | None = string()
    current_state_timestamp: int = int64()
    members: tuple[MemberMetadata, ...]


offset_key = Format(OffsetCommitKey, OFFSET_KEY)
offset_value = Format(OffsetCommitValue, 4)
group_key = Format(GroupMetadataKey, GROUP_KEY)
group_value = Format(GroupMetadataValue, 3)
