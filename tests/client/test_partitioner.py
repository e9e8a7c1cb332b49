"""Where records go: keys as Java's client places them, the others evenly."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as judge

from sapwood.client.cluster import Partition, Topic
from sapwood.client.partitioner import KeylessPartitioner, murmur2, partition_of_key


def topic_of(leaders: list[int]) -> Topic:
    partitions = {
        number: Partition(number, leader, 0, (0,), (0,), ())
        for number, leader in enumerate(leaders)
    }
    return Topic("t", bytes(16), False, 0, partitions)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_javas_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_a_key_goes_where_kafka_python_would_send_it(key: bytes, count: int) -> None:
    assert murmur2(key) == judge(key) & 0xFFFFFFFF
    assert partition_of_key(key, count) == (judge(key) & 0x7FFFFFFF) % count


def test_round_robin_spreads_records_evenly() -> None:
    partitioner = KeylessPartitioner(2, stay_bytes=0)
    topic = topic_of([0, 0, 0])
    chosen = Counter(partitioner.choose(topic, 10) for _ in range(100))
    assert sorted(chosen.values()) == [33, 33, 34]


def test_sticky_stays_until_a_batch_is_full_and_avoids_partitions_without_a_leader() -> None:
    partitioner = KeylessPartitioner(0, stay_bytes=30)
    topic = topic_of([0, -1, 0])
    assert [partitioner.choose(topic, 10) for _ in range(9)] == [0, 0, 0, 2, 2, 2, 0, 0, 0]


def test_a_topic_that_gains_leaders_gets_records_on_them() -> None:
    partitioner = KeylessPartitioner(0, stay_bytes=0)
    assert {partitioner.choose(topic_of([-1, -1]), 1) for _ in range(4)} == {0, 1}
    assert {partitioner.choose(topic_of([0, -1]), 1) for _ in range(4)} == {0}
