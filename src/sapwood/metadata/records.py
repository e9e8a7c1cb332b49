"""The records of the metadata log, as they are stored.

A stored record is one format byte, then a MessagePack map whose `kind` says which record it
is. Maps, not arrays: a newer release may add a field with a default and an older one ignores it.
"""

from collections.abc import Sequence

import msgspec

FORMAT = 1


class UnreadableMetadata(Exception):
    """The metadata log holds a record that this release cannot understand."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    pass


class ClusterCreated(_Record, frozen=True, kw_only=True):
    cluster_id: str


class NodeRegistered(_Record, frozen=True, kw_only=True):
    node_id: int
    listeners: dict[str, tuple[str, int]]
    """Listener name → the address that clients are told."""
    rack: str | None = None


class TopicCreated(_Record, frozen=True, kw_only=True):
    name: str
    topic_id: bytes
    replication_factor: int
    """The target: a cluster that grows raises its topics towards it."""
    partitions: list[list[int]]
    """Target replicas of each partition, the preferred leader first."""
    configs: dict[str, str] = {}


class PartitionsAdded(_Record, frozen=True, kw_only=True):
    topic_id: bytes
    partitions: list[list[int]]


class TopicDeleted(_Record, frozen=True, kw_only=True):
    topic_id: bytes


class ConfigChanged(_Record, frozen=True, kw_only=True):
    resource_type: int
    resource_name: str
    values: dict[str, str | None]
    """None takes the override away."""


class ProducerIdsReserved(_Record, frozen=True, kw_only=True):
    next_id: int
    """Ids below it may be in use; none at or above it was ever given out."""


Record = (
    ClusterCreated
    | NodeRegistered
    | TopicCreated
    | PartitionsAdded
    | TopicDeleted
    | ConfigChanged
    | ProducerIdsReserved
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return bytes((FORMAT,)) + _encoder.encode(record)


def decode(data: bytes) -> Record:
    if not data or data[0] != FORMAT:
        raise UnreadableMetadata(
            f"metadata record format {data[0] if data else 'missing'}, this release reads {FORMAT}"
        )
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise UnreadableMetadata(f"metadata record: {error}") from error


def encode_all(records: Sequence[Record]) -> list[bytes]:
    return [encode(record) for record in records]
