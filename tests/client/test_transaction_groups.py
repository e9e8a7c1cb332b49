"""Transactions that their writers leave open, and that somebody else ends."""

import asyncio

import pytest

from sapwood.client import AsyncKafkaClient, KafkaClient, KafkaError
from sapwood.client.config import READ_COMMITTED
from sapwood.client.transaction_groups import Child, child_id
from tests.helpers import unique


def leave_open(bootstrap: str, transactional_id: str, topic: str, value: bytes) -> Child:
    with KafkaClient(bootstrap) as client:
        transactor = client.core.transactor(transactional_id, 60_000, client.now_ms)
        client.run(transactor.begin())
        assert client.run(transactor.leave_open()) is None  # as long as there is nothing in it
        client.send(topic, value, transactor=transactor)
        child = client.run(transactor.leave_open())
        assert child is not None
        return child


def committed(bootstrap: str, topic: str) -> list[bytes | None]:
    with KafkaClient(bootstrap, isolation_level=READ_COMMITTED) as client:
        return [record.value for record in client.consume({(topic, 0): -2}, stop_at="end")]


def test_what_was_left_open_by_many_is_ended_by_one(bootstrap: str) -> None:
    query, topic = unique("query"), unique("topic")
    children = [
        leave_open(bootstrap, child_id(query, 5, task, 0), topic, b"%d" % task) for task in range(3)
    ]
    assert committed(bootstrap, topic) == []
    with KafkaClient(bootstrap) as client:
        assert client.last_batch(query) == -1
        assert client.end_group(query, 5, children[:2]) == (5, False)
        assert client.end_group(query, 5, children[:2]) == (5, True)
        assert client.last_batch(query) == 5
    assert sorted(filter(None, committed(bootstrap, topic))) == [b"0", b"1"]


def test_an_asyncio_client_ends_groups_as_well(bootstrap: str) -> None:
    query, topic = unique("query"), unique("topic")
    child = leave_open(bootstrap, child_id(query, 0, 0, 0), topic, b"x")

    async def end() -> None:
        async with AsyncKafkaClient(bootstrap) as client:
            assert await client.end_group(query, 0, [child], committed=False) == (-1, False)
            with pytest.raises(KafkaError, match=f"batch 0 of {query}"):
                await client.end_group(query, 0, [child])

    asyncio.run(end())
    assert committed(bootstrap, topic) == []
