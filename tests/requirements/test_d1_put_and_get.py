"""D1: put, get, subscribe and unsubscribe, with a client and its asynchronous twin."""

import asyncio

import pytest

import sapwood
from sapwood.pytest_plugin import SharedCluster


def test_d1_four_calls_are_all_that_a_program_needs(sapwood_cluster: SharedCluster) -> None:
    bootstrap, topic = sapwood_cluster.bootstrap, sapwood_cluster.topic("d1", 3)
    with sapwood.Client(bootstrap, id="bob") as bob, sapwood.Client(bootstrap, id="shop") as shop:
        bob.subscribe(topic)
        stored = shop.put(topic, "three apples", headers={"urgent": "yes"})
        message = bob.get(topic, timeout=30)
        assert message is not None
        assert (message.id, message.sender) == (stored.id, "shop")
        assert (message.topic, message.partition, message.offset) == stored[1:4]
        assert (message.text, message.key) == ("three apples", b"shop")
        assert message.headers == (("urgent", b"yes"),)
        assert message.timestamp == stored.timestamp
        assert bob.get(topic, timeout=0.2) is None
        bob.unsubscribe(topic)
        with pytest.raises(sapwood.NotSubscribed):
            bob.get(topic, timeout=1)


def test_d1_the_asynchronous_twin_does_the_same(sapwood_cluster: SharedCluster) -> None:
    bootstrap, topic = sapwood_cluster.bootstrap, sapwood_cluster.topic("d1", 3)

    async def run() -> None:
        async with (
            sapwood.AsyncClient(bootstrap, id="bob") as bob,
            sapwood.AsyncClient(bootstrap, id="shop") as shop,
        ):
            await bob.subscribe(topic)
            await shop.put_many(topic, [str(number) for number in range(20)])
            first = await bob.get(topic, timeout=30)
            assert first is not None
            rest = [message.text async for message in bob.messages(topic, timeout=2)]
            assert [first.text, *rest] == [str(number) for number in range(20)]
            await bob.unsubscribe(topic)
            with pytest.raises(sapwood.NotSubscribed):
                await bob.get(topic, timeout=1)

    asyncio.run(run())
