"""Commands in, records out: who belongs to the cluster, nodes as well as its clients by name.

As in `controller`: nothing is changed, and `KafkaError` says what the asker is to see.
"""

from collections.abc import Callable, Mapping

from sapwood.metadata import records as r
from sapwood.metadata.controller import check_partition, find_topic
from sapwood.metadata.edges import FIRST_EDGE_ID
from sapwood.metadata.image import Client, Image, Node
from sapwood.wire.errors import ErrorCode, KafkaError

MAX_CLIENTS = 10_000
"""Registered producers, and as many consumers: every node has them all in memory."""
MAX_CLIENT_NAME = 249


def register_node(
    image: Image,
    node_id: int,
    incarnation: int,
    listeners: Mapping[str, tuple[str, int]],
    rack: str | None = None,
    version: str = "",
    *,
    is_alive: Callable[[int], bool],
) -> tuple[int, list[r.Record]]:
    """The node's id (-1 asks for one), and what there is to write down, if anything is.

    `is_alive` is the asker's own view of the nodes, fresher than the image's.
    """
    listeners = dict(listeners)
    if not -1 <= node_id < FIRST_EDGE_ID or not listeners:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"A node needs an id from 0 to {FIRST_EDGE_ID - 1}, or -1, and a listener",
        )
    if node_id == -1:
        node_id = _id_for(image, incarnation, listeners)
    present = image.nodes.get(node_id)
    if present is None and image.removed_nodes.get(node_id) == incarnation:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"node {node_id} was removed from the cluster: start it with an empty data directory",
        )
    if present is not None and present.incarnation != incarnation and is_alive(node_id):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"node {node_id} is alive with another data directory: give this one another id",
        )
    if present is not None:
        same = Node(node_id, incarnation, listeners, rack, version, True, present.draining)
        if present == same:
            return node_id, []
    record = r.NodeRegistered(
        node_id=node_id, incarnation=incarnation, listeners=listeners, rack=rack, version=version
    )
    return node_id, [record]


def _id_for(image: Image, incarnation: int, listeners: Mapping[str, tuple[str, int]]) -> int:
    for node in image.nodes.values():
        # It joined already, and asks again because the answer was lost.
        if node.incarnation == incarnation and node.listeners == listeners:
            return node.node_id
    return max((*image.nodes, *image.removed_nodes), default=-1) + 1


def change_node(
    image: Image, node_id: int, *, alive: bool | None = None, draining: bool | None = None
) -> list[r.Record]:
    node = _find_node(image, node_id)
    if alive == node.alive:
        alive = None
    if draining == node.draining:
        draining = None
    if alive is None and draining is None:
        return []
    return [r.NodeChanged(node_id=node_id, alive=alive, draining=draining)]


def remove_node(image: Image, node_id: int, *, votes: int = 0) -> list[r.Record]:
    """`votes`: the partitions that still have it among their voters, whatever their targets."""
    node = _find_node(image, node_id)
    if node.alive and not node.draining:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"node {node_id} is alive: drain it first")
    held = sum(
        node_id in replicas for topic in image.topics.values() for replicas in topic.partitions
    )
    if held or votes:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"node {node_id} still holds {max(held, votes)} replicas: drain it, and wait until "
            "they have moved",
        )
    return [r.NodeRemoved(node_id=node_id, incarnation=node.incarnation)]


def _find_node(image: Image, node_id: int) -> Node:
    node = image.nodes.get(node_id)
    if node is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"there is no node {node_id}; there are {sorted(image.nodes)}",
        )
    return node


def register_producer(image: Image, name: str, topic: str, partition: int = -1) -> list[r.Record]:
    client = _checked_client(image, name, topic, partition, image.producers)
    return [r.ProducerRegistered(**client._asdict())] if client not in image.producers else []


def register_consumer(image: Image, name: str, topic: str, partition: int = -1) -> list[r.Record]:
    client = _checked_client(image, name, topic, partition, image.consumers)
    return [r.ConsumerRegistered(**client._asdict())] if client not in image.consumers else []


def remove_producer(image: Image, name: str, topic: str, partition: int = -1) -> list[r.Record]:
    return [r.ProducerRemoved(**_known_client(image.producers, name, topic, partition)._asdict())]


def remove_consumer(image: Image, name: str, topic: str, partition: int = -1) -> list[r.Record]:
    return [r.ConsumerRemoved(**_known_client(image.consumers, name, topic, partition)._asdict())]


def _checked_client(
    image: Image, name: str, topic: str, partition: int, registered: Mapping[Client, None]
) -> Client:
    if not 1 <= len(name) <= MAX_CLIENT_NAME:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Name {name[:300]!r}: use 1 to {MAX_CLIENT_NAME} characters",
        )
    found = find_topic(image, topic)
    if partition != -1:
        check_partition(found, partition)
    client = Client(name, topic, partition)
    if client not in registered and len(registered) >= MAX_CLIENTS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{MAX_CLIENTS} are registered: remove some that are gone"
        )
    return client


def _known_client(
    registered: Mapping[Client, None], name: str, topic: str, partition: int
) -> Client:
    client = Client(name, topic, partition)
    if client not in registered:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND, f"{name[:300]!r} is not registered for {topic[:300]!r}"
        )
    return client
