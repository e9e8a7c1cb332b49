"""Durable subscribers of a running node."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import sapwood
from sapwood import Client
from sapwood.client import KafkaClient, NotAcknowledged, Pending
from sapwood.client.admin import NewTopic
from sapwood.client.group_admin import describe_group
from sapwood.client.session import AckMode
from sapwood.client.subscriber import group_of
from tests.client.getting import PATIENCE_S, SOON_S, get_all
from tests.helpers import eventually, eventually_on_loop, unique


def new_topic(bootstrap: str, partitions: int = 1) -> str:
    name = unique("get")
    with KafkaClient(bootstrap) as client:
        client.create_topics([NewTopic(name, partitions, 1)])
    return name


def put_numbers(client: Client, topic: str, numbers: range, partitions: int = 1) -> None:
    for number in numbers:
        client.put_nowait(topic, str(number), key=f"key {number % (partitions * 5)}")
    client.flush()


def drain(client: Client, topic: str, count: int) -> list[int]:
    return [int(message.text) for message in get_all(client, topic, count)]


def test_a_subscriber_gets_what_is_put_after_it_subscribed_once_and_in_order(
    bootstrap: str,
) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        put_numbers(alice, topic, range(5))
        assert alice.subscribe(topic)
        put_numbers(alice, topic, range(5, 30))
        assert drain(alice, topic, 25) == list(range(5, 30))


def test_who_only_looks_and_does_not_wait_gets_its_messages_too(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        put_numbers(alice, topic, range(3))
        for number in range(3):
            message = eventually(lambda: alice.get(topic, timeout=0))
            assert message is not None
            assert message.text == str(number)


def test_a_loop_that_only_looks_lets_the_event_loop_go_on(bootstrap: str) -> None:
    topic = new_topic(bootstrap)

    async def run() -> None:
        async with sapwood.AsyncClient(bootstrap, id="alice") as alice:
            await alice.subscribe(topic)
            await alice.put(topic, "0")
            deadline_s = time.monotonic() + 15
            message = None
            while message is None and time.monotonic() < deadline_s:
                message = await alice.get(topic, timeout=0)
            assert message is not None

    asyncio.run(run())


def test_a_subscriber_may_begin_with_the_earliest_message(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        put_numbers(alice, topic, range(5))
        assert alice.subscribe(topic, start="earliest")
        assert drain(alice, topic, 5) == list(range(5))
        with pytest.raises(ValueError, match="earliest"):
            alice.subscribe(topic, start="tomorrow")  # type: ignore[arg-type]


def test_to_subscribe_again_moves_nothing(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        put_numbers(alice, topic, range(3))
        assert not alice.subscribe(topic)
        assert not alice.subscribe(topic, start="earliest")
        assert drain(alice, topic, 3) == [0, 1, 2]


def test_many_that_subscribe_at_once_begin_one_subscription_that_misses_nothing(
    bootstrap: str,
) -> None:
    topic = new_topic(bootstrap)
    start = threading.Barrier(6)

    def subscribe_and_put(number: int) -> None:
        with Client(bootstrap, id="alice") as client:
            start.wait()
            client.subscribe(topic)
            client.put(topic, str(number))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(subscribe_and_put, range(6)))
    with Client(bootstrap, id="alice") as alice:
        assert sorted(drain(alice, topic, 6)) == list(range(6))


def test_every_subscriber_gets_every_message(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 3)
    names = ["alice", "bob", "carol"]
    with Client(bootstrap, id="shop") as shop:
        clients = [Client(bootstrap, id=name) for name in names]
        for client in clients:
            client.subscribe(topic)
        put_numbers(shop, topic, range(60), 3)
        for client in clients:
            assert sorted(drain(client, topic, 60)) == list(range(60))
            client.close()


def test_a_subscriber_that_was_away_goes_on_where_it_was(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        put_numbers(alice, topic, range(20))
        assert [alice.get(topic, 10).text for _ in range(7)] == [str(n) for n in range(7)]  # type: ignore[union-attr]
    with Client(bootstrap, id="shop") as shop:
        put_numbers(shop, topic, range(20, 25))
    with Client(bootstrap, id="alice") as alice:
        assert drain(alice, topic, 18) == list(range(7, 25))


def test_one_commit_serves_many_messages(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    with Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        put_numbers(alice, topic, range(500), 2)
        found: list[int] = []
        while batch := alice.get_many(topic, 100, PATIENCE_S if len(found) < 500 else SOON_S):
            assert len(batch) <= 100
            found += [int(message.text) for message in batch]
        assert sorted(found) == list(range(500))
        with pytest.raises(ValueError, match="at least one"):
            alice.get_many(topic, 0)


def test_without_a_subscription_get_says_so(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        with pytest.raises(sapwood.NotSubscribed, match="alice has no subscription"):
            alice.get(topic)
        alice.subscribe(topic)
        assert alice.get(topic, timeout=0) is None
        alice.unsubscribe(topic)
        with pytest.raises(sapwood.NotSubscribed):
            alice.get(topic)


def test_who_unsubscribes_does_so_for_all_processes_and_leaves_nothing(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as here, Client(bootstrap, id="alice") as there:
        here.subscribe(topic)
        here.put(topic, "1")
        assert here.get(topic, 10) is not None
        there.unsubscribe(topic)
        with pytest.raises(sapwood.NotSubscribed):
            eventually(lambda: here.get(topic, timeout=0.1))
        assert there.pending(topic) == []
        there.unsubscribe(topic)  # it may be repeated
        there.put(topic, "2")
        there.subscribe(topic)
        there.put(topic, "3")
        assert drain(there, topic, 1) == [3]


def test_who_subscribes_again_is_subscribed_though_another_process_has_not_heard_of_the_end(
    bootstrap: str,
) -> None:
    topic = new_topic(bootstrap)

    async def run() -> None:
        async with (
            sapwood.AsyncClient(bootstrap, id="alice") as here,
            sapwood.AsyncClient(bootstrap, id="alice") as there,
        ):
            await here.subscribe(topic)
            assert await there.get(topic, 0.1) is None
            await here.unsubscribe(topic)
            with KafkaClient(bootstrap) as kafka:  # it goes on in the background, and joins anew
                await eventually_on_loop(lambda: has_members(kafka, topic), every_s=0.05)
            assert await here.subscribe(topic)
            await here.put(topic, "0")
            message = await there.get(topic, 15)
            assert message is not None
            assert message.text == "0"

    def has_members(kafka: KafkaClient, topic: str) -> bool:
        group = group_of(topic, "alice")
        found = kafka.run(describe_group(kafka.core, kafka.now_ms, group))
        return found is not None and bool(found.members)

    asyncio.run(run())


def test_processes_with_one_id_share_its_messages(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 4)

    async def get_all(client: sapwood.AsyncClient, found: list[str], done: asyncio.Event) -> None:
        while not done.is_set():
            if (message := await client.get(topic, timeout=0.1)) is not None:
                found.append(message.text)

    async def run() -> None:
        async with (
            sapwood.AsyncClient(bootstrap, id="alice") as first,
            sapwood.AsyncClient(bootstrap, id="alice") as second,
        ):
            await first.subscribe(topic)
            found: tuple[list[str], list[str]] = ([], [])
            done = asyncio.Event()
            getting = [
                asyncio.ensure_future(get_all(first, found[0], done)),
                asyncio.ensure_future(get_all(second, found[1], done)),
            ]
            sent: list[str] = []
            while not all(found):
                sent.append(str(len(sent)))
                await first.put(topic, sent[-1], key=sent[-1])
            await eventually_on_loop(lambda: len(found[0]) + len(found[1]) >= len(sent))
            done.set()
            await asyncio.gather(*getting)
            assert sorted(found[0] + found[1]) == sorted(sent)

    asyncio.run(run())


def test_tasks_that_get_at_once_get_each_message_once(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)

    async def run() -> None:
        async with sapwood.AsyncClient(bootstrap, id="alice") as client:
            await client.subscribe(topic)
            await client.put_many(topic, [str(number) for number in range(50)])
            found = await asyncio.gather(*(client.get(topic, 10) for _ in range(50)))
            assert sorted(int(each.text) for each in found if each) == list(range(50))

    asyncio.run(run())


def test_a_get_that_is_cancelled_loses_nothing(bootstrap: str) -> None:
    topic = new_topic(bootstrap)

    async def run() -> list[int]:
        async with sapwood.AsyncClient(bootstrap, id="alice") as client:
            await client.subscribe(topic)
            await client.put_many(topic, [str(number) for number in range(40)])
            found: list[int] = []
            steps = 0
            while len(found) < 40:
                getting = asyncio.ensure_future(client.get(topic, 10))
                for _ in range(steps % 12):
                    await asyncio.sleep(0)
                steps += 1
                if steps % 3:
                    getting.cancel()
                try:
                    message = await getting
                except asyncio.CancelledError:
                    continue
                if message is not None:
                    found.append(int(message.text))
            return found

    assert asyncio.run(run()) == list(range(40))


def test_partitions_that_are_added_are_got_from_their_beginning(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice, KafkaClient(bootstrap) as admin:
        alice.subscribe(topic)
        alice.put(topic, "0")
        assert drain(alice, topic, 1) == [0]
        admin.create_partitions({topic: 3})
        for partition in range(3):
            admin.send(topic, b"%d" % (partition + 1), partition=partition)
        admin.flush()
        assert sorted(drain(alice, topic, 3)) == [1, 2, 3]


def test_who_has_yet_to_get_how_much_is_told(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    with Client(bootstrap, id="alice") as alice, Client(bootstrap, id="bob") as bob:
        assert alice.pending(topic) == []
        alice.subscribe(topic)
        alice.put_many(topic, ["1", "2", "3"], key="a")
        bob.subscribe(topic)
        alice.put_many(topic, ["4"], key="a")
        assert alice.get(topic, 10) is not None
        pending = [each for each in bob.pending(topic) if each.end]
        assert [(each.subscriber, each.lag) for each in pending] == [("alice", 3), ("bob", 1)]
        assert all(isinstance(each, Pending) for each in pending)


def test_messages_that_were_deleted_first_are_told_of_once(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice, KafkaClient(bootstrap) as admin:
        alice.subscribe(topic)
        put_numbers(alice, topic, range(10))
        assert alice.get(topic, 10) is not None
        alice.close()
        admin.delete_records({(topic, 0): 6})
        with Client(bootstrap, id="alice") as again:
            with pytest.raises(sapwood.PositionLost, match="offsets 1 to 5") as caught:
                again.get(topic, 10)
            assert (caught.value.lost_from, caught.value.lost_to) == (1, 6)
            assert drain(again, topic, 4) == [6, 7, 8, 9]


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_messages_that_were_deleted_first_are_told_of_once_for_each_partition(
    bootstrap: str, ack: AckMode
) -> None:
    """And what is left comes with nothing else in between."""
    topic = new_topic(bootstrap, 4)
    with Client(bootstrap, id="alice") as alice, KafkaClient(bootstrap) as admin:
        alice.subscribe(topic)
        for partition in range(4):
            for number in range(10):
                admin.send(topic, b"%d/%d" % (partition, number), partition=partition)
        admin.flush()
        admin.delete_records({(topic, 1): 6, (topic, 2): 3, (topic, 3): 10})
        found: dict[str, sapwood.Message] = {}
        lost: list[tuple[int, int, int]] = []
        left = {f"{p}/{n}" for p, first in enumerate([0, 6, 3, 10]) for n in range(first, 10)}
        while len(lost) < 3 or found.keys() != left:
            try:
                batch = alice.get_many(topic, 100, 10, ack=ack, ack_timeout=300)
            except sapwood.PositionLost as error:
                lost.append((error.partition, error.lost_from, error.lost_to))
            else:
                assert batch, "nothing came, or what is out came again"
                assert found.keys().isdisjoint(each.text for each in batch)
                found |= {each.text: each for each in batch}
        assert sorted(lost) == [(1, 0, 6), (2, 0, 3), (3, 0, 10)]
        assert alice.get(topic, 0.2, ack=ack) is None


def test_what_is_not_acknowledged_in_time_comes_again_and_nothing_else(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        put_numbers(alice, topic, range(6))
        lent = alice.get_many(topic, 6, 10, ack="manual", ack_timeout=0.2)
        assert [int(each.text) for each in lent] == list(range(6))
        for number in (1, 2, 4):
            lent[number].ack()
            lent[number].ack()  # it may be repeated
        again: dict[int, sapwood.Message] = {}
        while len(again) < 3:
            for message in alice.get_many(topic, 6, 10, ack="manual", ack_timeout=0.2):
                again[int(message.text)] = message
        assert sorted(again) == [0, 3, 5]
        again[3].ack()
    with Client(bootstrap, id="alice") as back:
        found = back.get_many(topic, 6, 10, ack="manual")
        assert [int(each.text) for each in found] == [0, 5]
        found[0].ack()
        assert back.pending(topic)[0].position == 5
        found[1].ack()
        assert back.pending(topic)[0].lag == 0
        assert back.get(topic, 0.2) is None


def test_who_acknowledges_nothing_waits_when_too_much_is_out(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        put_numbers(alice, topic, range(300))
        lent = alice.get_many(topic, 300, PATIENCE_S, ack="manual", ack_timeout=300)
        while batch := alice.get_many(topic, 300, SOON_S, ack="manual", ack_timeout=300):
            lent += batch
        assert 100 <= len(lent) < 300
        for message in lent[1::2]:  # as scattered as can be
            message.ack()
        assert alice.get(topic, 0.2, ack="manual") is None
        for message in lent[::2]:
            message.ack()
        following = alice.get(topic, 10, ack="manual")
        assert following is not None
        assert int(following.text) == len(lent)


def test_an_ack_for_a_message_that_has_moved_to_another_process_is_refused(
    bootstrap: str,
) -> None:
    topic = new_topic(bootstrap)
    with Client(bootstrap, id="alice") as first:
        first.subscribe(topic)
        first.put(topic, "0")
        message = first.get(topic, 10, ack="manual")
        assert message is not None
        with Client(bootstrap, id="alice") as second:
            # The first one makes no call, and so is not heard of any more.
            again = eventually(lambda: second.get(topic, 1, ack="manual"), 90)
            assert again is not None
            assert again.text == "0"
            with pytest.raises(NotAcknowledged):
                message.ack()
            again.ack()
