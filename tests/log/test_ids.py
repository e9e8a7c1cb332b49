"""Ids of messages: repeats are known for as long as it is promised, and nothing else is one."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.log import FIRST_ID, Log, LogConfig, ProducerTable, ids, snapshot
from sapwood.log.ids import IdWindow
from sapwood.wire.batch import BatchHeader, read_header
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import encode_batch
from tests.disk.faulty import FaultyDisk
from tests.log.batches import fetched, opened, put, record

SMALL = LogConfig(segment_bytes=700, index_interval_bytes=200)


TEMPLATE = read_header(encode_batch([record()], producer_id=7, producer_epoch=0, base_sequence=0))


def message(number: int, *, sequence: int = 5, offset: int = 0) -> BatchHeader:
    return TEMPLATE._replace(
        producer_id=FIRST_ID + number, base_sequence=sequence, base_offset=offset
    )


def store(log: Log, number: int) -> int:
    return put(log, [record()], producer=(FIRST_ID + number, 0, 5)).base_offset


def known(log: Log, number: int) -> int | None:
    return log.producers.check(message(number), 0)


def test_a_repeat_is_known_by_its_id() -> None:
    log = opened(FaultyDisk())
    assert known(log, 1) is None
    assert [store(log, number) for number in (1, 2)] == [0, 1]
    assert [known(log, number) for number in (1, 2, 3)] == [0, 1, None]


def test_two_ids_with_one_hash_are_told_apart() -> None:
    log = opened(FaultyDisk())
    store(log, 1)
    with pytest.raises(KafkaError) as caught:
        log.producers.check(message(1, sequence=6), 0)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_ids_drive_no_producer_out() -> None:
    table = ProducerTable(max_producers=3)
    for number in range(3):
        table.update(message(0)._replace(producer_id=number), 0)
    for number in range(100):
        table.update(message(number, offset=number), 0)
    assert (len(table), len(table.ids)) == (3, 100)
    assert [producer_id for producer_id, _ in table] == [0, 1, 2]


def test_at_least_the_last_hundred_thousand_are_kept_and_not_many_more() -> None:
    window, chance = IdWindow(), random.Random(1)
    numbers = [chance.getrandbits(62) for _ in range(160_000)]
    messages = [message(number, offset=offset) for offset, number in enumerate(numbers)]
    tracemalloc.start()
    for each in messages:
        window.add(each, 0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ids.KEPT <= len(window) <= 1.25 * ids.KEPT
    assert used < 50 * len(window)
    for offset in range(len(numbers) - ids.KEPT, len(numbers), 97):
        assert window.original(message(numbers[offset])) == offset
    assert window.original(message(numbers[0])) is None


def test_ids_are_forgotten_after_a_day() -> None:
    table = ProducerTable()
    table.update(message(1), 0)
    table.expire(ids.KEPT_MS)
    assert table.check(message(1), 0) == 0
    table.expire(ids.KEPT_MS + 1)
    assert table.check(message(1), 0) is None


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_window_finds_what_a_dictionary_would(seed: int) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_GENERATION", 50)
        patch.setattr(ids, "KEPT", 200)
        window, order = IdWindow(), list[int]()
        # Ids that share their low bits lie behind one another.
        spread = chance.choice([1, 1 << 20])
        for offset in range(chance.randrange(600)):
            number = spread * chance.randrange(400)
            if window.original(message(number)) is None:
                assert number not in order[-200:]
                window.add(message(number, offset=offset), 0)
                order.append(number)
        at = chance.randrange(600)
        stored = IdWindow.decode(b"before" + window.encode(), 6)
        for number in {*order}:
            found = window.original(message(number))
            assert stored.original(message(number)) == found
            earlier = found if found is not None and found < at else None
            assert window.as_of(at).original(message(number)) == earlier


@pytest.mark.parametrize("interval", [1, 7, 1000])
def test_ids_survive_restarts_truncation_and_replication(
    interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_INTERVAL_BATCHES", interval)

    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        for number in range(20):
            store(log, number)
        await log.sync()
        again = opened(disk, SMALL, durable_end=20)
        assert [known(again, number) for number in range(20)] == list(range(20))
        log.truncate(0, 12, 0)
        for number in (15, 12):
            assert store(log, number) == log.end_offset - 1
        expected = [*range(12), 13, None, None, 12, None]
        assert [known(log, number) for number in range(17)] == expected
        await log.advance_start(9)
        follower = opened(FaultyDisk(), SMALL)
        follower.reset(log.snapshot(), 0)
        fetched(log, follower)
        assert [known(follower, number) for number in range(17)] == expected

    asyncio.run(scenario())
