"""Three nodes in the hands of a test: killed, paused, wiped, cut off, added."""

import contextlib
from collections.abc import Iterator

import pytest

import sapwood
from chaos.direct import Direct
from chaos.direct import NoAnswer as Unanswered
from sapwood.client import KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.offsets import EARLIEST
from sapwood.node import identity
from sapwood.node.asking import NoAnswer
from sapwood.pytest_plugin import SharedCluster
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from tests.helpers import DeadlinePassed, eventually, unique
from tests.judges.confluent import Confluent

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
    with KafkaClient(bootstrap, api_timeout_ms=5000) as client:
        found = client.consume({(topic, 0): EARLIEST}, stop_at="end")
        return [record.value for record in found]


def write_meanwhile(bootstrap: str, topic: str, value: bytes) -> list[bytes | None]:
    """Write while a node is away, and read all there is.

    A client that turns to the node which is cut off is told what was true before: try another.
    """

    def attempt() -> list[bytes | None]:
        with contextlib.suppress(KafkaError, TimeoutError):
            with KafkaClient(bootstrap, delivery_timeout_ms=5000) as client:
                client.send(topic, value).get(5)
            return read(bootstrap, topic)
        return []

    return eventually(attempt, 60)


def leadership(cluster: sapwood.Cluster, node: int, topic: str) -> tuple[int, int]:
    """Who leads, and in which epoch, by what the node tells clients."""
    message = Struct(
        topics=[Struct(topic_id=bytes(16), name=topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    with Direct(cluster.address(node)) as direct:
        (found,) = direct.ask(Api.METADATA, 12, message).topics[0].partitions
    return found.leader_id, found.leader_epoch


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
    first, *others = write_meanwhile(three.address(new), topic, b"meanwhile")
    assert first == b"before"
    assert set(others) == {b"meanwhile"}


def test_a_topic_that_leaves_syncing_to_the_system_is_replicated_and_outlives_its_leader(
    three: sapwood.Cluster, topic: str
) -> None:
    buffered = f"{topic}-buffered"
    with KafkaClient(three.bootstrap) as client:
        client.create_topics([NewTopic(buffered, 1, configs={"flush": "os"})])
    three.wait_healthy()
    write(three.bootstrap, buffered, b"before")
    old = three.leader(buffered)
    three.kill(old)
    new = moved_leader(three, buffered, old)
    first, *others = write_meanwhile(three.address(new), buffered, b"meanwhile")
    assert first == b"before"
    assert set(others) == {b"meanwhile"}


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


def test_a_node_that_starts_alone_says_what_it_leads_in_the_epoch_that_clients_know(
    three: sapwood.Cluster, topic: str
) -> None:
    write(three.bootstrap, topic, b"kept")
    leader = three.leader(topic)
    for index in three.nodes:
        if index != leader:
            three.stop(index)
    _, epoch = leadership(three, leader, topic)  # it may have been elected anew meanwhile
    three.stop(leader)
    three.restart(leader, wait=False)
    told: set[tuple[int, int]] = set()

    def reads_alone() -> bool:
        with contextlib.suppress(Unanswered, ValueError):  # it has only just been started
            told.add(leadership(three, leader, topic))
        return (leader, epoch) in told

    with contextlib.suppress(DeadlinePassed):
        eventually(reads_alone, 30)
    assert (leader, epoch) in told
    assert {it for _, it in told} == {epoch}, "-1 would have clients forget the epoch"
    (found,) = Confluent(three.address(leader)).consume(topic, 1, timeout_s=30)
    assert found.value == b"kept"


def test_the_fixture_of_the_plug_in_gives_three_nodes(sapwood_cluster: SharedCluster) -> None:
    topic = sapwood_cluster.topic("orders", partitions=2)
    with KafkaClient(sapwood_cluster.bootstrap) as client:
        (first, second) = client.metadata([topic]).topics[topic].partitions.values()
    assert len(first.replicas) == len(second.replicas) == 3


def test_a_cluster_grows_node_by_node_and_new_links_can_be_cut_too() -> None:
    with sapwood.Cluster(nodes=1, proxied=True, config=QUICK, topics=["grown"]) as cluster:
        write(cluster.bootstrap, "grown", b"from the first day")
        assert [cluster.add_node(), cluster.add_node()] == [1, 2]
        cluster.wait_healthy()
        old = cluster.leader("grown")
        cluster.isolate(old)
        moved_leader(cluster, "grown", old)
        cluster.heal()
        cluster.wait_healthy()
        assert read(cluster.bootstrap, "grown") == [b"from the first day"]


def test_all_nodes_killed_at_once_come_back_with_everything_acknowledged(
    three: sapwood.Cluster, topic: str
) -> None:
    write(three.bootstrap, topic, b"kept")
    for index in three.nodes:
        three.kill(index)
    for index in three.nodes:
        three.restart(index, wait=False)
    three.wait_healthy()
    assert read(three.bootstrap, topic) == [b"kept"]


def test_a_node_without_a_quorum_can_be_started_asked_and_stopped(
    three: sapwood.Cluster, topic: str
) -> None:
    for index in three.nodes:
        three.stop(index)
    three.restart(0, wait=False)

    def says_of_itself() -> list[tuple[int, bool]]:
        with contextlib.suppress(NoAnswer):  # it has only just been started
            status = three.status(0)
            return [(status.node_id, status.healthy)]
        return []

    assert eventually(says_of_itself) == [(0, False)]
    assert three.stop(0) == 0


def test_whoever_asks_for_the_leader_as_soon_as_it_has_died_is_told_of_the_next_one() -> None:
    with sapwood.Cluster(nodes=3, topics={"orders": 1}) as cluster:
        dead = cluster.leader("orders")
        other = next(index for index in cluster.nodes if index != dead)
        lost = f"lost node {dead} "
        with Direct(cluster.address(other), timeout_s=10) as direct:
            eventually(lambda: direct.partitions(["orders"])["orders", 0].leader == dead)
            before = cluster.log(other).count(lost)
            cluster.kill(dead)
            eventually(lambda: cluster.log(other).count(lost) > before, every_s=0.001)
            assert direct.partitions(["orders"])["orders", 0].leader not in (dead, -1)
