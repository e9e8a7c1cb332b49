"""K5: idempotent and transactional producers, read_committed."""

import contextlib
import functools

import confluent_kafka

import sapwood
from sapwood.coordinator.sharding import shard_of
from tests.helpers import eventually
from tests.judges.confluent import Confluent
from tests.judges.judge import Message
from tests.judges.transactors import TRANSACTORS, ConfluentTransactor, Transactor

TIMEOUT_S = 30
SHARDS = 16


def coordinator(cluster: sapwood.Cluster, transactional_id: str) -> int:
    return cluster.leader("__transaction_state", shard_of(transactional_id, SHARDS))


def reads(
    client: type[Transactor],
    cluster: sapwood.Cluster,
    topic: str,
    values: list[bytes],
    partition: int = 0,
) -> bool:
    return client.read(cluster.bootstrap, topic, partition) == values


def in_one_transaction(producer: confluent_kafka.Producer, value: bytes, *, aborts: bool) -> None:
    """As an application has to: what failed is aborted and done again, until it is committed."""
    while True:
        producer.begin_transaction()
        try:
            for topic in ("left", "right"):
                producer.produce(topic, value, partition=len(value) % 2)
            if aborts:
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
                return
            commit(producer)
            return
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT_S)


def commit(producer: confluent_kafka.Producer) -> None:
    while True:
        try:
            producer.commit_transaction(TIMEOUT_S)
            return
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise


def test_k5_transactions_are_whole_and_once_while_nodes_are_killed() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        judge = Confluent(cluster.bootstrap)
        for topic in ("left", "right"):
            judge.create_topic(topic, partitions=2, replicas=3)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": "k5", "linger.ms": 0}
        )
        producer.init_transactions(TIMEOUT_S)
        victims = {5: lambda: coordinator(cluster, "k5"), 15: lambda: cluster.leader("left", 1)}
        expected: list[bytes] = []
        dead = -1
        for number in range(25):
            if number in victims:
                dead = victims[number]()
                cluster.kill(dead)
            elif number == 10:
                cluster.restart(dead)
                cluster.wait_healthy()
            value = b"%d" % number
            aborts = number % 4 == 3
            in_one_transaction(producer, value, aborts=aborts)
            if not aborts:
                expected.append(value)
        for partition in (0, 1):
            own = [it for it in expected if len(it) % 2 == partition]
            for topic in ("left", "right"):
                eventually(
                    functools.partial(reads, ConfluentTransactor, cluster, topic, own, partition)
                )


def test_k5_a_producer_that_is_killed_leaves_nothing_half_done() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("left", partitions=1, replicas=3)
        lost = ConfluentTransactor(cluster.bootstrap, "gone", timeout_ms=5000)
        lost.begin()
        lost.send("left", b"never committed")
        with contextlib.suppress(confluent_kafka.KafkaException):
            lost.close()
        cluster.kill(coordinator(cluster, "gone"))
        judge.produce("left", [Message(b"after")])
        for reader in TRANSACTORS.values():
            # Until its time is up, nobody can know whether it will be committed.
            eventually(functools.partial(reads, reader, cluster, "left", [b"after"]), 40)


def test_k5_the_next_instance_of_an_application_takes_over() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        for name, client in TRANSACTORS.items():
            Confluent(cluster.bootstrap).create_topic(name, partitions=1, replicas=3)
            first = client(cluster.bootstrap, name)
            first.begin()
            first.send(name, b"half done")
            second = client(cluster.bootstrap, name)
            second.begin()
            second.send(name, b"done")
            second.commit()
            eventually(functools.partial(reads, client, cluster, name, [b"done"]))
            first.close()
            second.close()


def test_k5_a_topic_that_is_deleted_holds_no_transaction_up() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        judge = Confluent(cluster.bootstrap)
        for topic in ("left", "right"):
            judge.create_topic(topic, partitions=1, replicas=3)
        ConfluentTransactor(cluster.bootstrap, "first").close()  # now there are shards
        controller = cluster.status().controller
        # One whose coordinator has to ask somebody else whether the topic is really gone.
        name = next(it for it in map(str, range(100)) if coordinator(cluster, it) != controller)
        producer = ConfluentTransactor(cluster.bootstrap, name)
        producer.begin()
        producer.send("left", b"gone")
        producer.send("right", b"kept")
        judge.delete_topic("left")
        producer.commit()
        producer.begin()  # which waits for the end of the first
        producer.send("right", b"and more")
        producer.commit()
        eventually(
            functools.partial(reads, ConfluentTransactor, cluster, "right", [b"kept", b"and more"])
        )
