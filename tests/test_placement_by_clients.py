"""Kafka's own clients move replicas and leaders of three nodes, and read from the nearest one."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import TopicPartition as Place
from kafka.admin import KafkaAdminClient

import sapwood
from sapwood.client import KafkaClient
from tests.helpers import eventually, unique

RACKS = ("a", "b", "c")
QUICK = {"link_timeout_ms": 500, "heartbeat_ms": 75}
PREFERRED = 0
MESSAGES = [b"%04d" % number * 250 for number in range(2000)]


@pytest.fixture(scope="module")
def three() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3, racks=RACKS, config=QUICK) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(three: sapwood.Cluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=three.bootstrap)
    yield client
    client.close()


@pytest.fixture
def place(three: sapwood.Cluster) -> Place:
    """Partition 0 of a topic of the test's own, on all three nodes, with some messages."""
    place = Place(unique("topic"), 0)
    three.create_topics({place.topic: 1})
    three.wait_healthy()
    with KafkaClient(three.bootstrap) as client:
        for sent in [client.send(place.topic, message) for message in MESSAGES]:
            sent.get(30)
    return place


def replicas(three: sapwood.Cluster, place: Place) -> tuple[int, list[int], list[int]]:
    """Who leads, who holds it, and who keeps up."""
    with KafkaClient(three.bootstrap) as client:
        found = client.metadata([place.topic]).topics[place.topic].partitions[place.partition]
    return found.leader, sorted(found.replicas), sorted(found.in_sync)


def test_a_reassignment_is_listed_while_it_goes_on_and_not_when_it_is_done(
    three: sapwood.Cluster, admin: KafkaAdminClient, place: Place
) -> None:
    def rests() -> bool:
        return place not in admin.list_partition_reassignments([place])

    def is_on(nodes: list[int]) -> bool:
        return replicas(three, place)[1:] == (sorted(nodes), sorted(nodes))

    seen: dict[str, Any] = {}

    def moved_back_and_forth() -> bool:
        """A move may be over before it is asked for: then there is another one."""
        for nodes in ([0, 1], [2, 0]):
            assert admin.alter_partition_reassignments({place: nodes}) == {place: None}
            seen.update(admin.list_partition_reassignments([place]).get(place, {}))
            eventually(rests, 60)
            eventually(partial(is_on, nodes), 60)
        return bool(seen)

    eventually(moved_back_and_forth, 120)
    assert set(seen["adding_replicas"]) <= {1, 2}
    assert set(seen["replicas"]) <= {0, 1, 2}
    with KafkaClient(three.bootstrap) as client:
        found = client.consume({tuple(place): 0}, stop_at="end")
        assert [record.value for record in found] == MESSAGES


def test_the_preferred_leader_leads_once_its_election_is_answered(
    three: sapwood.Cluster, admin: KafkaAdminClient, place: Place
) -> None:
    leader = three.leader(place.topic)
    preferred, third = (node for node in three.nodes if node != leader)
    nodes = [preferred, leader, third]
    assert admin.alter_partition_reassignments({place: nodes}) == {place: None}
    admin.elect_leaders(PREFERRED, {place.topic: [place.partition]})
    eventually(lambda: replicas(three, place) == (preferred, [0, 1, 2], [0, 1, 2]))


def test_a_consumer_that_says_where_it_is_reads_from_the_replica_there(
    three: sapwood.Cluster, place: Place
) -> None:
    leader = three.leader(place.topic)
    near = next(node for node in three.nodes if node != leader)
    sources: list[int] = []

    def note(statistics: str) -> None:
        topics = json.loads(statistics)["topics"]
        if place.topic in topics:
            sources.append(topics[place.topic]["partitions"]["0"]["broker"])

    consumer = Consumer(
        {
            "bootstrap.servers": three.bootstrap,
            "client.rack": RACKS[near],
            "group.id": "unused: partitions are assigned by hand",
            "enable.auto.commit": False,
            "statistics.interval.ms": 50,
            "stats_cb": note,
        }
    )
    received: list[bytes | None] = []

    def polled() -> bool:
        for message in consumer.consume(500, timeout=0.1):
            assert message.error() is None
            received.append(message.value())
        return len(received) >= len(MESSAGES) and sources[-1:] == [near]

    try:
        consumer.assign([TopicPartition(place.topic, 0, 0)])
        eventually(polled, 60)
    finally:
        consumer.close()
    assert received == MESSAGES
