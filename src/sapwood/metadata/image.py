"""The cluster as the metadata log has it so far."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sapwood.metadata import records as r
from sapwood.metadata.edges import Edges

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: bytes
    replication_factor: int
    """The target: it may be above what the cluster has nodes for."""
    partitions: list[list[int]]
    """Target replicas by partition index, the preferred leader first."""
    voters: list[list[tuple[int, int]]]
    """The voters, (node, incarnation), that each partition began with."""
    pinned: set[int]
    """Partitions that an operator placed by hand: they are not moved for balance."""


@dataclass(slots=True)
class Node:
    node_id: int
    incarnation: int
    listeners: dict[str, tuple[str, int]]
    rack: str | None = None
    version: str = ""
    alive: bool = True
    draining: bool = False


class Client(NamedTuple):
    """A producer or consumer that is known by name; it uses a topic, or one partition of it."""

    name: str
    topic: str
    partition: int = -1


@dataclass(slots=True)
class Image:
    """Read by everybody, changed by `apply` alone."""

    cluster_id: str | None = None
    nodes: dict[int, Node] = field(default_factory=dict)
    removed_nodes: dict[int, int] = field(default_factory=dict)
    """Incarnation by id. A node that was removed doesn't come back by being started."""
    topics: dict[str, Topic] = field(default_factory=dict)
    topics_by_id: dict[bytes, Topic] = field(default_factory=dict)
    deleted_topics: set[bytes] = field(default_factory=set)
    """Topics that the log says are gone: only their files may be removed."""
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    producers: dict[Client, None] = field(default_factory=dict)
    consumers: dict[Client, None] = field(default_factory=dict)
    edges: Edges = field(default_factory=Edges)

    def overrides(self, resource_type: int, resource_name: str) -> dict[str, str]:
        return self.configs.get((resource_type, resource_name), {})

    def eligible(self) -> list[Node]:
        """The nodes that may be given replicas, by id."""
        return [node for _, node in sorted(self.nodes.items()) if node.alive and not node.draining]

    def incarnations(self, replicas: list[int]) -> list[tuple[int, int]]:
        """These nodes as voters, the way they are registered now."""
        return [
            (node, self.nodes[node].incarnation if node in self.nodes else 0) for node in replicas
        ]

    def apply(self, record: r.Record) -> None:
        match record:
            case r.ClusterCreated():
                self.cluster_id = record.cluster_id
            case r.NodeRegistered() | r.NodeChanged() | r.NodeRemoved():
                self._apply_to_nodes(record)
            case r.TopicCreated():
                topic = Topic(
                    record.name, record.topic_id, record.replication_factor, [], [], set()
                )
                self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic
                self._add_partitions(topic, record)
                if record.configs:
                    self.configs[TOPIC_RESOURCE, topic.name] = dict(record.configs)
            case r.PartitionsAdded():
                self._add_partitions(self.topics_by_id[record.topic_id], record)
            case r.PartitionReassigned():
                topic = self.topics_by_id[record.topic_id]
                topic.partitions[record.partition] = list(record.replicas)
                topic.pinned.discard(record.partition)
                if record.pinned:
                    topic.pinned.add(record.partition)
            case r.TopicDeleted():
                self._delete_topic(record.topic_id)
            case r.ConfigChanged():
                self._change_configs(record)
            case r.ProducerIdsReserved():
                self.next_producer_id = record.next_id
            case r.ProducerRegistered():
                self.producers[_client(record)] = None
            case r.ProducerRemoved():
                self.producers.pop(_client(record), None)
            case r.ConsumerRegistered():
                self.consumers[_client(record)] = None
            case r.ConsumerRemoved():
                self.consumers.pop(_client(record), None)
            case r.EdgeRegistered() | r.EdgeConfirmed() | r.EdgeDetached() | r.EdgeRemoved():
                self.edges.apply(record)

    def records(self) -> Iterator[r.Record]:
        """Records that, applied to an empty image, give this one."""
        if self.cluster_id is not None:
            yield r.ClusterCreated(cluster_id=self.cluster_id)
        for node_id, incarnation in self.removed_nodes.items():
            yield r.NodeRemoved(node_id=node_id, incarnation=incarnation)
        for node in self.nodes.values():
            yield r.NodeRegistered(
                node_id=node.node_id,
                incarnation=node.incarnation,
                listeners=dict(node.listeners),
                rack=node.rack,
                version=node.version,
            )
            if node.draining or not node.alive:
                yield r.NodeChanged(node_id=node.node_id, alive=node.alive, draining=node.draining)
        for topic_id in sorted(self.deleted_topics):
            yield r.TopicDeleted(topic_id=topic_id)
        for topic in self.topics.values():
            yield r.TopicCreated(
                name=topic.name,
                topic_id=topic.topic_id,
                replication_factor=topic.replication_factor,
                partitions=[list(replicas) for replicas in topic.partitions],
                voters=[list(voters) for voters in topic.voters],
                pinned=sorted(topic.pinned),
            )
        for (resource_type, resource_name), values in self.configs.items():
            yield r.ConfigChanged(
                resource_type=resource_type, resource_name=resource_name, values=dict(values)
            )
        if self.next_producer_id:
            yield r.ProducerIdsReserved(next_id=self.next_producer_id)
        for name, topic_name, partition in self.producers:
            yield r.ProducerRegistered(name=name, topic=topic_name, partition=partition)
        for name, topic_name, partition in self.consumers:
            yield r.ConsumerRegistered(name=name, topic=topic_name, partition=partition)
        yield from self.edges.records()

    def _apply_to_nodes(self, record: r.NodeRegistered | r.NodeChanged | r.NodeRemoved) -> None:
        known = self.nodes.get(record.node_id)
        match record:
            case r.NodeRegistered():
                self.removed_nodes.pop(record.node_id, None)
                self.nodes[record.node_id] = Node(
                    record.node_id,
                    record.incarnation,
                    dict(record.listeners),
                    record.rack,
                    record.version,
                    # A restart doesn't take back what an operator wished.
                    draining=known is not None and known.draining,
                )
            case r.NodeChanged():
                if known is not None:
                    known.alive = known.alive if record.alive is None else record.alive
                    known.draining = known.draining if record.draining is None else record.draining
            case r.NodeRemoved():
                self.nodes.pop(record.node_id, None)
                self.removed_nodes[record.node_id] = record.incarnation
                self.configs.pop((BROKER_RESOURCE, str(record.node_id)), None)

    def _add_partitions(self, topic: Topic, record: r.TopicCreated | r.PartitionsAdded) -> None:
        topic.partitions.extend(list(replicas) for replicas in record.partitions)
        # Logs of the release that knew one node only have no voters in them.
        topic.voters.extend(
            list(voters) for voters in record.voters or map(self.incarnations, record.partitions)
        )
        topic.pinned.update(record.pinned)

    def _delete_topic(self, topic_id: bytes) -> None:
        self.deleted_topics.add(topic_id)
        topic = self.topics_by_id.pop(topic_id, None)
        if topic is None:  # a snapshot only says that it is gone
            return
        del self.topics[topic.name]
        self.configs.pop((TOPIC_RESOURCE, topic.name), None)
        for registered in (self.producers, self.consumers):
            for one in [one for one in registered if one.topic == topic.name]:
                del registered[one]

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


def _client(record: r.Registration) -> Client:
    return Client(record.name, record.topic, record.partition)
