"""B1: a topic is split into partitions that brokers serve in parallel.

The round-robin of keyless messages through REST comes with the REST server.
"""

import sapwood
from tests.helpers import unique
from tests.judges.confluent import Confluent
from tests.judges.judge import Message


def test_b1_a_topic_made_without_a_count_gets_one_partition_on_every_core_broker(
    bootstrap: str,
) -> None:
    judge = Confluent(bootstrap)
    topic = unique("b1")
    judge.create_topic(topic, partitions=-1)
    leaders = judge.describe_topics()[topic].leaders
    assert sorted(leaders.values()) == sorted(judge.node_ids())


def test_b1_partitions_are_logs_of_their_own(bootstrap: str) -> None:
    judge = Confluent(bootstrap)
    topic = unique("b1-parallel")
    judge.create_topic(topic, partitions=8)
    for partition in range(8):
        judge.produce(topic, [Message(b"%d" % partition)] * (partition + 1), partition=partition)
    for partition in range(8):
        received = judge.consume(topic, partition + 1, partition=partition)
        assert [it.offset for it in received] == list(range(partition + 1))
        assert {it.value for it in received} == {b"%d" % partition}


def test_b1_an_operator_may_set_another_default(tmp_path: object) -> None:
    with sapwood.Cluster(config={"num.partitions": 4}) as cluster:
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("b1", partitions=-1)
        assert len(judge.describe_topics()["b1"].leaders) == 4
