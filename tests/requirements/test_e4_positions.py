"""E4: consumers' positions are part of the consensus: what was committed is so on every node."""

from confluent_kafka import Consumer, TopicPartition

import sapwood
from sapwood.coordinator.sharding import shard_of
from tests.helpers import eventually
from tests.judges.audit import OFFSETS_TOPIC
from tests.judges.confluent import TIMEOUT_S, Confluent
from tests.judges.judge import Message
from tests.requirements.test_e1_three_replicas import replicas

GROUP = "e4"


def committed(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        found = consumer.committed([TopicPartition("e4", it) for it in (0, 1)], TIMEOUT_S)
        return [it.offset for it in found]
    finally:
        consumer.close()


def test_e4_a_position_that_was_acknowledged_survives_its_coordinator_and_is_on_every_node() -> (
    None
):
    shard = shard_of(GROUP, 16)
    with sapwood.Cluster(nodes=3) as cluster:
        judge = Confluent(cluster.bootstrap)
        judge.create_topic("e4", partitions=2, replicas=3)
        for partition in (0, 1):
            judge.produce("e4", [Message(b"x")] * 50, partition=partition)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP})
        for number in range(1, 6):
            places = [TopicPartition("e4", 0, number), TopicPartition("e4", 1, 10 * number)]
            consumer.commit(offsets=places, asynchronous=False)
            leader = cluster.leader(OFFSETS_TOPIC, shard)
            cluster.kill(leader)
            assert committed(cluster.bootstrap) == [number, 10 * number]
            cluster.restart(leader)
        consumer.close()

        def is_on_every_node() -> bool:
            found = replicas(cluster, OFFSETS_TOPIC)
            three = [it for (index, _), it in found.items() if index == shard]
            ends = {end for it in three for end in (it.log_end, it.high_watermark)}
            return len(three) == 3 and len(ends) == 1 and min(ends) > 0

        eventually(is_on_every_node)

        for index in cluster.nodes:
            cluster.kill(index)
        for index in cluster.nodes:
            cluster.restart(index, wait=False)
        cluster.wait_healthy()
        assert committed(cluster.bootstrap) == [5, 50]
