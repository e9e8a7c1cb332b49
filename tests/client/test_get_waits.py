"""Gets that wait: until something changes they do nothing, and keep nobody from his work."""

import asyncio
from typing import Any

import pytest

import sapwood
from sapwood.client import KafkaClient, subscriber
from sapwood.client.admin import NewTopic
from sapwood.client.ledger import MAX_RANGES
from sapwood.client.procedures import Procedure
from sapwood.client.subscriber import Subscriber
from tests.client.getting import PATIENCE_S, SOON_S
from tests.helpers import unique


class Rounds:
    """How often any get has looked for something and found nothing."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    counted, wait = Rounds(), Subscriber._news

    def count(self: Subscriber, until_ms: float) -> Procedure[None]:
        counted.count += 1
        return wait(self, until_ms)

    monkeypatch.setattr(Subscriber, "_news", count)
    return counted


def test_what_moved_to_another_process_and_is_not_acknowledged_is_not_waited_for(
    bootstrap: str, rounds: Rounds
) -> None:
    """It would be overdue for ever."""
    topic = unique("waits")
    with KafkaClient(bootstrap) as kafka:
        kafka.create_topics([NewTopic(topic, 2, 1)])
        for partition in range(2):
            kafka.send(topic, b"", partition=partition)

    async def run() -> None:
        async with (
            sapwood.AsyncClient(bootstrap, id="alice") as first,
            sapwood.AsyncClient(bootstrap, id="alice") as second,
        ):
            await first.subscribe(topic, start="earliest")
            lent: dict[int, sapwood.Message] = {}
            while len(lent) < 2:
                for message in await first.get_many(topic, 2, 10, ack="manual", ack_timeout=0.1):
                    lent[message.partition] = message
            moved = await second.get(topic, 30)
            assert moved is not None
            await lent[1 - moved.partition].ack()
            rounds.count = 0
            assert await first.get_many(topic, 2, 1, ack="manual") == []
            assert rounds.count < 20

    asyncio.run(run())


def test_who_waits_for_room_goes_on_when_there_is_some(
    bootstrap: str, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much is out as may be, and more of it has arrived already."""
    monkeypatch.setattr(subscriber, "_STILL_HERE_MS", 600_000)
    topic = unique("waits")

    async def run() -> None:
        small: dict[str, Any] = {"batch_bytes": 500, "fetch_partition_bytes": 1000}
        async with sapwood.AsyncClient(bootstrap, id="alice", **small) as alice:
            await alice.put(topic, "", key="k")
            await alice.subscribe(topic)
            await alice.put_many(topic, [str(number) for number in range(400)], key="k")
            lent: list[sapwood.Message] = []
            while batch := await alice.get_many(
                topic,
                400,
                PATIENCE_S if len(lent) < MAX_RANGES else SOON_S,
                ack="manual",
                ack_timeout=600,
            ):
                lent += batch
            assert len(lent) == MAX_RANGES
            rounds.count = 0
            waiting = asyncio.ensure_future(alice.get(topic, ack="manual"))
            await alice.pending(topic)
            assert not waiting.done()
            assert rounds.count < 20
            await lent[0].ack()
            following = await asyncio.wait_for(waiting, 15)
            assert following is not None
            assert int(following.text) == len(lent)

    asyncio.run(run())
