"""Partitions that leave a process and come back to it while it makes no call for them."""

import asyncio
from collections.abc import Iterator

import pytest

import sapwood
from sapwood import Client
from sapwood.client import KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.group_admin import describe_group
from sapwood.client.subscriber import group_of
from tests.client.getting import get_all
from tests.helpers import eventually, eventually_on_loop, unique


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Of a node that soon misses who is silent."""
    config = {
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.session.timeout.ms": "1000",
    }
    with sapwood.Cluster(config=config) as cluster:
        yield cluster.bootstrap


def new_topic(bootstrap: str, partitions: int, messages: int) -> str:
    """So many messages in each partition."""
    name = unique("moves")
    with KafkaClient(bootstrap) as client:
        client.create_topics([NewTopic(name, partitions, 1)])
        for number in range(messages):
            for partition in range(partitions):
                client.send(name, f"{partition}/{number}".encode(), partition=partition)
    return name


class Observer:
    """Sees a subscription from outside."""

    def __init__(self, kafka: KafkaClient, topic: str) -> None:
        self._kafka = kafka
        self._group = group_of(topic, "alice")

    def shares(self) -> list[int]:
        """How many partitions each process has."""
        found = self._kafka.run(describe_group(self._kafka.core, self._kafka.now_ms, self._group))
        return [len(each.owned) for each in found.members] if found else []

    def positions(self) -> list[int]:
        return [each.offset for _, each in sorted(self._kafka.positions(self._group).items())]


def test_what_another_process_got_meanwhile_does_not_come_again(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2, 10)

    async def run() -> None:
        with KafkaClient(bootstrap) as kafka:
            observer = Observer(kafka, topic)
            async with sapwood.AsyncClient(bootstrap, id="alice") as first:
                await first.subscribe(topic, start="earliest")
                found = await first.get_many(topic, 2, 10)
                await eventually_on_loop(lambda: observer.shares() == [2], every_s=0.05)
                # It knows where it is in each of them, and has read on.
                found += await first.get_many(topic, 2, 10)
                async with sapwood.AsyncClient(bootstrap, id="alice") as second:
                    found += await second.get_many(topic, 3, 30)
                before = observer.positions()
                await eventually_on_loop(lambda: observer.shares() == [2], every_s=0.05)
                await first.pending(topic)  # it has heard of that
                while messages := await first.get_many(topic, 4, 30 if len(found) < 20 else 1):
                    found += messages
                    after = observer.positions()
                    assert all(now >= then for now, then in zip(after, before, strict=True))
                    before = after
            texts = sorted(message.text for message in found)
            assert texts == sorted(f"{p}/{n}" for p in range(2) for n in range(10))

    asyncio.run(run())


def test_a_transaction_whose_partition_went_to_another_process_fails(bootstrap: str) -> None:
    """It stalls, and takes part again before it ends."""
    topic, other = new_topic(bootstrap, 1, 5), new_topic(bootstrap, 1, 0)

    def stall_and_go_on(first: Client, second: Client, observer: Observer) -> None:
        with first.transaction() as transaction:
            message = transaction.get(topic, 10)
            assert message is not None
            got.extend(eventually(lambda: second.get_many(topic, 3, 1)))
            eventually(lambda: transaction.put(other, "") and len(observer.shares()) == 2)
            first.pending(topic)  # it has heard of that

    got: list[sapwood.Message] = []
    with (
        Client(bootstrap, id="alice") as first,
        Client(bootstrap, id="alice") as second,
        KafkaClient(bootstrap) as kafka,
    ):
        first.subscribe(topic, start="earliest")
        with pytest.raises(KafkaError, match="FENCED_MEMBER_EPOCH"):
            stall_and_go_on(first, second, Observer(kafka, topic))
        second.close()
        got += get_all(first, topic, 5 - len(got))
        assert [message.text for message in got] == [f"0/{n}" for n in range(5)]


def test_an_ack_does_not_take_back_what_another_process_got_meanwhile(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 1, 5)
    with Client(bootstrap, id="alice") as first, KafkaClient(bootstrap) as kafka:
        observer = Observer(kafka, topic)
        first.subscribe(topic, start="earliest")
        lent = first.get(topic, 10, ack="manual")
        assert lent is not None
        with Client(bootstrap, id="alice") as second:
            assert len(eventually(lambda: second.get_many(topic, 3, 1))) == 3
        eventually(lambda: first.pending(topic) and observer.shares() == [1])
        first.pending(topic)  # it has heard of that
        lent.ack()
        assert observer.positions() == [3]
        assert [message.text for message in get_all(first, topic, 2)] == ["0/3", "0/4"]
