"""What durable subscriptions hold back, and what they don't."""

from collections.abc import Iterator

import pytest

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.admin import NewTopic
from sapwood.client.offsets import EARLIEST
from tests.helpers import eventually, unique

SHORT = {"segment.bytes": "2048", "retention.ms": "200"}


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaClient]:
    with KafkaClient(bootstrap) as client:
        yield client


def new_topic(admin: KafkaClient, **more: str) -> str:
    name = unique("held")
    configs = SHORT | {key.replace("_", "."): value for key, value in more.items()}
    admin.create_topics([NewTopic(name, 1, -1, configs)])
    return name


def fill(admin: KafkaClient, topic: str, count: int = 100) -> None:
    for number in range(count):
        admin.send(topic, b"%d" % number + bytes(200)).get(30)


def start(admin: KafkaClient, topic: str) -> int:
    return admin.list_offsets({(topic, 0): EARLIEST})[topic, 0].offset


def get(client: sapwood.Client, topic: str, count: int) -> None:
    for _ in range(count):
        assert client.get(topic, 30) is not None


def everything_goes(admin: KafkaClient) -> None:
    """By then retention has looked at every topic that was filled before."""
    other = new_topic(admin)
    fill(admin, other)
    eventually(lambda: start(admin, other) == 100, 30)


def test_retention_waits_for_the_slowest_durable_subscriber(
    bootstrap: str, admin: KafkaClient
) -> None:
    topic = new_topic(admin)
    with (
        sapwood.Client(bootstrap, id="quick") as quick,
        sapwood.Client(bootstrap, id="slow") as slow,
    ):
        quick.subscribe(topic)
        slow.subscribe(topic)
        fill(admin, topic)
        everything_goes(admin)
        assert start(admin, topic) == 0
        get(quick, topic, 100)
        get(slow, topic, 50)
        eventually(lambda: 0 < start(admin, topic) <= 50, 30)
        everything_goes(admin)
        assert start(admin, topic) <= 50
        slow.unsubscribe(topic)
        eventually(lambda: start(admin, topic) == 100, 30)


def test_what_is_acknowledged_beyond_a_gap_holds_nothing_but_the_gap_does(
    bootstrap: str, admin: KafkaClient
) -> None:
    topic = new_topic(admin)
    with sapwood.Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        fill(admin, topic)
        first = alice.get(topic, 30, ack="manual", ack_timeout=300)
        assert first is not None
        get(alice, topic, 99)
        everything_goes(admin)
        assert start(admin, topic) == 0
        first.ack()
        eventually(lambda: start(admin, topic) > 0, 30)


def test_a_hard_limit_ends_the_waiting_and_the_subscriber_is_told(
    bootstrap: str, admin: KafkaClient
) -> None:
    topic = new_topic(admin, subscription_hold_bytes="8192")
    with sapwood.Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        fill(admin, topic)
        everything_goes(admin)  # what may go has gone: no more is lost between two calls
        first = eventually(lambda: start(admin, topic), 30)
        with pytest.raises(sapwood.PositionLost) as caught:
            alice.get(topic, 10)
        assert (caught.value.lost_from, caught.value.topic) == (0, topic)
        assert caught.value.lost_to >= first
        message = alice.get(topic, 10)
        assert message is not None
        assert message.offset == caught.value.lost_to


def test_what_all_have_acknowledged_goes_if_the_topic_asks_for_it(
    bootstrap: str, admin: KafkaClient
) -> None:
    topic = new_topic(admin, retention="acked", retention_ms="-1")
    fill(admin, topic, 20)
    names = ["alice", "bob"]
    alice, bob = (sapwood.Client(bootstrap, id=name) for name in names)
    for client in (alice, bob):
        client.subscribe(topic, start="earliest")
    get(alice, topic, 15)
    get(bob, topic, 7)
    eventually(lambda: start(admin, topic) == 7, 30)
    bob.unsubscribe(topic)
    eventually(lambda: start(admin, topic) == 15, 30)
    alice.unsubscribe(topic)
    for client in (alice, bob):
        client.close()
    everything_goes(admin)
    assert start(admin, topic) == 15


def test_an_administrator_may_delete_what_is_held(bootstrap: str, admin: KafkaClient) -> None:
    topic = new_topic(admin)
    with sapwood.Client(bootstrap, id="alice") as alice:
        alice.subscribe(topic)
        fill(admin, topic, 10)
        assert admin.delete_records({(topic, 0): 4}) == {(topic, 0): 4}
        with pytest.raises(sapwood.PositionLost, match="offsets 0 to 3"):
            alice.get(topic, 10)
