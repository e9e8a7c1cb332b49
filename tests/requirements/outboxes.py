"""An edge with an outbox below a cluster, and what is asked of both."""

from __future__ import annotations

from typing import Any

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.config import READ_COMMITTED
from sapwood.node.asking import NodeConnection
from sapwood.wire.records import encode_batch
from tests.faults.raw import Wire, produce
from tests.helpers import eventually, port_of

QUEUED = "[RESULT] QUEUED"
BACK_S = 60


def read(cluster: sapwood.Cluster, topic: str, partition: int = 0) -> list[str]:
    """All that is committed, asked of the core."""
    with KafkaClient(cluster.bootstrap, isolation_level=READ_COMMITTED) as client:
        found = client.consume({(topic, partition): 0}, stop_at="end")
        return [(it.value or b"").decode() for it in found]


def outbox_of(cluster: sapwood.Cluster, edge: int = 0) -> Any:
    with NodeConnection(cluster.edge_address(edge)) as connection:
        return connection.outbox()


def is_empty(cluster: sapwood.Cluster, edge: int = 0) -> bool:
    found = outbox_of(cluster, edge)
    return not found.is_cut_off and not found.partitions


def cut_off(cluster: sapwood.Cluster, edge: int = 0) -> None:
    """And until the edge has noticed."""
    cluster.isolate_edge(edge)
    eventually(lambda: outbox_of(cluster, edge).is_cut_off, BACK_S)


def join_again(cluster: sapwood.Cluster, edge: int = 0) -> None:
    """And until everything is delivered."""
    cluster.heal()
    eventually(lambda: is_empty(cluster, edge), BACK_S)


def put(cluster: sapwood.Cluster, topic: str, value: bytes, acks: int = 1) -> int:
    """The error code of one record, asked of the edge itself, without a client that tries again."""
    batch = bytes(encode_batch([(0, None, value, ())]))
    with Wire(port_of(cluster.edge_address())) as wire:
        return produce(wire, topic, batch, acks=acks)
