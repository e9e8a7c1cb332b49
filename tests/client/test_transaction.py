"""Consume, process, produce: `client.transaction()`, and receipts."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sapwood
from sapwood import Client
from sapwood.client import AsyncKafkaClient, KafkaClient, KafkaError
from sapwood.client.config import READ_COMMITTED
from sapwood.client.messages import received
from sapwood.client.session import DELIVERIES_TOPIC, AckMode
from tests.client.getting import SOON_S, get_all
from tests.client.proxy import CuttingProxy, cut_off_node
from tests.helpers import eventually, unique


class Failed(Exception):
    """What a program's own code may raise in a transaction."""


def committed(bootstrap: str, topic: str, partitions: int = 1) -> list[str]:
    with KafkaClient(bootstrap, isolation_level=READ_COMMITTED) as client:
        positions = {(topic, number): -2 for number in range(partitions)}
        return [received(each).text for each in client.consume(positions, stop_at="end")]


def drain(client: Client, topic: str, count: int) -> list[str]:
    return [message.text for message in get_all(client, topic, count)]


def test_what_is_put_in_a_transaction_is_seen_when_it_is_committed(bootstrap: str) -> None:
    topic, other = unique("transaction"), unique("transaction")
    with Client(bootstrap, id="alice") as alice:
        alice.put(topic, "before")
        with alice.transaction() as transaction:
            transaction.put(topic, "one")
            transaction.put(other, "two", key="k", headers={"a": "b"})
            alice.put(topic, "outside")  # before or behind it in the log: nothing is promised
            assert "one" not in committed(bootstrap, topic)
        assert sorted(committed(bootstrap, topic)) == ["before", "one", "outside"]
        assert committed(bootstrap, other) == ["two"]


def test_an_aborted_transaction_leaves_nothing_and_its_messages_come_again(
    bootstrap: str,
) -> None:
    source, target = unique("source"), unique("target")

    def fail(client: Client) -> None:
        with client.transaction() as transaction:
            message = transaction.get(source, 10)
            assert message is not None
            transaction.put(target, f"half of {message.text}")
            raise Failed

    with Client(bootstrap, id="alice") as alice:
        alice.put(target, "first")
        alice.put(source, "0")
        alice.subscribe(source, start="earliest")
        alice.subscribe(target, start="earliest")
        alice.put(source, "1")
        for _ in range(3):
            with pytest.raises(Failed):
                fail(alice)
        with alice.transaction() as transaction:
            for message in transaction.get_many(source, 10, 10):
                transaction.put(target, f"all of {message.text}")
        assert drain(alice, source, 0) == []
        assert drain(alice, target, 3) == ["first", "all of 0", "all of 1"]


def test_transactions_follow_each_other_under_one_identity(bootstrap: str) -> None:
    source, target = unique("source"), unique("target")
    with Client(bootstrap, id="alice") as alice:
        alice.put_many(source, [str(number) for number in range(20)])
        alice.subscribe(source, start="earliest")
        for _ in range(20):
            with alice.transaction() as transaction:
                message = transaction.get(source, 10)
                assert message is not None
                transaction.put(target, message.text)
        with alice.transaction():
            pass  # an empty one costs nothing
    assert committed(bootstrap, target) == [str(number) for number in range(20)]


def test_a_topic_that_a_transaction_reads_is_not_read_beside_it(bootstrap: str) -> None:
    source = unique("source")
    with Client(bootstrap, id="alice") as alice:
        alice.put_many(source, ["0", "1"])
        alice.subscribe(source, start="earliest")
        with alice.transaction() as transaction:
            assert transaction.get(source, 10) is not None
            with pytest.raises(RuntimeError, match="through the transaction"):
                alice.get(source, 10)
        assert drain(alice, source, 1) == ["1"]


def test_a_transaction_that_took_too_long_has_failed_as_a_whole(bootstrap: str) -> None:
    source, target = unique("source"), unique("target")

    def be_slow(client: Client) -> None:
        with client.transaction(timeout=1) as transaction:
            message = transaction.get(source, 10)
            assert message is not None
            transaction.put(target, message.text)
            assert client.get(empty, 4) is None  # it is over by the time this returns

    with Client(bootstrap, id="alice") as alice:
        empty = unique("empty")
        alice.put(empty, "")
        alice.subscribe(empty)
        alice.put(source, "0")
        alice.subscribe(source, start="earliest")
        with pytest.raises(KafkaError):
            be_slow(alice)
        assert committed(bootstrap, target) == []
        assert drain(alice, source, 1) == ["0"]


def test_the_asynchronous_client_has_transactions_side_by_side(bootstrap: str) -> None:
    sources = [unique("source") for _ in range(3)]
    target = unique("target")

    async def move(client: sapwood.AsyncClient, source: str) -> None:
        await client.put_many(source, [f"{source} {number}" for number in range(5)])
        await client.subscribe(source, start="earliest")
        for _ in range(5):
            async with client.transaction() as transaction:
                message = await transaction.get(source, 10)
                assert message is not None
                await transaction.put(target, message.text)

    async def run() -> None:
        async with sapwood.AsyncClient(bootstrap, id="alice") as client:
            await asyncio.gather(*(move(client, source) for source in sources))

    asyncio.run(run())
    expected = [f"{source} {number}" for source in sources for number in range(5)]
    assert sorted(committed(bootstrap, target)) == sorted(expected)


def test_two_transactions_of_one_client_do_not_read_one_topic(bootstrap: str) -> None:
    """Each would commit, or give back, what the other has got."""
    source = unique("source")
    with Client(bootstrap, id="alice") as alice:
        alice.put_many(source, ["0", "1"])
        alice.subscribe(source, start="earliest")
        with alice.transaction() as first, alice.transaction() as second:
            assert first.get(source, 10) is not None
            with pytest.raises(RuntimeError, match="through the transaction"):
                second.get(source, 10)
        assert drain(alice, source, 1) == ["1"]


def test_every_transaction_has_the_time_that_it_was_given(bootstrap: str) -> None:
    empty, target = unique("empty"), unique("target")
    with Client(bootstrap, id="alice") as alice:
        alice.put(empty, "")
        alice.subscribe(empty)
        with alice.transaction(timeout=3) as transaction:
            transaction.put(target, "0")
        with alice.transaction(timeout=60) as transaction:
            transaction.put(target, "1")
            assert alice.get(empty, 4) is None  # longer than the first one had
    assert committed(bootstrap, target) == ["0", "1"]


def test_the_end_of_a_transaction_is_not_pending_once_its_messages_are_got(
    bootstrap: str,
) -> None:
    topic = unique("ended")

    def is_through(client: Client, ack: AckMode) -> bool:
        """The end itself may be heard of only after the messages before it."""
        assert client.get(topic, SOON_S, ack=ack) is None
        return [each.lag for each in client.pending(topic)] == [0]

    with Client(bootstrap, id="alice") as alice:
        alice.put(topic, "0")
        alice.subscribe(topic, start="earliest")
        with alice.transaction() as transaction:
            transaction.put(topic, "1")
        with suppress(Failed), alice.transaction() as transaction:
            transaction.put(topic, "2")
            raise Failed
        assert drain(alice, topic, 2) == ["0", "1"]
        eventually(lambda: is_through(alice, "auto"))
        with alice.transaction() as transaction:
            transaction.put(topic, "3")
        message = alice.get(topic, 10, ack="manual")
        assert message is not None
        message.ack()
        eventually(lambda: is_through(alice, "manual"))


def test_receipts_prove_what_was_delivered_to_whom(bootstrap: str) -> None:
    topic = unique("audited")
    with Client(bootstrap, id="shop") as shop:
        stored = shop.put_many(topic, ["a", "b", "c"])
        with Client(bootstrap, id="alice", receipts=True) as alice:
            alice.subscribe(topic, start="earliest")
            assert drain(alice, topic, 3) == ["a", "b", "c"]
            with pytest.raises(ValueError, match="receipts"):
                alice.get(topic, 0, ack="manual")
    receipts = [json.loads(each) for each in committed(bootstrap, DELIVERIES_TOPIC)]
    mine = [each for each in receipts if each["topic"] == topic]
    assert [(each["subscriber"], each["id"], each["offset"]) for each in mine] == [
        ("alice", each.id, each.offset) for each in stored
    ]


def test_connections_cut_at_any_byte_neither_lose_nor_double_what_transactions_move(
    tmp_path: Path,
) -> None:
    async def cut_now_and_then(proxy: CuttingProxy, done: asyncio.Event) -> None:
        step = 7
        while not done.is_set():
            if proxy.cut_after_bytes is None:
                step = step * 31 % 6_007
                proxy.cut_after_bytes = 1_500 + step
            await asyncio.sleep(0)

    async def move(client: sapwood.AsyncClient) -> None:
        async with client.transaction() as transaction:
            for message in await transaction.get_many("source", 3, timeout=1):
                await transaction.put("target", message.text)

    async def run() -> None:
        async with cut_off_node(tmp_path) as (cluster, proxy):
            bootstrap = f"127.0.0.1:{proxy.port}"
            async with sapwood.AsyncClient(
                bootstrap,
                id="alice",
                batch_bytes=500,
                fetch_partition_bytes=1000,
                backoff_ms=1,
            ) as client:
                await client.put_many("source", [str(number) for number in range(200)])
                await client.subscribe("source", start="earliest")
                done = asyncio.Event()
                cutter = asyncio.ensure_future(cut_now_and_then(proxy, done))
                while [each for each in await client.pending("source") if each.lag]:
                    with suppress(KafkaError):  # nothing of it holds then
                        await move(client)
                done.set()
                await cutter
                proxy.cut_after_bytes = None
            found = await asyncio.to_thread(committed, cluster.bootstrap, "target")
            assert [int(each) for each in found] == list(range(200))
            assert proxy.cut_count > 10

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_get_with_a_receipt_that_is_cancelled_loses_nothing(bootstrap: str) -> None:
    topic = unique("audited")

    async def run() -> list[int]:
        async with sapwood.AsyncClient(bootstrap, id="alice", receipts=True) as client:
            await client.subscribe(topic, start="earliest")
            await client.put_many(topic, [str(number) for number in range(30)])
            found: list[int] = []
            steps = 0
            while len(found) < 30:
                getting = asyncio.ensure_future(client.get(topic, 10))
                for _ in range(steps % 40):
                    await asyncio.sleep(0)
                steps += 1
                if steps % 4:
                    getting.cancel()
                with suppress(asyncio.CancelledError):
                    message = await getting
                    if message is not None:
                        found.append(int(message.text))
            return found

    assert asyncio.run(run()) == list(range(30))
    receipts = [json.loads(each) for each in committed(bootstrap, DELIVERIES_TOPIC)]
    offsets = [each["offset"] for each in receipts if each["topic"] == topic]
    assert sorted(offsets) == list(range(30))


def test_tasks_that_get_with_receipts_at_once_take_turns(bootstrap: str) -> None:
    topic = unique("audited")

    async def run() -> None:
        async with sapwood.AsyncClient(bootstrap, id="alice", receipts=True) as client:
            await client.subscribe(topic, start="earliest")
            await client.put_many(topic, [str(number) for number in range(10)])
            found = await asyncio.gather(*(client.get(topic, 10) for _ in range(10)))
            assert sorted(int(each.text) for each in found if each) == list(range(10))

    asyncio.run(run())


SMALL: dict[str, Any] = {"buffer_bytes": 10_000, "batch_bytes": 2000}


def test_a_transaction_holds_the_sender_up_when_its_buffer_is_full(bootstrap: str) -> None:
    topic = unique("transaction")
    with KafkaClient(bootstrap, **SMALL) as client:
        transactor = client.core.transactor(topic, 60_000, client.now_ms)
        client.run(transactor.begin())
        for _ in range(500):
            client.send(topic, b"x" * 500, transactor=transactor)
            assert transactor.producer.buffered_bytes <= 11_000
        client.run(transactor.commit({}))
    assert len(committed(bootstrap, topic)) == 500


def test_so_it_does_on_an_event_loop(bootstrap: str) -> None:
    topic = unique("transaction")

    async def run() -> None:
        async with AsyncKafkaClient(bootstrap, **SMALL) as client:
            transactor = client.core.transactor(topic, 60_000, client.now_ms)
            await client.run(transactor.begin())

            async def send_many() -> None:
                for _ in range(125):
                    await client.send(topic, b"x" * 500, transactor=transactor)
                    assert transactor.producer.buffered_bytes <= 11_000

            await asyncio.gather(*(send_many() for _ in range(4)))
            await client.run(transactor.commit({}))

    asyncio.run(run())
    assert len(committed(bootstrap, topic)) == 500
