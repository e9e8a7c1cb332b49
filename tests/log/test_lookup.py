"""Finding offsets by time, against a list that is searched from its beginning."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.log import LogConfig
from sapwood.wire.batch import patch_append_time, read_header
from sapwood.wire.records import encode_batch
from tests.disk.faulty import FaultyDisk
from tests.log.batches import first_at, newest, opened, put, read_all, record

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32))
def test_reads_and_look_ups_agree_with_a_list(seed: int) -> None:
    chance = random.Random(seed)

    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, CONFIG)
        records: list[tuple[int, int, int]] = []  # offset, timestamp, hlc
        hlc = 0
        for _ in range(chance.randrange(60)):
            hlc += chance.randrange(1, 5)
            times = [chance.randrange(100) for _ in range(chance.randrange(1, 4))]
            records += [(log.end_offset + n, time, hlc) for n, time in enumerate(times)]
            value = bytes(chance.randrange(100))
            codec = chance.choice([0, 4])
            put(log, [record(value, at=time) for time in times], hlc=hlc, compression=codec)
            if chance.random() < 0.1:
                await log.sync()
                log = opened(disk, CONFIG, durable_end=log.durable_end)
        await log.sync()
        if records and chance.random() < 0.5:
            await log.advance_start(chance.randint(0, log.end_offset))
        batch_ends = [0]
        while batch_ends[-1] < log.end_offset and log.start_offset <= batch_ends[-1]:
            found = log.read(batch_ends[-1], 1, log.end_offset)
            batch_ends.append(read_header(found[0]).next_offset)
        limit = chance.choice([*batch_ends, log.end_offset])
        visible = [it for it in records if log.start_offset <= it[0] < limit]
        assert [(it.offset, it.timestamp) for it in read_all(log, limit=limit)] == [
            it[:2] for it in visible
        ]
        for timestamp in range(0, 105, 7):
            expected = next((it[:2] for it in visible if it[1] >= timestamp), None)
            assert first_at(log, timestamp, limit) == expected
        largest = max((it[1] for it in visible), default=None)
        assert newest(log, limit) == next((i[:2] for i in visible if i[1] == largest), None)
        for wanted in range(0, hlc + 3, 3):
            later = [it[0] for it in records if it[2] >= wanted]
            expected_offset = max(later[0], log.start_offset) if later else log.end_offset
            assert log.offset_for_hlc(wanted) == expected_offset

    asyncio.run(scenario())


def test_append_time_counts_for_all_records_of_a_batch() -> None:
    log = opened(FaultyDisk())
    batch = encode_batch([record(at=5), record(at=900)])
    patch_append_time(batch, 0, 1000)
    log.append(memoryview(batch), read_header(batch), 0, 0)
    assert first_at(log, 950, 2) == (0, 1000)
    assert newest(log, 2) == (0, 1000)


def test_a_batch_that_cannot_be_decoded_counts_as_a_whole() -> None:
    log = opened(FaultyDisk())
    batch = encode_batch([record(at=7)])
    batch[61:] = b"\xff" * (len(batch) - 61)
    patch_append_time(batch, 0, 7)
    log.append(memoryview(batch), read_header(batch), 0, 0)
    assert first_at(log, 3, 1) == (0, 7)


def test_a_batch_with_too_much_in_it_counts_as_a_whole() -> None:
    log = opened(FaultyDisk())
    put(log, [record(bytes(2 << 20), at=4), record(b"v", at=7)], compression=3)
    assert first_at(log, 5, 2) == (0, 7)


def test_one_look_decodes_one_batch_however_many_there_are_that_lie_about_their_times() -> None:
    log = opened(FaultyDisk(), LogConfig(index_interval_bytes=200))
    for _ in range(50):
        batch = encode_batch([record(at=5)], base_offset=log.end_offset)
        batch[35:43] = (1000).to_bytes(8, "big")  # max_timestamp
        log.append(memoryview(batch), read_header(batch), 0, 0)
    put(log, [record(at=900)])
    looks = [0]
    while isinstance(found := log.offset_for_timestamp(900, 51, looks[-1]), int):
        looks.append(found)
    assert (found, looks) == ((50, 900), [*range(51)])


def test_one_look_passes_a_limited_number_of_batches() -> None:
    log = opened(FaultyDisk(), LogConfig(index_interval_bytes=1 << 20))
    for _ in range(2500):
        put(log, [record(at=5)])
    put(log, [record(at=900)])
    assert log.offset_for_timestamp(900, 2501) == 1000
    assert first_at(log, 900, 2501) == (2500, 900)
