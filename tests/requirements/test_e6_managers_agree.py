"""E6: managers agree by Raft on producers, consumers, topics and brokers."""

import sapwood
from sapwood.wire.errors import ErrorCode
from tests.requirements.manager import CONSUMER, PRODUCER, Manager, manager


def known(node: Manager) -> tuple[object, ...]:
    return (
        node.clients(),
        node.replicas("e6"),
        sorted((it.node_id, it.port) for it in node.status().nodes),
    )


def test_e6_all_managers_have_the_same_after_the_one_that_decided_is_gone() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        with manager(cluster, 0) as node:
            assert node.create_topic("e6", partitions=4) is ErrorCode.NONE
            assert node.register(PRODUCER, "writer", "e6") is ErrorCode.NONE
            assert node.register(CONSUMER, "reader", "e6") is ErrorCode.NONE
            agreed = known(node)
        assert agreed[0] == (["writer"], ["reader"])
        cluster.kill(cluster.status().controller)
        for index in cluster.running:
            with manager(cluster, index) as other:
                assert known(other) == agreed
        for index in cluster.running:
            with manager(cluster, index) as other:
                assert other.register(PRODUCER, f"writer-{index}", "e6") is ErrorCode.NONE
        first, second = cluster.running
        with manager(cluster, first) as one, manager(cluster, second) as another:
            assert known(one) == known(another)
            assert one.clients()[0] == ["writer", f"writer-{first}", f"writer-{second}"]
