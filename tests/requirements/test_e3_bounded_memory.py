"""E3: memory stays bounded however many messages are stored."""

import sapwood
from tests.helpers import MIB, resident_bytes
from tests.judges.confluent import Confluent
from tests.judges.judge import Message

PART = 32 * MIB
VALUES = [Message(bytes(1000))] * (PART // 1000)


def test_e3_after_the_first_part_further_parts_of_the_log_take_no_further_memory(
    cluster: sapwood.Cluster,
) -> None:
    judge = Confluent(cluster.bootstrap)
    judge.create_topic("e3", partitions=4)
    for partition in range(4):
        judge.produce("e3", VALUES, partition=partition)
    after_the_first = resident_bytes(cluster.pid())
    for _ in range(2):
        for partition in range(4):
            judge.produce("e3", VALUES, partition=partition)
            judge.consume("e3", 1000, partition=partition)
    assert resident_bytes(cluster.pid()) < after_the_first + 32 * MIB
    assert resident_bytes(cluster.pid()) < 150 * MIB
