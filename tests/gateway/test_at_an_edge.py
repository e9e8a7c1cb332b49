"""A gateway beside an edge, which is the whole cluster to its clients, tells how the cluster is."""

import sapwood
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually, unique

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
