"""Groups as operators see them: while coordinators move, and in what their members tell."""

from pathlib import Path

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.group_admin import read_assignment
from sapwood.coordinator.sharding import shard_of
from tests.helpers import eventually

OFFSETS = "__consumer_offsets"


def test_an_assignment_of_another_client_is_read() -> None:
    given = [("orders", [0, 2]), ("päckchen", [1])]
    stored = ConsumerProtocolMemberAssignment(0, given, b"").encode()
    assert list(read_assignment(stored)) == [("orders", 0), ("orders", 2), ("päckchen", 1)]


def test_what_cannot_be_read_is_nothing() -> None:
    stored = ConsumerProtocolMemberAssignment(0, [("orders", [0, 2])], b"").encode()
    for length in range(len(stored) - 4):
        assert list(read_assignment(stored[:length])) == []
    assert list(read_assignment(b"\0\0\x7f\xff\xff\xff")) == []
    assert list(read_assignment(b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff")) == []


def test_no_subscriber_is_left_out_when_their_coordinator_has_moved(tmp_path: Path) -> None:
    """The node that had them lives on, knows nothing of them any more, and doesn't say so."""
    with (
        sapwood.Cluster(nodes=3, data_dir=tmp_path, topics={"orders": 1}) as cluster,
        sapwood.Client(cluster.bootstrap, id="alice") as client,
    ):
        client.subscribe("orders")
        client.put("orders", "x")
        cluster.wait_healthy()
        with KafkaClient(cluster.bootstrap) as kafka:
            partitions = kafka.metadata([OFFSETS]).topics[OFFSETS].partitions
        shard = shard_of("orders", len(partitions))
        home = partitions[shard].replicas[0]  # whoever leads meanwhile hands it back to this node
        eventually(lambda: cluster.leader(OFFSETS, shard) == home, 60)
        cluster.kill(home)
        eventually(lambda: cluster.leader(OFFSETS, shard) not in (home, -1), 60)
        assert [each.lag for each in client.pending("orders")] == [1]
        cluster.restart(home)
        eventually(lambda: cluster.leader(OFFSETS, shard) == home, 60)
        assert [each.lag for each in client.pending("orders")] == [1]
