"""A gateway beside an edge, which is the whole cluster to its clients, tells how the cluster is."""

import json

import sapwood
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually, unique
from tests.requirements.trees import Tree

WHERE = ("leader", "replicas", "in_sync_replica", "under_replicated_partition")


def where(gateway: Gateway, topic: str) -> list[str]:
    """What the metrics say of where the topic's partitions are."""
    names = tuple(f"kafka_topic_partition_{it}{{" for it in WHERE)
    lines = gateway.get("/metrics").text.splitlines()
    of_topic = [it for it in lines if it.startswith(names) and f'topic="{topic}"' in it]
    return [*of_topic, *(it for it in lines if it.startswith("kafka_brokers "))]


def test_partitions_and_metrics_are_the_same_at_an_edge_as_at_a_core_node() -> None:
    topic = unique("edge")
    with (
        sapwood.Cluster(nodes=3, edges=1, topics={topic: 3}) as cluster,
        Gateway(cluster.bootstrap) as above,
        Gateway(cluster.edge_address()) as below,
    ):
        eventually(lambda: ok(above.get("/status"))["healthy"])
        at_core = ok(above.get("/partitions", topic=topic))["partitions"]
        assert {len(it["replicas"]) for it in at_core} == {3}
        assert ok(below.get("/partitions", topic=topic))["partitions"] == at_core
        assert ok(below.get("/partitions", topic=topic, broker=2))["partitions"] == at_core
        told = where(above, topic)
        assert len(told) == 3 * len(WHERE) + 1
        assert where(below, topic) == told


def test_what_an_edge_has_yet_to_hear_of_is_not_passed_over() -> None:
    """It hangs from a follower, which learns late what the leader has committed."""
    topic, count = unique("late"), 60
    with sapwood.Cluster(nodes=3, topics={topic: 1}) as cluster:
        leader = cluster.leader(topic, 0)
        tree = Tree(cluster)
        tree.grow(x=str((leader + 1) % 3))
        with (
            Gateway(tree.address("x")) as gateway,
            sapwood.Client(cluster.bootstrap, "writer") as client,
        ):
            ok(gateway.post("/consumers", topic=topic, consumer="c"), 201)
            asked = {"topic": topic, "consumer": "c"}
            for number in range(count):
                client.put(topic, str(number))
                got = eventually(lambda: gateway.get("/consumer/consume", **asked).text)
                assert json.loads(got)["message"] == str(number)
