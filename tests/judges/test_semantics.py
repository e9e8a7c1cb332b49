"""Times, partitions and positions, as the clients see them."""

import time

import pytest

from tests.helpers import eventually, unique
from tests.judges.confluent import Confluent
from tests.judges.judge import Admin, Judge, Message, RefusedError, sample
from tests.judges.python import KafkaPython


def test_with_log_append_time_every_client_sees_the_brokers_clock(
    judge: Judge, judges: list[Judge], confluent: Confluent
) -> None:
    topic = unique("append-time")
    confluent.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    judge.produce(topic, sample(10), codec="lz4")
    after_ms = int(time.time() * 1000)
    for reader in judges:
        for record in reader.consume(topic, 10):
            assert record.is_append_time, reader.name
            assert before_ms <= record.timestamp_ms <= after_ms, reader.name
        assert reader.offset_for_timestamp(topic, before_ms) == 0, reader.name
        assert reader.offset_for_timestamp(topic, after_ms + 1) == -1, reader.name


def test_times_that_run_backwards_are_kept_and_found(judge: Judge, confluent: Confluent) -> None:
    topic = unique("backwards")
    confluent.create_topic(topic, config={"retention.ms": "-1"})
    times = [5000, 4000, 3000, 9000, 1000, 7000]
    for timestamp_ms in times:  # one batch each, and then all of them in one batch
        confluent.produce(topic, [Message(b"single", timestamp_ms=timestamp_ms)])
    confluent.produce(topic, [Message(b"many", timestamp_ms=it) for it in times])
    assert [it.timestamp_ms for it in judge.consume(topic, 12)] == times * 2
    assert judge.offset_for_timestamp(topic, 5000) == 0
    assert judge.offset_for_timestamp(topic, 5001) == 3
    assert judge.offset_for_timestamp(topic, 9001) == -1


def test_each_of_sixty_partitions_keeps_its_own_messages(
    judge: Judge, confluent: Confluent
) -> None:
    topic = unique("sixty")
    confluent.create_topic(topic, partitions=60)
    assert sorted(judge.describe_topics()[topic].leaders) == list(range(60))
    for partition in (0, 7, 31, 59):
        own = [Message(f"{partition}/{n}".encode(), key=b"k") for n in range(5)]
        judge.produce(topic, own, partition=partition)
    for partition in (0, 7, 31, 59):
        received = judge.consume(topic, 5, partition=partition)
        assert [it.offset for it in received] == list(range(5))
        assert [it.value for it in received] == [f"{partition}/{n}".encode() for n in range(5)]


def test_deleted_records_are_gone_and_the_rest_keeps_its_offsets(
    admin: Admin, judge: Judge, topic: str
) -> None:
    assert isinstance(admin, Judge)
    messages = sample(20)
    for message in messages:
        admin.produce(topic, [message])
    admin.delete_records(topic, before_offset=12)
    assert [it.offset for it in judge.consume(topic, 8, offset=12)] == list(range(12, 20))
    assert judge.offset_for_timestamp(topic, 0) == 12


def test_a_position_before_the_start_or_past_the_end_is_out_of_range(
    confluent: Confluent, kafka_python: KafkaPython, topic: str
) -> None:
    confluent.produce(topic, sample(5))
    confluent.delete_records(topic, before_offset=3)
    for offset in (1, 99):
        with pytest.raises(RefusedError) as refused:
            confluent.consume(topic, 1, offset=offset)
        assert refused.value.code in (1, -140)  # -140: librdkafka's "told not to reset"


def test_partitions_are_added_to_a_topic_that_has_messages(
    admin: Admin, judge: Judge, topic: str
) -> None:
    judge.produce(topic, sample(3))
    admin.create_partitions(topic, 4)
    assert sorted(judge.describe_topics()[topic].leaders) == [0, 1, 2, 3]
    judge.produce(topic, sample(2), partition=3)
    assert len(judge.consume(topic, 3)) == 3
    assert len(judge.consume(topic, 2, partition=3)) == 2


def test_a_compacted_topic_keeps_the_newest_value_of_every_key_at_its_offset(
    confluent: Confluent, judges: list[Judge]
) -> None:
    topic = unique("compacted")
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    confluent.create_topic(topic, config={**settings, "segment.bytes": "1048576"})
    filler = bytes(10_000)
    for turn in range(4):
        rows = [Message(b"%d " % turn + filler, key=b"key %d" % number) for number in range(100)]
        confluent.produce(topic, rows)
    confluent.produce(topic, [Message(b"last", key=b"another")])
    eventually(lambda: confluent.consume(topic, 1)[0].offset >= 200, deadline_s=60, every_s=0.5)
    for reader in judges:
        tail = reader.consume(topic, 101, offset=300)
        assert [it.offset for it in tail] == list(range(300, 401)), reader.name
        assert len({it.key for it in tail}) == 101, reader.name


def test_a_log_over_its_size_loses_its_oldest_segments_only(
    confluent: Confluent, judges: list[Judge]
) -> None:
    topic = unique("bounded")
    confluent.create_topic(topic, config={"segment.bytes": "1048576"})
    for _ in range(10):
        confluent.produce(topic, [Message(bytes(100_000))] * 10)
    # Only now, so that all that is too much goes at once, and nothing more while it is read.
    confluent.alter_config(topic, "retention.bytes", "3000000")
    eventually(lambda: confluent.offset_for_timestamp(topic, 0) > 50, deadline_s=60, every_s=0.5)
    start = confluent.offset_for_timestamp(topic, 0)
    for reader in judges:
        kept = reader.consume(topic, 100 - start, offset=start)
        assert [it.offset for it in kept] == list(range(start, 100)), reader.name
        assert len(kept) >= 25, reader.name
