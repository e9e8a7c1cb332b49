"""Groups as operators see them: while coordinators move, and in what their members tell."""

from pathlib import Path

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

import sapwood
from sapwood.client.group_admin import read_assignment


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


def test_no_subscriber_is_left_out_while_their_coordinator_moves(tmp_path: Path) -> None:
    """Judged by the list of a node that had just lost them, a subscriber had nothing to get."""
    with (
        sapwood.Cluster(nodes=3, data_dir=tmp_path, topics={"orders": 1}) as cluster,
        sapwood.Client(cluster.bootstrap, id="alice") as client,
    ):
        client.subscribe("orders")
        client.put("orders", "x")
        for node in range(3):
            cluster.kill(node)
            (pending,) = client.pending("orders")
            assert (pending.subscriber, pending.lag) == ("alice", 1)
            cluster.restart(node)
            for _ in range(5):
                assert len(client.pending("orders")) == 1
            cluster.wait_healthy()
