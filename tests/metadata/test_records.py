"""Stored records: what was written is read, and what can't be read is named."""

from typing import get_args

import pytest

from sapwood.metadata import records as r

EXAMPLES: list[r.Record] = [
    r.ClusterCreated(cluster_id="c"),
    r.NodeRegistered(
        node_id=2, incarnation=2**62, listeners={"kafka": ("h", 1)}, rack="a", version="1"
    ),
    r.NodeRegistered(node_id=3, listeners={"kafka": ("h", 2)}),
    r.NodeChanged(node_id=2, alive=False, draining=True),
    r.NodeRemoved(node_id=3, incarnation=5),
    r.TopicCreated(
        name="t",
        topic_id=bytes(16),
        replication_factor=3,
        partitions=[[2]],
        configs={"a": "b"},
        voters=[[(2, 2**62)]],
        pinned=[0],
    ),
    r.PartitionsAdded(topic_id=bytes(16), partitions=[[2], [2]], voters=[[(2, 4)], [(2, 5)]]),
    r.PartitionReassigned(topic_id=bytes(16), partition=1, replicas=[2, 4], pinned=True),
    r.ProducerRegistered(name="p", topic="t"),
    r.ConsumerRegistered(name="c", topic="t", partition=2),
    r.ProducerRemoved(name="p", topic="t"),
    r.ConsumerRemoved(name="c", topic="t", partition=2),
    r.ConfigChanged(resource_type=2, resource_name="t", values={"a": None, "c": "d"}),
    r.ProducerIdsReserved(next_id=7),
    r.TopicDeleted(topic_id=bytes(16)),
    r.EdgeRegistered(edge_id=10_000, host="e", port=1, ports={"rest": 2}, wish="h:1", father=2),
    r.EdgeConfirmed(edge_id=10_001, host="f", port=3, father=10_000, since=(2**50, 1)),
    r.EdgeDetached(edge_id=10_001),
    r.EdgeRemoved(edge_id=10_005),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: r.Record) -> None:
    assert r.decode(r.encode(record)) == record


def test_every_kind_of_record_has_an_example() -> None:
    assert {type(record) for record in EXAMPLES} == set(get_args(r.Record))


@pytest.mark.parametrize(
    "data", [b"", b"\x02\x80", b"\x01", b"\x01\xff", b"\x01\x81\xa4kind\xa7Unknown"]
)
def test_a_record_that_is_not_understood_is_never_guessed_at(data: bytes) -> None:
    with pytest.raises(r.UnreadableMetadata):
        r.decode(data)


def test_a_field_of_a_later_release_is_ignored() -> None:
    stored = r.encode(r.ProducerIdsReserved(next_id=7))
    later = stored[:1] + bytes([stored[1] + 1]) + stored[2:] + b"\xa5later\x01"
    assert r.decode(later) == r.ProducerIdsReserved(next_id=7)
