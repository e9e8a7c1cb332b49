"""C2: OK means that several nodes have it; an edge that is cut off queues, and delivers once."""

import shutil
from collections.abc import Iterator

import confluent_kafka
import pytest

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.admin import ResourceKind
from sapwood.wire.errors import ErrorCode
from tests.gateway.rest import Gateway, ok, problem
from tests.gateway.talk import OK, TcpTalk, error_in
from tests.helpers import eventually, unique
from tests.requirements.outboxes import (
    BACK_S,
    QUEUED,
    cut_off,
    is_empty,
    join_again,
    outbox_of,
    put,
    read,
)

OUTBOX_BYTES = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[sapwood.Cluster]:
    config = {"outbox_bytes": OUTBOX_BYTES}
    with sapwood.Cluster(nodes=3, edges=1, outbox=True, proxied=True, config=config) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: sapwood.Cluster) -> str:
    """One that the edge has heard of."""
    name = unique("c2")
    cluster.create_topics({name: 1})
    with KafkaClient(cluster.edge_address()) as client:
        eventually(lambda: not client.metadata([name]).topics[name].error_code)
    return name


@pytest.fixture
def gateway(cluster: sapwood.Cluster) -> Iterator[Gateway]:
    with Gateway(cluster.edge_address()) as gateway:
        yield gateway


def texts(first: int, end: int) -> list[str]:
    return [f"message {number}" for number in range(first, end)]


def test_c2_what_was_answered_ok_is_delivered_though_the_edge_and_its_disk_are_destroyed() -> None:
    topic = unique("c2")
    with sapwood.Cluster(nodes=3, edges=1, outbox=True, topics={topic: 1}) as cluster:
        with (
            Gateway(cluster.edge_address()) as gateway,
            TcpTalk(gateway.ready["lines"]) as talk,
        ):
            for text in texts(0, 20):
                assert talk.say("SEND", topic=topic, message=text) == OK
            cluster.wipe_edge()
        assert read(cluster, topic) == texts(0, 20)


def test_c2_an_edge_that_is_cut_off_queues_and_delivers_once_and_in_order(
    cluster: sapwood.Cluster, topic: str, gateway: Gateway
) -> None:
    with TcpTalk(gateway.ready["lines"]) as talk, TcpTalk(gateway.ready["lines"]) as listener:
        assert listener.say("SUBSCRIBE", topic=topic) == OK
        for text in texts(0, 10):
            assert talk.say("SEND", topic=topic, message=text) == OK
        cluster.isolate_edge()
        # The first is on its way when the edge notices; it comes by the other way, once.
        for text in texts(10, 30):
            assert talk.say("SEND", topic=topic, message=text) == QUEUED
        repeated = [
            talk.say("SEND", topic=topic, message="message 30", id="thirty") for _ in range(3)
        ]
        assert repeated == [QUEUED] * 3
        answer = gateway.post("/producer/produce", topic=topic, message="message 31")
        assert ok(answer, 202)["queued"] is True
        assert sum(it.records for it in outbox_of(cluster).partitions) == 24
        assert "sapwood_edge_outbox_records 24.0" in gateway.get("/metrics").text
        assert read(cluster, topic) == texts(0, 10)
        join_again(cluster)
        assert talk.say("SEND", topic=topic, message="message 32") == OK
        assert read(cluster, topic) == texts(0, 33)
        assert [listener.message()["message"] for _ in range(33)] == texts(0, 33)


def test_c2_kafka_clients_that_ask_for_one_acknowledgement_go_on_too(
    cluster: sapwood.Cluster, topic: str
) -> None:
    cut_off(cluster)
    # It connects only now, and is told what the edge remembers.
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.edge_address(),
            "acks": 1,
            "compression.type": "zstd",
            "retries": 0,
        }
    )
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for text in texts(0, 500):
        producer.produce(
            topic,
            text,
            key=b"k",
            headers=[("h", b"v")],
            timestamp=1_700_000_000_000,
            on_delivery=delivered,
        )
    assert producer.flush(30) == 0
    assert failed == []
    assert put(cluster, topic, b"no one else", acks=1) == ErrorCode.NONE
    join_again(cluster)
    assert read(cluster, topic) == [*texts(0, 500), "no one else"]
    with KafkaClient(cluster.bootstrap) as client:
        record = next(iter(client.consume({(topic, 0): 0}, stop_at="end")))
        assert (record.timestamp, record.key) == (1_700_000_000_000, b"k")
        assert tuple(record.headers) == (("h", b"v"),)


def test_c2_an_edge_that_is_killed_with_a_full_outbox_delivers_it_after_its_restart(
    cluster: sapwood.Cluster, topic: str, gateway: Gateway
) -> None:
    cut_off(cluster)
    stored = []
    for number in range(100):
        value = f"{number:03d}" + "x" * 50_000
        code = put(cluster, topic, value.encode())
        if code:
            break
        stored.append(value)
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(stored) > 10
    long = "y" * 60_000
    with TcpTalk(gateway.ready["lines"]) as talk:
        said = talk.say("SEND", topic=topic, message=long)
        assert error_in(said) == ErrorCode.KAFKA_STORAGE_ERROR.name
        assert "outbox is full" in said
    refusal = problem(gateway.post("/producer/produce", topic=topic, message=long), 503)
    assert "outbox is full" in refusal
    assert outbox_of(cluster).refused_total >= 3
    cluster.kill_edge()
    cluster.restart_edge()  # cut off as it is
    assert outbox_of(cluster).is_cut_off
    join_again(cluster)
    assert read(cluster, topic) == stored


def test_c2_an_edge_that_is_killed_before_it_hears_that_it_has_delivered_delivers_once(
    cluster: sapwood.Cluster, topic: str
) -> None:
    cut_off(cluster)
    for text in texts(0, 10):
        assert put(cluster, topic, text.encode()) == ErrorCode.NONE
    cluster.kill_edge()
    outbox = cluster.data_dir / "edge-0" / "outbox"
    before = outbox.with_name("before")
    shutil.copytree(outbox, before)
    cluster.restart_edge()
    join_again(cluster)
    assert read(cluster, topic) == texts(0, 10)
    # Its disk is as it was when the transaction was under way.
    cluster.kill_edge()
    shutil.rmtree(outbox)
    before.rename(outbox)
    cluster.restart_edge()
    eventually(lambda: is_empty(cluster), BACK_S)
    assert put(cluster, topic, b"message 10") == ErrorCode.NONE
    assert read(cluster, topic) == texts(0, 11)


def test_c2_what_the_cluster_will_never_take_is_put_aside_and_holds_up_nothing(
    cluster: sapwood.Cluster, topic: str
) -> None:
    gone = unique("gone")
    cluster.create_topics({gone: 1})
    with KafkaClient(cluster.edge_address()) as client:
        eventually(lambda: not client.metadata([gone]).topics[gone].error_code)
    cut_off(cluster)
    for text in texts(0, 3):
        assert put(cluster, gone, text.encode()) == ErrorCode.NONE
        assert put(cluster, topic, text.encode()) == ErrorCode.NONE
    assert put(cluster, topic, b"z" * 2000) == ErrorCode.NONE
    assert put(cluster, topic, b"the last") == ErrorCode.NONE
    with KafkaClient(cluster.bootstrap) as client:
        client.delete_topics([gone])
        client.alter_configs(ResourceKind.TOPIC, topic, {"max.message.bytes": "1000"})
    before = outbox_of(cluster).aside_total
    join_again(cluster)
    assert read(cluster, topic) == [*texts(0, 3), "the last"]
    assert outbox_of(cluster).aside_total == before + 4
    assert "can't be delivered" in cluster.edge_log()
    kept = cluster.data_dir / "edge-0" / "outbox" / "aside"
    assert {it.name for it in kept.iterdir()} == {f"{gone}-0", f"{topic}-0"}
