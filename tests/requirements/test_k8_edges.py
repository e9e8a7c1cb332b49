"""K8: what holds at a core node holds through edges; tests/judges/test_edges.py has the clients."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import confluent_kafka
import confluent_kafka.admin
import pytest

import sapwood
from tests.helpers import eventually, unique

PARTITIONS = 3
MESSAGES = 4000
PAUSE_EVERY = 100


@dataclass
class Reader:
    """Reads a topic from its beginning in a thread, and notes what it gets."""

    bootstrap: str
    topic: str
    values: dict[int, list[bytes]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Reader":
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def _read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": unique("reader"),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        consumer.assign(
            [
                confluent_kafka.TopicPartition(self.topic, it, confluent_kafka.OFFSET_BEGINNING)
                for it in range(PARTITIONS)
            ]
        )
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert isinstance(value, bytes)
                self.values.setdefault(partition, []).append(value)
        consumer.close()


def publish(
    bootstrap: str, topic: str, in_the_middle: Callable[[], None]
) -> dict[int, list[bytes]]:
    """Everything that was acknowledged, as it was sent; something happens on the way."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    sent: dict[int, list[bytes]] = {it: [] for it in range(PARTITIONS)}
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(MESSAGES):
        partition, value = number % PARTITIONS, b"%d" % number
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
        sent[partition].append(value)
        if number % PAUSE_EVERY == 0:
            producer.poll(0.01)
        if number == MESSAGES // 3:
            in_the_middle()
    assert producer.flush(60) == 0
    assert failed == []
    return sent


@pytest.fixture(scope="module")
def cluster() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3, edges=2) as cluster:
        yield cluster


def brokers(bootstrap: str) -> set[str]:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_topics(timeout=10).brokers.values()
    return {f"{it.host}:{it.port}" for it in found}


def test_clients_of_an_edge_hear_of_its_living_siblings_and_of_no_core_node(
    cluster: sapwood.Cluster,
) -> None:
    first, second = cluster.edge_address(0), cluster.edge_address(1)
    eventually(lambda: brokers(first) == brokers(second) == {first, second})
    cluster.kill_edge(0)
    eventually(lambda: brokers(second) == {second})
    cluster.restart_edge(0)
    eventually(lambda: brokers(second) == {first, second})


def everybody_gets(sent: dict[int, list[bytes]], readers: list[Reader]) -> None:
    total = sum(map(len, sent.values()))
    for reader in readers:
        eventually(lambda it=reader: it.count >= total, 60)  # type: ignore[misc]
        assert reader.values == sent


def test_who_loses_its_edge_goes_on_at_another_and_misses_and_repeats_nothing(
    cluster: sapwood.Cluster,
) -> None:
    topic = unique("edge-lost")
    cluster.create_topics({topic: PARTITIONS})
    first, second = cluster.edge_address(0), cluster.edge_address(1)
    both = f"{first},{second}"
    with Reader(both, topic) as one, Reader(second, topic) as other:
        sent = publish(both, topic, lambda: cluster.kill_edge(0))
        everybody_gets(sent, [one, other])
    cluster.restart_edge(0)


def test_an_edge_that_loses_its_parent_goes_on_below_another_from_where_it_was(
    cluster: sapwood.Cluster,
) -> None:
    topic = unique("parent-lost")
    cluster.create_topics({topic: PARTITIONS})
    above = cluster.add_edge()
    below = cluster.add_edge(parent=above)
    address = cluster.edge_address(below)
    with Reader(address, topic) as reader:
        sent = publish(address, topic, lambda: cluster.kill_edge(above))
        everybody_gets(sent, [reader])


def test_partitions_that_the_parent_has_no_replica_of_are_relayed_as_well(
    cluster: sapwood.Cluster,
) -> None:
    topic = unique("elsewhere")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.edge_address(0)})
    wanted = confluent_kafka.admin.NewTopic(topic, PARTITIONS, replication_factor=1)
    admin.create_topics([wanted])[topic].result(30)
    first, second = cluster.edge_address(0), cluster.edge_address(1)
    with Reader(first, topic) as one, Reader(second, topic) as other:
        sent = publish(first, topic, lambda: None)
        everybody_gets(sent, [one, other])


def test_core_nodes_may_die_one_after_the_other_under_clients_of_an_edge(
    cluster: sapwood.Cluster,
) -> None:
    topic = unique("core-lost")
    cluster.create_topics({topic: PARTITIONS})
    address = cluster.edge_address(1)
    with Reader(address, topic) as reader:
        sent = publish(address, topic, lambda: cluster.kill(0))
        everybody_gets(sent, [reader])
    cluster.restart(0)
    cluster.wait_healthy()
