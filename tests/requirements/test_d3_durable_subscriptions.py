"""D3: subscriptions are durable, hold retention back up to a hard limit, and end when told to."""

from collections.abc import Iterator
from functools import partial

import pytest

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.admin import NewTopic
from sapwood.client.offsets import EARLIEST
from tests.helpers import eventually

SHORT = {"segment.bytes": "2048", "retention.ms": "200"}


@pytest.fixture
def cluster() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3) as cluster:
        yield cluster


def start(client: KafkaClient, topic: str) -> int:
    return client.list_offsets({(topic, 0): EARLIEST})[topic, 0].offset


def fill(client: KafkaClient, topic: str) -> None:
    for number in range(60):
        client.send(topic, b"%d" % number + bytes(200)).get(60)


def test_d3_retention_waits_on_every_replica_for_a_subscriber_that_is_away(
    cluster: sapwood.Cluster,
) -> None:
    with KafkaClient(cluster.bootstrap) as admin:
        # Several, so that some are led elsewhere than the shard that knows their subscriptions.
        held = [f"held-{number}" for number in range(3)]
        limited = "limited"
        admin.create_topics([NewTopic(name, 1, 3, SHORT) for name in [*held, "free"]])
        hard = SHORT | {"subscription.hold.bytes": "8192"}
        admin.create_topics([NewTopic(limited, 1, 3, hard)])
        with sapwood.Client(cluster.bootstrap, id="alice") as alice:
            for topic in [*held, limited]:
                alice.subscribe(topic)
        for topic in [*held, limited, "free"]:
            fill(admin, topic)
        eventually(lambda: start(admin, "free") == 60, 60)
        eventually(partial(start, admin, limited), 60)
        for topic in held:  # another leader has all of it, too
            cluster.kill(cluster.leader(topic))
            assert start(admin, topic) == 0
            with sapwood.Client(cluster.bootstrap, id="alice") as alice:
                first = alice.get(topic, 60)  # it may take an election until she is let in
                assert first is not None
                rest = [message.offset for message in alice.messages(topic, timeout=5)]
                assert [first.offset, *rest] == list(range(60))
            cluster.restart(next(n for n in cluster.nodes if n not in cluster.running))
            cluster.wait_healthy()
            eventually(partial(start, admin, topic), 60)
        with sapwood.Client(cluster.bootstrap, id="alice") as alice:
            with pytest.raises(sapwood.PositionLost, match="are gone"):
                alice.get(limited, 30)
            message = alice.get(limited, 30)
            assert message is not None


def test_d3_whoever_unsubscribed_costs_nothing(cluster: sapwood.Cluster) -> None:
    with (
        KafkaClient(cluster.bootstrap) as admin,
        sapwood.Client(cluster.bootstrap, id="alice") as alice,
    ):
        admin.create_topics([NewTopic("d3", 1, 3, SHORT)])
        alice.subscribe("d3")
        fill(admin, "d3")
        assert [each.subscriber for each in alice.pending("d3")] == ["alice"]
        alice.unsubscribe("d3")
        assert alice.pending("d3") == []
        eventually(lambda: start(admin, "d3") == 60, 60)
