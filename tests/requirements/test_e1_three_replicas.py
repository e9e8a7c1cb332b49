"""E1: producers and consumers address a partition; its three replicas agree by Raft."""

from collections.abc import Iterable

import sapwood
from sapwood.node import secret
from sapwood.node.asking import NodeConnection
from sapwood.wire.codec import Struct
from tests.helpers import eventually
from tests.judges.confluent import Confluent
from tests.judges.judge import Message

MESSAGES = [Message(b"record %04d" % number) for number in range(300)]


def replicas(
    cluster: sapwood.Cluster, topic: str, nodes: Iterable[int] | None = None
) -> dict[tuple[int, int], Struct]:
    """Every node's own replica of every partition, by partition and node."""
    found = {}
    for index in cluster.nodes if nodes is None else nodes:
        shared = secret.read(cluster.layout.secret_file)
        with NodeConnection(cluster.address(index), shared) as node:
            for it in node.describe_replicas([topic]):
                found[it.partition, index] = it
    return found


def test_e1_a_partition_has_three_replicas_that_agree() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("e1", partitions=2, replicas=3)
        for partition in (0, 1):
            judge.produce("e1", MESSAGES, partition=partition)
        for partition in (0, 1):
            read = judge.consume("e1", len(MESSAGES), partition=partition)
            assert [it.value for it in read] == [it.value for it in MESSAGES]

        def have_all() -> bool:
            ends = [it.high_watermark for it in replicas(cluster, "e1").values()]
            return ends == [len(MESSAGES)] * 6

        eventually(have_all)
        found = replicas(cluster, "e1")
        for partition in (0, 1):
            three = [found[partition, index] for index in cluster.nodes]
            assert sorted(it.role for it in three) == ["follower", "follower", "leader"]
            assert len({(it.term, it.leader) for it in three}) == 1
            assert [sorted(voter.node for voter in it.voters) for it in three] == [[0, 1, 2]] * 3
            assert {it.log_end for it in three} == {len(MESSAGES)}
