"""Topics in one order: transactions, what is deleted meanwhile, and positions; on one node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import sapwood
from sapwood.client import AsyncClient, KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.errors import TopicGone
from sapwood.client.merging import MergePosition
from sapwood.client.sync_client import Merged
from tests.helpers import unique

PATIENCE_S = 30.0
SOON_S = 0.3


def made(bootstrap: str, count: int = 2, partitions: int = 2, **configs: str) -> list[str]:
    names = [unique("merged") for _ in range(count)]
    with KafkaClient(bootstrap) as client:
        client.create_topics([NewTopic(it, partitions, configs=configs) for it in names])
    return names


def texts(merged: Merged) -> list[str]:
    return [message.text for message in merged]


def test_an_open_transaction_holds_the_order_up_and_an_aborted_one_leaves_nothing(
    bootstrap: str,
) -> None:
    first, second = made(bootstrap)
    with sapwood.Client(bootstrap) as client, sapwood.Client(bootstrap) as other:
        merged = other.merged(first, second, timeout=PATIENCE_S)
        with contextlib.suppress(ZeroDivisionError), client.transaction() as transaction:
            transaction.put(first, "aborted")
            raise ZeroDivisionError
        client.put(first, "0", key="a")
        with client.transaction() as transaction:
            transaction.put(first, "1")
            # It may wait for more until the transaction ends: then it would be behind the next one.
            client._kafka.flush(transaction._core.transactor)
            client.put(second, "2")
            assert next(merged).text == "0"
            assert merged.get_many(timeout=SOON_S) == []
        assert [next(merged).text for _ in range(2)] == ["1", "2"]


def test_what_is_deleted_is_left_out_and_holds_nobody_up(bootstrap: str) -> None:
    first, second = made(bootstrap, partitions=1)
    with sapwood.Client(bootstrap) as client, KafkaClient(bootstrap) as admin:
        merged = client.merged(first, second, timeout=PATIENCE_S)
        for number in range(4):
            client.put((first, second)[number % 2], f"{number}")
        assert next(merged).text == "0"
        position = merged.position
        admin.delete_records({(first, 0): -1})
        assert texts(client.merged(first, second, start="earliest", stop="now")) == ["1", "3"]
        assert texts(client.merged(first, second, start=position, stop="now")) == ["1", "3"]
        client.put(first, "4")
        assert texts(client.merged(first, second, start=position, stop="now")) == ["1", "3", "4"]


def test_a_topic_that_is_deleted_and_made_anew_is_not_taken_for_the_same(bootstrap: str) -> None:
    (topic,) = made(bootstrap, 1)
    with sapwood.Client(bootstrap) as client, KafkaClient(bootstrap) as admin:
        merged = client.merged(topic, timeout=PATIENCE_S)
        client.put(topic, "old")
        assert next(merged).text == "old"
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, 1)])
        with pytest.raises(TopicGone, match=topic):
            next(merged)


def test_the_asyncio_twin_reads_the_same_and_starts_when_it_is_awaited(bootstrap: str) -> None:
    topics = made(bootstrap, 3)

    async def read() -> tuple[list[str], str]:
        async with AsyncClient(bootstrap) as client:
            merged = await client.merged(*topics, timeout=PATIENCE_S)
            for number in range(9):
                await client.put(topics[number % 3], f"{number}", key=f"{number}")
            found = []
            async for message in merged:
                found.append(message.text)
                if len(found) == 9:
                    break
            merged.close()
            return found, merged.position

    found, position = asyncio.run(read())
    assert found == [f"{number}" for number in range(9)]
    with sapwood.Client(bootstrap) as client:
        assert texts(client.merged(*topics, start="earliest", stop="now")) == found
        assert texts(client.merged(*topics, start=position, stop="now")) == []


def test_a_batch_is_taken_apart_and_positions_lie_between_its_messages(bootstrap: str) -> None:
    (topic,) = made(bootstrap, 1)
    with sapwood.Client(bootstrap) as client:
        expected = [f"{number}" for number in range(50)]
        client.put_many(topic, expected)
        merged = client.merged(topic, start="earliest", stop="now")
        for number in range(50):
            assert next(merged).text == expected[number]
            rest = client.merged(topic, start=merged.position, stop="now")
            if number % 10 == 0:
                assert texts(rest) == expected[number + 1 :]
            rest.close()


def test_a_place_that_is_none_is_refused(bootstrap: str) -> None:
    with sapwood.Client(bootstrap) as client:
        with pytest.raises(ValueError, match="no place to start"):
            client.merged("t", start="yesterday")
        with pytest.raises(ValueError, match="name a topic"):
            client.merged()
    options: dict[str, Any] = {"allow_auto_create": False, "topic_wait_ms": 200}
    with (
        sapwood.Client(bootstrap, **options) as client,
        pytest.raises(KafkaError, match="missing"),
    ):
        client.merged(unique("missing"))
    position = MergePosition(5, bytes(16), 3, 7)
    assert MergePosition.parse(str(position)) == position
