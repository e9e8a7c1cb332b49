"""Who may append what: Kafka's rules for idempotent producers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.log import LogConfig, ProducerTable, snapshot
from sapwood.log.producers import EXPIRATION_MS
from sapwood.wire.batch import BatchHeader, read_header
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import encode_batch
from tests.disk.faulty import FaultyDisk
from tests.log.batches import opened, put, record

LAST = 2**31 - 1


def header(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 1, base_offset: int = 0
) -> BatchHeader:
    batch = encode_batch(
        [record()] * count,
        base_offset=base_offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return read_header(batch)


def table(*headers: BatchHeader) -> ProducerTable:
    it = ProducerTable()
    for appended in headers:
        assert it.check(appended, 0) is None
        it.update(appended, 0)
    return it


def refusal(it: ProducerTable, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        it.check(batch, 0)
    return refused.value.code


def test_a_batch_without_a_producer_is_nobodys_business() -> None:
    it = table(header(5, producer=-1), header(3, producer=-1))
    assert len(it) == 0


def test_an_exact_repeat_of_one_of_the_last_five_batches_is_found() -> None:
    it = table(*(header(2 * n, 2, base_offset=100 + n) for n in range(7)))
    for n in range(2, 7):
        assert it.check(header(2 * n, 2), 0) == 100 + n
        original = it.original(header(2 * n, 2))
        assert original is not None
        assert original[:3] == (100 + n, 2 * n, 2 * n + 1)
    for n in range(2):
        assert refusal(it, header(2 * n, 2)) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_repeat_that_is_not_exact_is_out_of_order() -> None:
    it = table(header(0, 3), header(3, 3))
    for wrong in (header(0, 2), header(3, 2), header(4, 2), header(2, 4), header(0, 6)):
        assert refusal(it, wrong) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order() -> None:
    it = table(header(0))
    assert refusal(it, header(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert it.check(header(1), 0) is None


def test_an_unknown_producer_may_start_anywhere_but_not_claim_more_was_stored() -> None:
    it = table(header(1000))
    for n in range(1001, 1010):
        it.update(header(n), 0)
    assert refusal(it, header(999)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(it, header(1001)) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_new_epoch_starts_at_zero_and_ends_the_old_one() -> None:
    it = table(header(0), header(1))
    assert refusal(it, header(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    it.update(header(0, epoch=1, base_offset=9), 0)
    assert refusal(it, header(2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(it, header(1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert it.check(header(0, epoch=1), 0) == 9


def test_sequences_wrap_from_the_largest_to_zero() -> None:
    it = table(header(LAST - 1), header(LAST, base_offset=5), header(0), header(1))
    assert it.check(header(LAST), 0) == 5
    within = table(header(LAST - 1, 4, base_offset=7))
    assert within.check(header(LAST - 1, 4), 0) == 7
    assert within.check(header(2), 0) is None
    assert refusal(within, header(3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_are_forgotten_after_a_day_and_when_there_are_too_many() -> None:
    it = table(header(5))
    assert it.check(header(9), EXPIRATION_MS + 1) is None
    it = table(header(5))
    it.expire(EXPIRATION_MS)
    assert len(it) == 1
    it.expire(EXPIRATION_MS + 1)
    assert len(it) == 0
    few = ProducerTable(max_producers=2)
    for producer in (1, 2, 1, 3):
        few.update(header(0, producer=producer), 0)
    assert (len(few), few.original(header(0, producer=2))) == (2, None)


def test_a_marker_of_a_transaction_tells_the_epoch_only() -> None:
    it = table(header(0))
    marker = read_header(encode_batch([record()], producer_id=1, producer_epoch=3, control=True))
    assert it.check(marker, 0) is None
    it.update(marker, 0)
    assert refusal(it, header(1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert it.check(header(0, epoch=3), 0) is None


class NaiveTable:
    """Remembers everything."""

    def __init__(self) -> None:
        self.batches: list[BatchHeader] = []

    def verdict(self, batch: BatchHeader) -> int | ErrorCode | None:
        own = [it for it in self.batches if it.producer_id == batch.producer_id]
        if not own:
            return None
        epoch = own[-1].producer_epoch
        if batch.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if batch.producer_epoch > epoch:
            return None if batch.base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        own = [it for it in own if it.producer_epoch == epoch]
        for it in own[-5:]:
            if (it.base_sequence, it.last_sequence) == (batch.base_sequence, batch.last_sequence):
                return it.base_offset
        if batch.base_sequence == (own[-1].last_sequence + 1) % 2**31:
            return None
        older = [sequence for it in own[:-5] for sequence in self._sequences(it)]
        if set(self._sequences(batch)) <= set(older):
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def _sequences(self, it: BatchHeader) -> Iterator[int]:
        for n in range(it.last_offset_delta + 1):
            yield (it.base_sequence + n) % 2**31


def verdict(it: ProducerTable, batch: BatchHeader) -> int | ErrorCode | None:
    try:
        return it.check(batch, 0)
    except KafkaError as error:
        return error.code


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_the_table_agrees_with_one_that_remembers_everything_across_restarts(seed: int) -> None:
    chance = random.Random(seed)
    patch = pytest.MonkeyPatch()
    patch.setattr(snapshot, "_INTERVAL_BATCHES", chance.choice([2, 7, 1000]))
    start = chance.choice([0, 5, LAST - 10])

    async def scenario() -> None:
        disk, naive = FaultyDisk(), NaiveTable()
        config = LogConfig(segment_bytes=800)
        log = opened(disk, config)
        following: dict[int, int] = {}
        for _ in range(80):
            producer, epoch = chance.randrange(3), chance.choice([0, 0, 0, 0, 1])
            sequence = following.get(producer, start)
            if chance.random() < 0.4:
                sequence = chance.choice([0, (sequence - chance.randrange(-3, 15)) % 2**31])
            batch = header(
                sequence,
                chance.randrange(1, 4),
                epoch=epoch,
                producer=producer,
                base_offset=log.end_offset,
            )
            expected = naive.verdict(batch)
            assert verdict(log.producers, batch) == expected
            if expected is None:
                naive.batches.append(batch)
                following[producer] = (batch.last_sequence + 1) % 2**31
                put(
                    log,
                    [record()] * (batch.last_offset_delta + 1),
                    producer=(producer, epoch, sequence),
                )
            if chance.random() < 0.1:
                await log.sync()
                if chance.random() < 0.5:
                    log.close()
                log = opened(disk, config, durable_end=log.durable_end)
            if chance.random() < 0.05:
                await log.sync()
                log.truncate(9, chance.randint(max(0, log.end_offset - 10), log.end_offset), 0)
                naive.batches = [it for it in naive.batches if it.next_offset <= log.end_offset]
                following = {it.producer_id: (it.last_sequence + 1) % 2**31 for it in naive.batches}

    try:
        asyncio.run(scenario())
    finally:
        patch.undo()
