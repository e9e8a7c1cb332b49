"""E8: 2f+1 nodes bear f failures; without a quorum writes are refused, never lost or half done."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError as Failure
from confluent_kafka import Producer

import sapwood
from sapwood.wire.errors import ErrorCode
from sapwood.wire.records import encode_batch
from tests.faults.raw import Wire, produce
from tests.helpers import eventually, port_of
from tests.judges.confluent import Confluent
from tests.judges.judge import Message
from tests.requirements.test_e1_three_replicas import replicas

REFUSED = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}
MESSAGES = [Message(b"record %04d" % number) for number in range(100)]


@pytest.fixture
def cluster() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3) as cluster:
        yield cluster


def attempt(bootstrap: str, value: bytes, timeout_ms: int) -> Failure | None:
    """Why one message was not acknowledged within its time; None if it was."""
    outcome: list[Failure | None] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.produce("e8", value, partition=0, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(timeout_ms / 1000 + 10)
    assert outcome, "neither acknowledged nor refused in time"
    return outcome[0]


def known_to_be_committed(cluster: sapwood.Cluster) -> list[int]:
    """Up to where, at each node that runs."""
    found = replicas(cluster, "e8", cluster.running)
    return [it.high_watermark for it in found.values()]


def test_e8_one_of_three_may_be_dead_two_may_not_and_all_resumes(cluster: sapwood.Cluster) -> None:
    judge = Confluent(cluster.bootstrap)
    judge.create_topic("e8", replicas=3)
    judge.produce("e8", MESSAGES)
    cluster.kill(cluster.leader("e8"))
    assert attempt(cluster.bootstrap, b"without one", 30_000) is None
    expected = [it.value for it in MESSAGES] + [b"without one"]
    # A follower learns a moment later than the producer that something is committed.
    eventually(lambda: known_to_be_committed(cluster) == [len(expected)] * 2)
    dead = cluster.leader("e8")
    cluster.kill(dead)
    refused = attempt(cluster.bootstrap, b"without two", 4_000)
    assert refused is not None, "nobody may acknowledge without a quorum"
    # Asked directly: what a client tells in the end may be that its own time is over.
    (left,) = cluster.running
    with Wire(port_of(cluster.address(left))) as wire:
        batch = bytes(encode_batch([(0, None, b"asked directly", ())]))
        assert ErrorCode(produce(wire, "e8", batch)) in REFUSED
    # What is committed can still be read, from the only one that is left.
    alone = Confluent(cluster.address(left))
    assert [it.value for it in alone.consume("e8", len(expected), timeout_s=30)] == expected
    cluster.restart(dead)
    eventually(lambda: attempt(cluster.bootstrap, b"with two again", 10_000) is None, 40)
    final = [it.value for it in judge.consume("e8", len(expected) + 1, timeout_s=30)]
    assert final[: len(expected)] == expected
    assert final.count(b"without two") <= 1
    assert final.count(b"asked directly") <= 1


def test_e8_all_killed_at_once_nothing_acknowledged_is_lost(cluster: sapwood.Cluster) -> None:
    judge = Confluent(cluster.bootstrap)
    judge.create_topic("e8", partitions=3, replicas=3)
    for partition in range(3):
        judge.produce("e8", MESSAGES, partition=partition)
    for index in cluster.nodes:
        cluster.kill(index)
    for index in cluster.nodes:
        cluster.restart(index, wait=False)
    cluster.wait_healthy()
    for partition in range(3):
        read = judge.consume("e8", len(MESSAGES), partition=partition, timeout_s=30)
        assert [it.value for it in read] == [it.value for it in MESSAGES]
