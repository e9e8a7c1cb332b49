"""E2: a node that restarts finds its partitions, their peers and their state, and rejoins."""

import sapwood
from tests.helpers import eventually
from tests.judges.confluent import Confluent
from tests.judges.judge import Message
from tests.requirements.test_e1_three_replicas import replicas

BEFORE = [Message(b"before %03d" % number) for number in range(50)]
MEANWHILE = [Message(b"meanwhile %03d" % number) for number in range(50)]


def test_e2_a_restarted_node_has_what_it_had_and_catches_up() -> None:
    with sapwood.Cluster(nodes=3) as cluster:
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("e2", partitions=3, replicas=3)
        for partition in range(3):
            judge.produce("e2", BEFORE, partition=partition)
        old = replicas(cluster, "e2")
        cluster.kill(1)
        for partition in range(3):
            judge.produce("e2", MEANWHILE, partition=partition)
        cluster.restart(1)
        cluster.wait_healthy()

        def has_caught_up() -> bool:
            mine = replicas(cluster, "e2", [1]).values()
            return [it.log_end for it in mine] == [len(BEFORE) + len(MEANWHILE)] * 3

        eventually(has_caught_up)  # who was in sync lately counts as in sync
        new = replicas(cluster, "e2")
        for partition in range(3):
            mine, before = new[partition, 1], old[partition, 1]
            assert mine.log_end == len(BEFORE) + len(MEANWHILE)
            assert mine.term > before.term or before.leader != 1
            assert [(it.node, it.incarnation) for it in mine.voters] == [
                (it.node, it.incarnation) for it in before.voters
            ], "it is the same voter as before"
        for partition in range(3):
            read = judge.consume("e2", 100, partition=partition)
            assert [it.value for it in read] == [it.value for it in BEFORE + MEANWHILE]
