"""B1: a topic is split into partitions that brokers serve in parallel."""

import pytest

import sapwood
from tests.gateway.rest import Gateway, ok
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


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_b1_through_rest_keyless_messages_go_round(partitions: int, bootstrap: str) -> None:
    topic = unique("b1-rest")
    with Gateway(bootstrap) as gateway:
        ok(gateway.post("/topics", topic=topic, partitions=partitions), 201)
        gateway.produce(topic, *map(str, range(20)))
        sizes = [it["size"] for it in ok(gateway.get("/size", topic=topic))["partitions"]]
    assert (len(sizes), sum(sizes)) == (partitions, 20)
    assert max(sizes) - min(sizes) <= 1
