"""The asyncio client against a running node."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import uvloop

from sapwood.client import AsyncKafkaClient, ClientClosed, Compression, ErrorCode, KafkaError
from sapwood.client.admin import ConfigSource, NewTopic, ResourceKind
from sapwood.client.calls import Controller, Leader, Node
from sapwood.client.fetcher import ConsumedRecord, read_records
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from tests.helpers import unique

Work = Callable[[AsyncKafkaClient], Awaitable[Any]]


def with_client(bootstrap: str, work: Work, **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncKafkaClient(bootstrap, **options) as client:
            return await work(client)

    return asyncio.run(run())


async def new_topic(client: AsyncKafkaClient, partitions: int = 1, **configs: str) -> str:
    name = unique("aio")
    named = {key.replace("_", "."): value for key, value in configs.items()}
    await client.create_topics([NewTopic(name, partitions, 1, named)])
    return name


async def everything(
    client: AsyncKafkaClient, topic: str, partitions: int = 1
) -> list[ConsumedRecord]:
    positions = {(topic, number): -2 for number in range(partitions)}
    return [record async for record in client.consume(positions, stop_at="end")]


@pytest.mark.parametrize("compression", list(Compression))
def test_records_come_back_as_they_were_sent(bootstrap: str, compression: Compression) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, retention_ms="-1")
        headers = (("a", b"1"), ("a", None), ("ö", b"\xff"))
        sent: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
            (None, b"value", ()), (b"key", None, headers), (b"", b"", ()), (b"k", b"x" * 5000, ()),
        ]  # fmt: skip
        deliveries = [
            await client.send(topic, value, key, head, timestamp_ms=1000 + number)
            for number, (key, value, head) in enumerate(sent)
        ]
        stored = [await delivery for delivery in deliveries]
        assert [each.offset for each in stored] == [0, 1, 2, 3]
        assert [each.timestamp for each in stored] == [1000, 1001, 1002, 1003]
        found = await everything(client, topic)
        assert [(each.key, each.value, each.headers) for each in found] == sent
        assert [each.timestamp for each in found] == [1000, 1001, 1002, 1003]

    with_client(bootstrap, work, compression=compression)


def test_keys_choose_partitions_and_order_holds_within_each(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, 4)
        for number in range(2000):
            await client.send(topic, b"%d" % number, b"key %d" % (number % 7))
        await client.flush()
        homes: dict[bytes | None, set[int]] = {}
        values: dict[bytes | None, list[int]] = {}
        for record in await everything(client, topic, 4):
            homes.setdefault(record.key, set()).add(record.partition)
            values.setdefault(record.key, []).append(int(record.value or b""))
        assert all(len(partitions) == 1 for partitions in homes.values())
        assert all(each == sorted(each) for each in values.values())
        assert sum(map(len, values.values())) == 2000

    with_client(bootstrap, work)


def test_small_batches_fill_the_pipe_and_stay_in_order(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, 2)
        for number in range(1000):
            await client.send(topic, b"%d" % number, partition=number % 2)
        await client.flush()
        found = await everything(client, topic, 2)
        for partition in range(2):
            values = [int(each.value or b"") for each in found if each.partition == partition]
            assert values == list(range(partition, 1000, 2))

    with_client(bootstrap, work, batch_bytes=100)


def test_keyless_records_are_spread_in_turn_when_asked_for(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, 3)
        for _ in range(10):
            await client.send(topic, b"")
        await client.flush()
        ends = await client.list_offsets({(topic, number): -1 for number in range(3)})
        assert sorted(found.offset for found in ends.values()) == [3, 3, 4]

    with_client(bootstrap, work, keyless="round-robin")


def test_sending_creates_a_topic_and_reading_does_not(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        written, read = unique("made"), unique("not-made")
        await (await client.send(written, b"x"))
        assert len(await everything(client, written)) == 1
        with pytest.raises(KafkaError, match=read):
            await everything(client, read)
        assert read not in (await client.metadata()).topics

    with_client(bootstrap, work, topic_wait_ms=2000)


def test_a_client_that_may_not_create_topics_says_that_there_is_none(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        with pytest.raises(KafkaError, match="create it first"):
            await client.send(unique("never"), b"x")

    with_client(bootstrap, work, topic_wait_ms=300, allow_auto_create=False)


def test_a_partition_that_is_not_there_is_named_and_one_that_is_added_is_found(
    bootstrap: str,
) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        await (await client.send(topic, b"x"))
        with pytest.raises(KafkaError, match="has no partition 1"):
            await client.send(topic, b"x", partition=1)
        await client.create_partitions({topic: 2})
        assert (await (await client.send(topic, b"x", partition=1))).partition == 1

    with_client(bootstrap, work, topic_wait_ms=2000)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_acknowledgement_level_delivers(bootstrap: str, acks: int) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        deliveries = [await client.send(topic, b"%d" % number) for number in range(500)]
        offsets = [(await each).offset for each in deliveries]
        assert offsets == ([-1] * 500 if acks == 0 else list(range(500)))
        found = client.consume({(topic, 0): 0}, stop_at={(topic, 0): 500})
        assert [int(each.value or b"") async for each in found] == list(range(500))

    with_client(bootstrap, work, acks=acks, batch_bytes=1000)


def test_leaving_sends_what_nobody_will_acknowledge(bootstrap: str) -> None:
    topic = unique("unacknowledged")

    async def write(client: AsyncKafkaClient) -> None:
        for _ in range(5000):
            await client.send(topic, bytes(1000))

    async def read(client: AsyncKafkaClient) -> None:
        found = client.consume({(topic, 0): 0}, stop_at={(topic, 0): 5000})
        assert sum([1 async for _ in found]) == 5000

    with_client(bootstrap, write, acks=0)
    with_client(bootstrap, read)


def test_a_record_that_the_broker_refuses_fails_alone(bootstrap: str) -> None:
    """Its batch's numbers are then missing at the broker; what is behind it is sent anew."""

    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, max_message_bytes="2000")
        deliveries = []
        for number in range(60):
            value = b"%d" % number
            deliveries.append(await client.send(topic, value + b" " * (5000 * (number % 10 == 4))))
        results = await asyncio.gather(*deliveries, return_exceptions=True)
        refused = [number for number, each in enumerate(results) if isinstance(each, KafkaError)]
        assert refused == [4, 14, 24, 34, 44, 54]
        error = results[4]
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        values = [int(each.value or b"") for each in await everything(client, topic)]
        assert values == [number for number in range(60) if number not in refused]

    with_client(bootstrap, work, batch_bytes=200)


def test_a_batch_that_is_too_large_for_the_topic_is_split(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, max_message_bytes="3000")
        deliveries = [await client.send(topic, b"%d" % n + b" " * 500) for n in range(100)]
        stored = await asyncio.gather(*deliveries)
        assert [each.offset for each in stored] == list(range(100))
        assert [int(each.value or b"") for each in await everything(client, topic)] == [*range(100)]
        assert client.core.producer.buffered_bytes == 0

    with_client(bootstrap, work)


def test_what_can_not_be_sent_is_refused_at_the_call(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        with pytest.raises(KafkaError, match="max_request_bytes"):
            await client.send(topic, bytes(2**20))
        with pytest.raises(TypeError, match="value must be bytes"):
            await client.send(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="header h must be bytes"):
            await client.send(topic, b"", headers=[("h", "text")])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="timestamp"):
            await client.send(topic, b"", timestamp_ms=-5)
        with pytest.raises(KafkaError, match="not a topic name"):
            await client.send("no/name", b"")
        assert (await (await client.send(topic, b"fine"))).offset == 0

    with_client(bootstrap, work)


def test_senders_wait_while_the_buffer_is_full(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        highest = 0

        async def sender() -> None:
            nonlocal highest
            for _ in range(300):
                await client.send(topic, bytes(1000))
                highest = max(highest, client.core.producer.buffered_bytes)

        await asyncio.gather(*(sender() for _ in range(4)))
        await client.flush()
        assert highest <= 22_000
        ends = await client.list_offsets({(topic, 0): -1})
        assert ends[topic, 0].offset == 1200

    with_client(bootstrap, work, buffer_bytes=20_000, batch_bytes=5000)


def test_a_reader_gets_what_is_written_while_it_waits(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, 2)
        values = []
        records = client.consume({(topic, 0): -1, (topic, 1): 0})
        async with aclosing(records):  # type: ignore[type-var]
            first = asyncio.ensure_future(anext(records))
            while not first.done():
                await (await client.send(topic, b"later", partition=0))
            values.append((await first).value)
            await client.send(topic, b"other", partition=1)
            while (record := await anext(records)).partition == 0:
                pass
            values.append(record.value)
        assert values == [b"later", b"other"]

    with_client(bootstrap, work)


def test_a_reader_starts_and_stops_where_it_is_told(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        for number in range(100):
            await client.send(topic, b"%d" % number)
        await client.flush()
        found = client.consume({(topic, 0): 30}, stop_at={(topic, 0): 60})
        assert [record.offset async for record in found] == list(range(30, 60))
        found = client.consume({(topic, 0): 100}, stop_at="end")
        assert [record async for record in found] == []

    with_client(bootstrap, work)


def test_a_slow_reader_bounds_what_is_fetched_ahead(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        for _ in range(2000):
            await client.send(topic, bytes(1000))
        await client.flush()
        fetcher = client.core.fetch({(topic, 0): 0}, {(topic, 0): 2000})
        seen = 0
        while not fetcher.finished:
            client.schedule()
            await asyncio.sleep(0)
            assert fetcher.buffered_bytes < 50_000 + 60_000
            if (chunk := fetcher.take()) is not None:
                seen += sum(1 for _ in read_records(chunk))
        assert seen == 2000
        client.core.stop_fetching(fetcher, client.now_ms())

    with_client(
        bootstrap, work, fetch_buffer_bytes=50_000, fetch_partition_bytes=20_000, batch_bytes=10_000
    )


@pytest.mark.parametrize(("policy", "first"), [("earliest", 40), ("latest", 50)])
def test_an_offset_that_is_gone_is_left_for_the_one_chosen(
    bootstrap: str, policy: str, first: int
) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        for number in range(50):
            await client.send(topic, b"%d" % number)
        await client.flush()
        assert await client.delete_records({(topic, 0): 40}) == {(topic, 0): 40}
        records = client.consume({(topic, 0): 3})
        async with aclosing(records):  # type: ignore[type-var]
            found = asyncio.ensure_future(anext(records))
            if policy == "latest":
                while not found.done():
                    await (await client.send(topic, b"new"))
            assert (await found).offset >= first

    with_client(bootstrap, work, out_of_range=policy)


def test_an_offset_that_is_gone_is_an_error_unless_chosen_otherwise(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        with pytest.raises(KafkaError, match="offset 7") as caught:
            async for _ in client.consume({(topic, 0): 7}):
                pass
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    with_client(bootstrap, work)


def test_offsets_are_found_by_time(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, retention_ms="-1")
        for number in range(10):
            await client.send(topic, b"", timestamp_ms=1_000_000 + number * 1000)
        await client.flush()
        key = topic, 0
        for when, offset in ((-2, 0), (-1, 10), (0, 0), (1_003_500, 4), (9_999_999, -1)):
            assert (await client.list_offsets({key: when}))[key].offset == offset
        assert await client.list_offsets({}) == {}

    with_client(bootstrap, work)


def test_configurations_are_described_and_altered(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, retention_ms="5000")
        await client.alter_configs(
            ResourceKind.TOPIC, topic, {"retention.ms": None, "max.message.bytes": "4242"}
        )
        configs = await client.describe_configs(ResourceKind.TOPIC, topic)
        assert configs["max.message.bytes"].value == "4242"
        assert configs["max.message.bytes"].source == ConfigSource.TOPIC
        assert configs["retention.ms"].source != ConfigSource.TOPIC
        node = next(iter((await client.metadata([])).brokers))
        assert await client.describe_configs(ResourceKind.BROKER, str(node))
        with pytest.raises(KafkaError) as caught:
            await client.alter_configs(ResourceKind.TOPIC, topic, {"no.such": "1"})
        assert caught.value.code is ErrorCode.INVALID_CONFIG

    with_client(bootstrap, work)


def test_topics_come_and_go_and_mistakes_are_named(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client, 3)
        assert len((await client.metadata([topic])).topics[topic].partitions) == 3
        with pytest.raises(KafkaError) as caught:
            await client.create_topics([NewTopic(topic)])
        assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        with pytest.raises(KafkaError) as caught:
            await client.create_partitions({topic: 2})
        assert caught.value.code is ErrorCode.INVALID_PARTITIONS
        await client.create_topics([NewTopic(unique("dry"))], validate_only=True)
        await client.delete_topics([topic])
        with pytest.raises(KafkaError) as caught:
            await client.delete_topics([topic])
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_client(bootstrap, work)


def test_any_request_can_be_made_of_any_broker(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> None:
        topic = await new_topic(client)
        question = Struct(include_cluster_authorized_operations=False, include_fenced_brokers=False)
        node = next(iter((await client.metadata([])).brokers))
        for target in (Node(node), Leader(topic, 0), Controller()):
            answer = await client.request(Api.DESCRIBE_CLUSTER, question, target)
            assert [broker.broker_id for broker in answer.brokers] == [node]
        old = Struct(include_cluster_authorized_operations=False)
        answer = await client.request(Api.DESCRIBE_CLUSTER, old, max_version=0)
        assert not hasattr(answer, "endpoint_type")
        with pytest.raises(KafkaError, match="there is no node 99"):
            await client.request(Api.DESCRIBE_CLUSTER, question, Node(99))
        with pytest.raises(TypeError, match="missing"):
            await client.request(Api.DESCRIBE_CLUSTER, Struct())
        with pytest.raises(KafkaError, match="no partition 5"):
            await client.request(Api.DESCRIBE_CLUSTER, question, Leader(topic, 5))

    with_client(bootstrap, work, topic_wait_ms=2000)


def test_a_broker_that_is_not_there_is_reported_with_its_address() -> None:
    async def work(client: AsyncKafkaClient) -> None:
        raise AssertionError("it can't get here")

    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1 .*sapwood up"):
        with_client("127.0.0.1:1", work, bootstrap_timeout_ms=200)


def test_the_second_address_serves_if_the_first_is_dead(bootstrap: str) -> None:
    async def work(client: AsyncKafkaClient) -> int:
        return len((await client.metadata([])).brokers)

    assert with_client(f"127.0.0.1:1,{bootstrap}", work) == 1


def test_a_closed_client_tells_everybody_who_waits_and_refuses_new_work(bootstrap: str) -> None:
    async def run() -> None:
        client = AsyncKafkaClient(bootstrap)
        await client.connect()
        topic = await new_topic(client)
        records = client.consume({(topic, 0): 0})
        waiting = asyncio.ensure_future(anext(records))
        delivery = await client.send(topic, b"x")
        await client.close()
        for awaitable in (waiting, delivery):
            with pytest.raises(ClientClosed):
                await awaitable
        with pytest.raises(ClientClosed):
            await client.send(topic, b"x")
        with pytest.raises(ClientClosed):
            await client.metadata()
        with pytest.raises(ClientClosed):
            await client.list_offsets({(topic, 0): -1})
        await client.close()

    asyncio.run(run())


def test_two_steps_in_a_row_may_both_be_due_at_once_on_uvloop(bootstrap: str) -> None:
    async def run() -> int:
        async with AsyncKafkaClient(bootstrap) as client:
            core = client.core
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(core, "wake_at_ms", lambda now_ms: now_ms - 1_000)
                client._step()
                client._step()
            return len((await client.metadata([])).brokers)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == 1
