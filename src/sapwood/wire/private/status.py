"""What a node tells about itself and its replicas, to everybody."""

from sapwood.wire.private.replication import GroupVoter
from sapwood.wire.private.words import Message, boolean, float64, int16, int32, int64, string, uuid


class NodeStatusRequest(Message):
    pass


class NodeListener(Message):
    name: str = string()
    host: str = string()
    port: int = int32()


class NodeMetric(Message):
    name: str = string()
    value: float = float64()


class OfflinePartition(Message):
    topic: str = string()
    partition: int = int32()
    reason: str = string()


class KnownNode(Message):
    """A node of the cluster, as the one that is asked sees it."""

    node_id: int = int32()
    alive: bool = boolean()
    draining: bool = boolean()
    host: str = string()
    port: int = int32()
    rack: str | None = string(None)
    replicas: int = int32()
    leaders: int = int32()


class NodeStatusResponse(Message):
    error_code: int = int16(0)
    error_message: str | None = string(None)
    node_id: int = int32()
    kind: str = string()
    pid: int = int64()
    version: str = string()
    listeners: tuple[NodeListener, ...]
    metrics: tuple[NodeMetric, ...]
    offline_partitions: tuple[OfflinePartition, ...]
    cluster_id: str | None = string(None)
    controller: int = int32(-1)
    controller_epoch: int = int32(-1)
    nodes: tuple[KnownNode, ...] = ()
    under_replicated: int = int32(0)
    offline: int = int32(0)
    leaderless: int = int32(0)
    reassigning: int = int32(0)
    healthy: bool = boolean(False)


class DescribeReplicasRequest(Message):
    topics: tuple[str, ...] | None = string(None)


class DescribedFollower(Message):
    node: int = int32()
    incarnation: int = int64()
    log_end: int = int64()
    durable_end: int = int64()
    heard_ms: int = int64()


class DescribedReplica(Message):
    """One of the node's own replicas; followers are known to a leader only."""

    topic: str = string()
    topic_id: bytes = uuid()
    partition: int = int32()
    role: str = string()
    term: int = int32()
    leader: int = int32()
    epoch: int = int32()
    log_start: int = int64()
    log_end: int = int64()
    high_watermark: int = int64()
    voters: tuple[GroupVoter, ...]
    learners: tuple[int, ...] = int32()
    in_sync: tuple[int, ...] = int32()
    target: tuple[int, ...] = int32()
    offline_reason: str | None = string(None)
    followers: tuple[DescribedFollower, ...] = ()


class DescribeReplicasResponse(Message):
    groups: tuple[DescribedReplica, ...]
