"""D4: what isn't acknowledged is sent again; what all have acknowledged goes; who lags is told."""

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.admin import NewTopic
from sapwood.client.offsets import EARLIEST
from sapwood.pytest_plugin import SharedCluster
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually, unique


def test_d4_what_all_have_acknowledged_goes_and_what_one_has_not_comes_again(
    sapwood_cluster: SharedCluster,
) -> None:
    bootstrap, topic = sapwood_cluster.bootstrap, unique("d4")
    with (
        KafkaClient(bootstrap) as admin,
        sapwood.Client(bootstrap, id="alice") as alice,
        sapwood.Client(bootstrap, id="bob") as bob,
    ):
        admin.create_topics([NewTopic(topic, 1, 3, {"retention": "acked"})])
        alice.subscribe(topic)
        bob.subscribe(topic)
        alice.put_many(topic, [str(number) for number in range(10)])
        assert len(alice.get_many(topic, 10, 30)) == 10

        def start() -> int:
            return admin.list_offsets({(topic, 0): EARLIEST})[topic, 0].offset

        seen: list[int] = []
        acknowledged: set[int] = set()
        while len(acknowledged) < 9:
            message = bob.get(topic, 30, ack="manual", ack_timeout=0.3)
            assert message is not None
            assert message.offset not in acknowledged
            seen.append(message.offset)
            if seen.count(message.offset) == 2 and message.offset != 4:
                message.ack()  # at the second time only, and one of them not yet
                acknowledged.add(message.offset)
        lagging = [each for each in bob.pending(topic) if each.lag]
        assert [(each.subscriber, each.position) for each in lagging] == [("bob", 4)]
        eventually(lambda: start() == 4, 60)
        message = bob.get(topic, 30, ack="manual")
        assert message is not None
        assert message.offset == 4
        message.ack()
        assert not [each for each in bob.pending(topic) if each.lag]
        eventually(lambda: start() == 10, 60)


def test_d4_rest_shows_who_has_yet_to_acknowledge_how_much(bootstrap: str) -> None:
    topic = unique("d4-rest")
    with (
        Gateway(bootstrap) as gateway,
        sapwood.Client(bootstrap, id="alice") as alice,
        sapwood.Client(bootstrap, id="bob") as bob,
    ):
        ok(gateway.post("/topics", topic=topic, partitions=1), 201)
        for subscriber in (alice, bob):
            subscriber.subscribe(topic)
        ok(gateway.post("/consumers", topic=topic, consumer="carol"), 201)
        alice.put_many(topic, ["1", "2", "3"])
        assert len(alice.get_many(topic, 3, 30)) == 3
        assert bob.get(topic, 30, ack="manual") is not None
        ok(gateway.get("/consumer/consume", topic=topic, consumer="carol"))
        ok(gateway.post("/consumer/ack", topic=topic, consumer="carol"))
        pending = ok(gateway.get("/pending", topic=topic))["pending"]
    assert {it["subscriber"]: it["pending"] for it in pending} == {"alice": 0, "bob": 3, "carol": 2}
