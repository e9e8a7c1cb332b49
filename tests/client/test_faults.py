"""The client while its node dies, restarts, or can't be heard."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import sapwood
from sapwood.client import AsyncKafkaClient, ErrorCode, KafkaError
from sapwood.client.admin import NewTopic
from tests.client.proxy import CuttingProxy, cut_off_node


async def values(client: AsyncKafkaClient, topic: str, partition: int = 0) -> list[int]:
    records = client.consume({(topic, partition): 0}, stop_at="end")
    return [int(record.value or b"") async for record in records]


def test_connections_cut_at_any_byte_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    async def cut_now_and_then(proxy: CuttingProxy, done: asyncio.Event) -> None:
        step = 7
        while not done.is_set():
            if proxy.cut_after_bytes is None:
                step = step * 31 % 40_009  # every length comes up, always in the same order
                proxy.cut_after_bytes = 200 + step
            await asyncio.sleep(0)

    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            bootstrap = f"127.0.0.1:{proxy.port}"
            async with AsyncKafkaClient(bootstrap, batch_bytes=2000, backoff_ms=1) as client:
                await client.create_topics([NewTopic("t", 2)])
                done = asyncio.Event()
                cutter = asyncio.ensure_future(cut_now_and_then(proxy, done))
                deliveries = []
                number = 0
                while proxy.cut_count < 50:
                    for _ in range(100):
                        deliveries.append(
                            await client.send("t", b"%d" % number, partition=number % 2)
                        )
                        number += 1
                    await deliveries[-1]
                stored = await asyncio.gather(*deliveries)
                done.set()
                await cutter
                proxy.cut_after_bytes = None
                for partition in range(2):
                    expected = list(range(partition, number, 2))
                    assert await values(client, "t", partition) == expected
                    offsets = [each.offset for each in stored if each.partition == partition]
                    assert [each for each in offsets if each >= 0] == [
                        offset for offset, each in enumerate(offsets) if each >= 0
                    ]

    asyncio.run(run())


def test_a_reader_whose_connection_is_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            options = {"fetch_partition_bytes": 3000, "batch_bytes": 1000, "backoff_ms": 1}
            async with AsyncKafkaClient(f"127.0.0.1:{proxy.port}", **options) as client:
                for number in range(3000):
                    await client.send("t", b"%d" % number)
                await client.flush()
                found = []
                async for record in client.consume({("t", 0): 0}, stop_at="end"):
                    found.append(int(record.value or b""))
                    if len(found) % 500 == 0:
                        proxy.cut()
                assert found == list(range(3000))

    asyncio.run(run())


def test_an_answer_that_never_comes_is_asked_for_again(tmp_path: Path) -> None:
    """The record is stored, its acknowledgement is lost, and the repetition is recognised."""

    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            options = {"request_timeout_ms": 200, "backoff_ms": 1}
            async with AsyncKafkaClient(f"127.0.0.1:{proxy.port}", **options) as client:
                await (await client.send("t", b"0"))
                proxy.swallows_answers = True
                delivery = await client.send("t", b"1")
                await proxy.swallowed.wait()
                proxy.swallows_answers = False
                assert (await delivery).offset == 1
                assert await values(client, "t") == [0, 1]

    asyncio.run(run())


def test_topics_whose_creation_or_deletion_was_not_answered_are_not_complained_of(
    tmp_path: Path,
) -> None:
    """The first try was carried out, and the second one finds that; asked anew it is an error."""

    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            options = {"request_timeout_ms": 2000, "backoff_ms": 1}
            async with AsyncKafkaClient(f"127.0.0.1:{proxy.port}", **options) as client:
                await client.metadata()

                async def unanswered(change: Coroutine[Any, Any, None]) -> None:
                    proxy.swallowed.clear()
                    proxy.swallows_answers = True
                    changing = asyncio.ensure_future(change)
                    await proxy.swallowed.wait()
                    proxy.swallows_answers = False
                    proxy.cut()
                    await changing

                await unanswered(client.create_topics([NewTopic("t", 3), NewTopic("u")]))
                assert len((await client.metadata()).topics["t"].partitions) == 3
                with pytest.raises(KafkaError) as caught:
                    await client.create_topics([NewTopic("v"), NewTopic("t")])
                assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS

                await unanswered(client.delete_topics(["t", "u"]))
                assert not {"t", "u"} & (await client.metadata()).topics.keys()
                with pytest.raises(KafkaError) as caught:
                    await client.delete_topics(["t"])
                assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(run())


def test_a_record_that_is_not_acknowledged_in_time_fails_and_the_next_one_is_stored(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            options = {"request_timeout_ms": 1000, "delivery_timeout_ms": 3000, "backoff_ms": 1}
            async with AsyncKafkaClient(f"127.0.0.1:{proxy.port}", **options) as client:
                await (await client.send("t", b"0"))
                proxy.swallows_answers = True
                delivery = await client.send("t", b"1")
                with pytest.raises(KafkaError, match="may or may not") as caught:
                    await delivery
                assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
                proxy.swallows_answers = False
                await (await client.send("t", b"2"))
                assert await values(client, "t") in ([0, 1, 2], [0, 2])

    asyncio.run(run())


def test_a_killed_node_is_found_again_by_its_producers_and_readers(
    cluster: sapwood.Cluster,
) -> None:
    async def run() -> None:
        async with AsyncKafkaClient(cluster.bootstrap, batch_bytes=500, backoff_ms=5) as client:
            await client.create_topics([NewTopic("t")])

            async def read() -> list[int]:
                records = client.consume({("t", 0): 0}, stop_at={("t", 0): 3000})
                return [int(record.value or b"") async for record in records]

            reader = asyncio.ensure_future(read())
            deliveries = []
            for number in range(3000):
                deliveries.append(await client.send("t", b"%d" % number))
                if number % 1000 == 500:
                    await deliveries[number - 400]
                    await asyncio.to_thread(cluster.kill)
                    await asyncio.to_thread(cluster.restart)
            await asyncio.gather(*deliveries)
            assert await reader == list(range(3000))

    asyncio.run(run())


def test_calls_made_while_the_node_is_away_are_answered_when_it_is_back(
    cluster: sapwood.Cluster,
) -> None:
    async def run() -> None:
        async with AsyncKafkaClient(cluster.bootstrap) as client:
            await (await client.send("t", b"0"))
            await asyncio.to_thread(cluster.stop)
            offsets = asyncio.ensure_future(client.list_offsets({("t", 0): -1}))
            topics = asyncio.ensure_future(client.metadata())
            made = asyncio.ensure_future(client.create_topics([NewTopic("u")]))
            await asyncio.to_thread(cluster.restart)
            assert (await offsets)["t", 0].offset == 1
            assert "t" in (await topics).topics
            await made

    asyncio.run(run())


def test_a_call_that_nobody_answers_gives_up_and_says_why(cluster: sapwood.Cluster) -> None:
    async def run() -> None:
        async with AsyncKafkaClient(cluster.bootstrap, api_timeout_ms=300) as client:
            await asyncio.to_thread(cluster.stop)
            with pytest.raises(KafkaError) as caught:
                await client.metadata()
            assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
            with pytest.raises(KafkaError):
                await client.list_offsets({("t", 0): -1})

    asyncio.run(run())
