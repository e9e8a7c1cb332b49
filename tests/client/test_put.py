"""Putting messages, with both clients, into a running node."""

import asyncio

import pytest

import sapwood
from sapwood.client import KafkaClient, Stored
from sapwood.client.admin import NewTopic
from sapwood.client.fetcher import ConsumedRecord
from sapwood.client.messages import received
from tests.helpers import unique


def everything(bootstrap: str, topic: str) -> list[ConsumedRecord]:
    with KafkaClient(bootstrap) as client:
        return list(client.consume({(topic, 0): -2}, stop_at="end"))


def test_a_message_is_stored_when_put_returns(bootstrap: str) -> None:
    topic = unique("put")
    with sapwood.Client(bootstrap, id="shop") as client:
        stored = client.put(topic, "first", headers={"a": "1"})
        assert stored == Stored(stored.id, topic, 0, 0, stored.timestamp)
        found = received(everything(bootstrap, topic)[0])
    assert (found.id, found.sender, found.key) == (stored.id, "shop", b"shop")
    assert (found.text, found.headers) == ("first", (("a", b"1"),))


def test_messages_are_put_in_order_with_and_without_waiting(bootstrap: str) -> None:
    topic = unique("put")
    with sapwood.Client(bootstrap) as client:
        many = client.put_many(topic, [str(number) for number in range(100)])
        assert [each.offset for each in many] == list(range(100))
        assert client.put_nowait(topic, "100", key="other").wait(10).offset == 100
        client.put_nowait(topic, "101")
    found = everything(bootstrap, topic)
    assert [int(each.value or b"") for each in found] == list(range(102))
    assert len({received(each).id for each in found}) == 102


def test_a_put_that_is_repeated_under_its_id_is_stored_once(bootstrap: str) -> None:
    topic = unique("put")
    with sapwood.Client(bootstrap, id="shop") as client:
        first = client.put(topic, "first", id="17")
        client.put(topic, "second")
    with sapwood.Client(bootstrap, id="shop") as client:
        assert client.put(topic, "first", id="17").offset == first.offset == 0
        repeated = client.put_many(topic, ["first", "third", "fourth"], ids=["17", "18", "19"])
        assert [each.offset for each in repeated] == [0, 2, 3]
    values = [each.value for each in everything(bootstrap, topic)]
    assert values == [b"first", b"second", b"third", b"fourth"]


def test_whoever_repeats_a_put_under_its_id_gets_to_where_it_was(bootstrap: str) -> None:
    """Clients without an id, whose names differ, and no key."""
    topic = unique("put")
    ids = [str(number) for number in range(12)]

    def places(stored: list[Stored]) -> list[tuple[int, int]]:
        return [(each.partition, each.offset) for each in stored]

    async def put_as_well() -> list[Stored]:
        async with sapwood.AsyncClient(bootstrap) as client:
            return await client.put_many(topic, ids, ids=ids)

    with KafkaClient(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 4, 1)])
        with sapwood.Client(bootstrap) as client:
            first = places(client.put_many(topic, ids, ids=ids))
        with sapwood.Client(bootstrap) as client:
            assert places([client.put(topic, each, id=each) for each in ids]) == first
        assert places(asyncio.run(put_as_well())) == first
        assert len({partition for partition, _ in first}) > 1
        ends = admin.list_offsets({(topic, partition): -1 for partition in range(4)})
        assert sum(each.offset for each in ends.values()) == 12


def test_puts_with_and_without_ids_keep_their_order(bootstrap: str) -> None:
    topic = unique("put")
    with sapwood.Client(bootstrap) as client:
        for number in range(60):
            client.put_nowait(topic, str(number), id=str(number) if number % 3 else None)
    assert [int(each.value or b"") for each in everything(bootstrap, topic)] == list(range(60))


def test_the_asynchronous_client_puts_the_same_way(bootstrap: str) -> None:
    topic = unique("put")

    async def run() -> None:
        async with sapwood.AsyncClient(bootstrap, id="shop") as client:
            assert (await client.put(topic, "0", id="a")).offset == 0
            assert (await client.put(topic, "0", id="a")).offset == 0
            assert [each.offset for each in await client.put_many(topic, ["1", "2"])] == [1, 2]
            await client.put_nowait(topic, "3")

    asyncio.run(run())
    assert [each.value for each in everything(bootstrap, topic)] == [b"0", b"1", b"2", b"3"]


def test_a_client_without_an_id_can_not_subscribe(bootstrap: str) -> None:
    with sapwood.Client(bootstrap) as client, pytest.raises(ValueError, match="needs an id"):
        client.get("anything")
    for wrong in ("", "a␟b"):
        with pytest.raises(ValueError, match="no id"):
            sapwood.Client(bootstrap, id=wrong)
