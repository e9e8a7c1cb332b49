"""The blocking client against a running node."""

import multiprocessing
import threading
from collections.abc import Iterator

import pytest

import sapwood
from sapwood.client import ClientClosed, Compression, ErrorCode, KafkaClient, KafkaError
from sapwood.client.admin import NewTopic, ResourceKind
from sapwood.client.calls import Leader
from sapwood.client.fetcher import ConsumedRecord
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from tests.helpers import unique


@pytest.fixture
def client(bootstrap: str) -> Iterator[KafkaClient]:
    with KafkaClient(bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: KafkaClient) -> str:
    name = unique("blocking")
    client.create_topics([NewTopic(name, 2, configs={"retention.ms": "-1"})])
    return name


def everything(client: KafkaClient, topic: str) -> list[ConsumedRecord]:
    return list(client.consume({(topic, 0): -2, (topic, 1): -2}, stop_at="end"))


def test_records_come_back_as_they_were_sent(client: KafkaClient, topic: str) -> None:
    headers = (("a", b"1"), ("b", None))
    delivery = client.send(topic, b"value", b"key", headers, 1, 1234)
    assert delivery.get() == (topic, 1, 0, 1234)
    (found,) = everything(client, topic)
    assert found == (topic, 1, 0, 1234, b"key", b"value", headers, 0)


@pytest.mark.parametrize("compression", list(Compression))
def test_many_records_come_back_in_order(
    bootstrap: str, topic: str, compression: Compression
) -> None:
    with KafkaClient(bootstrap, compression=compression) as client:
        for number in range(20_000):
            client.send(topic, b"%d" % number, partition=0)
        client.flush()
        found = [int(record.value or b"") for record in everything(client, topic)]
    assert found == list(range(20_000))


def test_leaving_the_with_block_sends_what_was_accepted(bootstrap: str, topic: str) -> None:
    with KafkaClient(bootstrap, linger_ms=60_000) as client:
        client.send(topic, b"last", partition=0)
    with KafkaClient(bootstrap) as client:
        assert [record.value for record in everything(client, topic)] == [b"last"]


def test_a_full_buffer_holds_the_sender_up_and_loses_nothing(bootstrap: str, topic: str) -> None:
    with KafkaClient(bootstrap, buffer_bytes=10_000, batch_bytes=2000) as client:
        for _ in range(500):
            client.send(topic, bytes(500), partition=0)
            assert client.core.producer.buffered_bytes <= 11_000
        client.flush()
        assert client.core.producer.buffered_bytes == 0
        assert len(everything(client, topic)) == 500


def test_failures_reach_whoever_asks_for_the_delivery(client: KafkaClient) -> None:
    topic = unique("small")
    client.create_topics([NewTopic(topic, 1, configs={"max.message.bytes": "1000"})])
    large, small = client.send(topic, bytes(2000)), client.send(topic, bytes(10))
    with pytest.raises(KafkaError) as caught:
        large.get()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert small.get().offset == 0


def test_waiting_for_a_delivery_can_be_limited(bootstrap: str, topic: str) -> None:
    with KafkaClient(bootstrap, linger_ms=60_000) as client:
        delivery = client.send(topic, b"")
        with pytest.raises(TimeoutError):
            delivery.get(timeout_s=0.01)
        client.flush()
        assert delivery.get().offset == 0


def test_administration_answers_and_mistakes_are_named(client: KafkaClient, topic: str) -> None:
    assert topic in client.metadata().topics
    client.create_partitions({topic: 3})
    client.alter_configs(ResourceKind.TOPIC, topic, {"retention.ms": "1000"})
    assert client.describe_configs(ResourceKind.TOPIC, topic)["retention.ms"].value == "1000"
    client.send(topic, b"", partition=2)
    client.flush()
    assert client.delete_records({(topic, 2): 1}) == {(topic, 2): 1}
    assert client.list_offsets({(topic, 2): -2})[topic, 2].offset == 1
    answer = client.request(Api.DESCRIBE_CLUSTER, Struct(
        include_cluster_authorized_operations=False, include_fenced_brokers=False
    ), Leader(topic, 0))  # fmt: skip
    assert answer.error_code == 0
    client.delete_topics([topic])
    with pytest.raises(KafkaError):
        client.delete_topics([topic])


def test_a_reader_can_stop_in_the_middle_and_another_can_start(
    client: KafkaClient, topic: str
) -> None:
    for number in range(1000):
        client.send(topic, b"%d" % number, partition=0)
    client.flush()
    records = client.consume({(topic, 0): 0})
    assert [next(records).offset for _ in range(10)] == list(range(10))
    assert next(client.consume({(topic, 0): 500})).offset == 500
    assert next(records).offset == 10
    records.close()  # type: ignore[attr-defined]
    assert next(client.consume({(topic, 0): 999})).offset == 999


def test_a_broker_that_is_not_there_is_reported_with_its_address() -> None:
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1 .*refused.*sapwood up"):
        KafkaClient("127.0.0.1:1", bootstrap_timeout_ms=200).connect()


def test_a_name_that_does_not_resolve_is_reported() -> None:
    with pytest.raises(KafkaError, match="no-such-host"):
        KafkaClient("no-such-host.invalid:9092", bootstrap_timeout_ms=200).connect()


def test_a_node_that_restarts_is_found_again(cluster: sapwood.Cluster) -> None:
    with KafkaClient(cluster.bootstrap, backoff_ms=5) as client:
        client.send("t", b"before").get()
        cluster.kill()
        cluster.restart()
        assert client.send("t", b"after").get().offset == 1
        records = client.consume({("t", 0): 0}, stop_at="end")
        assert [record.value for record in records] == [b"before", b"after"]


def test_a_closed_client_refuses_work(bootstrap: str) -> None:
    client = KafkaClient(bootstrap)
    client.connect()
    client.close()
    with pytest.raises(ClientClosed):
        client.metadata()
    with pytest.raises(ClientClosed):
        client.send("t", b"")
    client.close()


def _use(client: KafkaClient, result: "multiprocessing.SimpleQueue[str]") -> None:
    try:
        client.metadata()
        result.put("worked")
    except ClientClosed as error:
        result.put(str(error))


def test_a_forked_child_may_not_use_its_parents_connections(client: KafkaClient) -> None:
    context = multiprocessing.get_context("fork")
    result = context.SimpleQueue()
    child = context.Process(target=_use, args=(client, result))
    child.start()
    assert "after forking" in result.get()
    child.join()
    assert client.metadata([]).brokers


def test_every_thread_can_have_a_client_of_its_own(bootstrap: str, topic: str) -> None:
    def work(partition: int) -> None:
        with KafkaClient(bootstrap) as client:
            for number in range(2000):
                client.send(topic, b"%d" % number, partition=partition)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with KafkaClient(bootstrap) as client:
        assert len(everything(client, topic)) == 4000
