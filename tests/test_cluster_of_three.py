"""Three nodes in the hands of a test: killed, paused, wiped, cut off, added."""

from collections.abc import Iterator

import pytest

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.offsets import EARLIEST
from sapwood.node import identity
from sapwood.pytest_plugin import SharedCluster
from tests.helpers import eventually, unique

QUICK = {"link_timeout_ms": 500, "heartbeat_ms": 75}


@pytest.fixture(scope="module")
def three() -> Iterator[sapwood.Cluster]:
    """One cluster for the tests of this file, each of which leaves it healthy."""
    with sapwood.Cluster(nodes=3, proxied=True, config=QUICK) as cluster:
        yield cluster


@pytest.fixture
def topic(three: sapwood.Cluster) -> Iterator[str]:
    """A topic of the test's own on three healthy nodes; whatever the test did is healed."""
    three.wait_healthy()
    name = unique("topic")
    three.create_topics({name: 1})
    three.wait_healthy()
    yield name
    three.heal()
    for index in three.nodes:
        three.resume(index)
        if index not in three.running:
            three.restart(index, wait=False)
    three.wait_healthy()


def write(bootstrap: str, topic: str, value: bytes) -> None:
    with KafkaClient(bootstrap) as client:
        client.send(topic, value).get(30)


def read(bootstrap: str, topic: str) -> list[bytes | None]:
    with KafkaClient(bootstrap) as client:
        found = client.consume({(topic, 0): EARLIEST}, stop_at="end")
        return [record.value for record in found]


def moved_leader(cluster: sapwood.Cluster, topic: str, away_from: int) -> int:
    def other() -> list[int]:
        leader = cluster.leader(topic)
        return [leader] if leader not in (-1, away_from) else []

    return eventually(other)[0]


def test_three_nodes_know_each_other_and_replicate_a_topic(
    three: sapwood.Cluster, topic: str
) -> None:
    with KafkaClient(three.bootstrap) as client:
        metadata = client.metadata([topic])
    assert sorted(metadata.brokers) == [0, 1, 2]
    (partition,) = metadata.topics[topic].partitions.values()
    assert sorted(partition.replicas) == sorted(partition.in_sync) == [0, 1, 2]
    for index in three.nodes:
        status = three.status(index)
        assert (status.node_id, len(status.nodes)) == (index, 3)


@pytest.mark.parametrize("how", ["kill", "stop", "pause", "isolate"])
def test_another_node_leads_when_the_leader_is_away_and_nothing_is_lost(
    three: sapwood.Cluster, topic: str, how: str
) -> None:
    write(three.bootstrap, topic, b"before")
    old = three.leader(topic)
    getattr(three, how)(old)
    new = moved_leader(three, topic, old)
    write(three.address(new), topic, b"meanwhile")
    assert read(three.address(new), topic) == [b"before", b"meanwhile"]


def test_a_wiped_node_joins_again_as_another_incarnation_and_refills(
    three: sapwood.Cluster, topic: str
) -> None:
    write(three.bootstrap, topic, b"kept")
    before = identity.read(three.data_dir / "node-2")
    three.wipe(2)
    three.restart(2)
    three.wait_healthy()
    after = identity.read(three.data_dir / "node-2")
    assert before is not None
    assert after is not None
    assert (before.cluster_id, before.node_id) == (after.cluster_id, after.node_id)
    assert before.incarnation != after.incarnation
    assert read(three.bootstrap, topic) == [b"kept"]


def test_the_fixture_of_the_plug_in_gives_three_nodes(sapwood_cluster: SharedCluster) -> None:
    topic = sapwood_cluster.topic("orders", partitions=2)
    with KafkaClient(sapwood_cluster.bootstrap) as client:
        (first, second) = client.metadata([topic]).topics[topic].partitions.values()
    assert len(first.replicas) == len(second.replicas) == 3
