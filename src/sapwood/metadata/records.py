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
    """A node is there, and alive. Once more: it came back, or something about it changed."""

    node_id: int
    incarnation: int = 0
    """Which of the data directories that ever bore this id; another one knows nothing."""
    listeners: dict[str, tuple[str, int]]
    """Listener name → the address that clients are told."""
    rack: str | None = None
    version: str = ""


class NodeChanged(_Record, frozen=True, kw_only=True):
    """None leaves a side of the node as it is."""

    node_id: int
    alive: bool | None = None
    draining: bool | None = None


class NodeRemoved(_Record, frozen=True, kw_only=True):
    """The id stays used: whoever wakes up with it later must not be taken for somebody else."""

    node_id: int
    incarnation: int = 0


class TopicCreated(_Record, frozen=True, kw_only=True):
    name: str
    topic_id: bytes
    replication_factor: int
    """The target: a cluster that grows raises its topics towards it."""
    partitions: list[list[int]]
    """Target replicas of each partition, the preferred leader first."""
    configs: dict[str, str] = {}
    voters: list[list[tuple[int, int]]] = []
    """The first voters of each partition, (node, incarnation); later ones are in its own log."""
    pinned: list[int] = []
    """The partitions that an operator placed by hand."""


class PartitionsAdded(_Record, frozen=True, kw_only=True):
    topic_id: bytes
    partitions: list[list[int]]
    voters: list[list[tuple[int, int]]] = []
    pinned: list[int] = []


class PartitionReassigned(_Record, frozen=True, kw_only=True):
    """New target replicas; the partition's leader gets there by itself, one voter at a time."""

    topic_id: bytes
    partition: int
    replicas: list[int]
    """The preferred leader first."""
    pinned: bool = False


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


class Registration(_Record, frozen=True, kw_only=True):
    """What the four records below say of a producer or consumer that is known by name."""

    name: str
    topic: str
    partition: int = -1
    """-1: any."""


class ProducerRegistered(Registration, frozen=True, kw_only=True):
    pass


class ProducerRemoved(Registration, frozen=True, kw_only=True):
    pass


class ConsumerRegistered(Registration, frozen=True, kw_only=True):
    pass


class ConsumerRemoved(Registration, frozen=True, kw_only=True):
    pass


class EdgeRecord(_Record, frozen=True, kw_only=True):
    """What the four records below say of an edge of the tree."""

    edge_id: int


class EdgeRegistered(EdgeRecord, frozen=True, kw_only=True):
    """It may hang from the father that it is offered; whatever father it had is none any more."""

    host: str
    port: int
    ports: dict[str, int] = {}
    wish: str = ""
    father: int = -1


class EdgeConfirmed(EdgeRecord, frozen=True, kw_only=True):
    """Its father has it, or another one than before."""

    host: str
    port: int
    father: int
    since: tuple[int, int] = (0, 0)
    healing_ms: int = 0
    """For how long it was without a father; 0 if it had none before."""


class EdgeDetached(EdgeRecord, frozen=True, kw_only=True):
    """The relation to its father has ended."""


class EdgeRemoved(EdgeRecord, frozen=True, kw_only=True):
    """Registered, and never confirmed."""


Record = (
    ClusterCreated
    | NodeRegistered
    | NodeChanged
    | NodeRemoved
    | TopicCreated
    | PartitionsAdded
    | PartitionReassigned
    | TopicDeleted
    | ConfigChanged
    | ProducerIdsReserved
    | ProducerRegistered
    | ProducerRemoved
    | ConsumerRegistered
    | ConsumerRemoved
    | EdgeRegistered
    | EdgeConfirmed
    | EdgeDetached
    | EdgeRemoved
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
