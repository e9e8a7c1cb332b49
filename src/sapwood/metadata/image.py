"""The cluster as the metadata log has it so far."""

from dataclasses import dataclass, field

from sapwood.metadata import records as r

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: bytes
    replication_factor: int
    partitions: list[list[int]]
    """Target replicas by partition index."""


@dataclass(slots=True)
class Node:
    node_id: int
    listeners: dict[str, tuple[str, int]]
    rack: str | None = None


@dataclass(slots=True)
class Image:
    """Read by everybody, changed by `apply` alone."""

    cluster_id: str | None = None
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    topics_by_id: dict[bytes, Topic] = field(default_factory=dict)
    deleted_topics: set[bytes] = field(default_factory=set)
    """Topics that the log says are gone: only their files may be removed."""
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0

    def overrides(self, resource_type: int, resource_name: str) -> dict[str, str]:
        return self.configs.get((resource_type, resource_name), {})

    def apply(self, record: r.Record) -> None:
        match record:
            case r.ClusterCreated():
                self.cluster_id = record.cluster_id
            case r.NodeRegistered():
                self.nodes[record.node_id] = Node(record.node_id, record.listeners, record.rack)
            case r.TopicCreated():
                topic = Topic(
                    record.name,
                    record.topic_id,
                    record.replication_factor,
                    [list(replicas) for replicas in record.partitions],
                )
                self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic
                if record.configs:
                    self.configs[TOPIC_RESOURCE, topic.name] = dict(record.configs)
            case r.PartitionsAdded():
                partitions = self.topics_by_id[record.topic_id].partitions
                partitions.extend(list(replicas) for replicas in record.partitions)
            case r.TopicDeleted():
                topic = self.topics_by_id.pop(record.topic_id)
                del self.topics[topic.name]
                self.configs.pop((TOPIC_RESOURCE, topic.name), None)
                self.deleted_topics.add(record.topic_id)
            case r.ConfigChanged():
                self._change_configs(record)
            case r.ProducerIdsReserved():
                self.next_producer_id = record.next_id

    def _change_configs(self, record: r.ConfigChanged) -> None:
        key = (record.resource_type, record.resource_name)
        values = self.configs.setdefault(key, {})
        for name, value in record.values.items():
            if value is None:
                values.pop(name, None)
            else:
                values[name] = value
        if not values:
            del self.configs[key]
