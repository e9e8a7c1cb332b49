"""B2: one manager decides, durably; whoever asks any node afterwards sees it."""

from collections.abc import Iterator

import pytest

import sapwood
from sapwood.wire.errors import ErrorCode
from tests.gateway.rest import Gateway, ok
from tests.requirements.manager import CONSUMER, PRODUCER, REMOVE, manager


@pytest.fixture(scope="module")
def cluster() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3) as cluster:
        yield cluster


def test_b2_what_one_node_has_acknowledged_any_node_shows_at_once(
    cluster: sapwood.Cluster,
) -> None:
    for number in range(12):
        topic = f"b2-{number}"
        with manager(cluster, number % 3) as asked:
            assert asked.create_topic(topic, partitions=3) is ErrorCode.NONE
        for index in cluster.nodes:
            with manager(cluster, index) as other:
                replicas = other.replicas(topic)
            assert replicas is not None, f"node {index} doesn't know {topic}"
            assert [sorted(nodes) for nodes in replicas] == [[0, 1, 2]] * 3
            assert sorted(nodes[0] for nodes in replicas) == [0, 1, 2], "one leads at each node"


def test_b2_producers_and_consumers_are_registered_with_the_cluster(
    cluster: sapwood.Cluster,
) -> None:
    with manager(cluster, 0) as first, manager(cluster, 1) as second, manager(cluster, 2) as third:
        assert first.create_topic("b2-clients") is ErrorCode.NONE
        assert second.register(PRODUCER, "till", "b2-clients") is ErrorCode.NONE
        assert third.register(CONSUMER, "ledger", "b2-clients") is ErrorCode.NONE
        for node in (first, second, third):
            assert node.clients() == (["till"], ["ledger"])
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert first.register(PRODUCER, "till", "b2-no-such-topic") is unknown
        assert first.register(CONSUMER, "ledger", "b2-clients", REMOVE) is ErrorCode.NONE
        for node in (first, second, third):
            assert node.clients() == (["till"], [])


def test_b2_over_rest_a_get_at_any_node_shows_what_a_post_at_another_was_acknowledged(
    cluster: sapwood.Cluster,
) -> None:
    gateways = [Gateway(cluster.address(index), node_id=index) for index in cluster.nodes]
    try:
        for number in range(6):
            topic, name = f"b2-rest-{number}", f"client-{number}"
            at = gateways[number % 3]
            ok(at.post("/topics", topic=topic, partitions=3), 201)
            ok(at.post("/producers", topic=topic, producer=name), 201)
            ok(at.post("/consumers", topic=topic, consumer=name), 201)
            for other in gateways:
                assert ok(other.get("/topics", topic=topic))["topics"][0]["partitions"] == 3
                for kind in ("producer", "consumer"):
                    found = ok(other.get(f"/{kind}s"))[f"{kind}s"]
                    assert {"topic": topic, kind: name, "partition": None} in found
    finally:
        for gateway in gateways:
            gateway.stop()


def test_b2_the_metadata_survives_the_death_of_all_managers(cluster: sapwood.Cluster) -> None:
    with manager(cluster, 1) as asked:
        assert asked.create_topic("b2-lasting", partitions=2) is ErrorCode.NONE
        assert asked.register(PRODUCER, "lasting", "b2-lasting") is ErrorCode.NONE
    for index in cluster.nodes:
        cluster.kill(index)
    for index in cluster.nodes:
        cluster.restart(index, wait=False)
    cluster.wait_healthy()
    for index in cluster.nodes:
        with manager(cluster, index) as node:
            assert len(node.replicas("b2-lasting") or []) == 2
            assert "lasting" in node.clients()[0]
