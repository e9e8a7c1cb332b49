"""Appending, reading and syncing one log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sapwood.disk import OsDisk
from sapwood.log import (
    Log,
    LogClosed,
    LogConfig,
    LogFailed,
    OffsetOutOfRange,
    OffsetsNotAscending,
    SegmentCache,
)
from sapwood.wire.batch import read_header
from sapwood.wire.records import encode_batch
from tests.disk.faulty import FaultyDisk
from tests.log.batches import DIRECTORY, fill, newest, offsets, opened, put, read_all, record

SMALL = LogConfig(segment_bytes=1000)


async def turns(count: int) -> None:
    """Let callbacks of callbacks run."""
    for _ in range(count):
        await asyncio.sleep(0)


def bases(batches: list[memoryview]) -> list[int]:
    return [read_header(batch).base_offset for batch in batches]


def test_a_new_log_is_empty_and_starts_at_zero() -> None:
    log = opened(FaultyDisk())
    assert (log.start_offset, log.end_offset, log.durable_end, log.size_bytes) == (0, 0, 0, 0)
    assert log.read(0, 1000, 0) == []
    assert (log.last_epoch, log.last_hlc) == (-1, 0)
    assert newest(log, 0) is None


def test_batches_come_back_as_they_were_with_their_append_time() -> None:
    log = opened(FaultyDisk())
    written = []
    for number in range(20):
        batch = encode_batch([record(b"%d" % number)] * 3, base_offset=log.end_offset)
        log.append(memoryview(batch), read_header(batch), 1000 + number, 0)
        written.append((1000 + number, bytes(batch)))
    found = log.read_entries(0, 1 << 20, log.end_offset)
    assert [(hlc, bytes(batch)) for hlc, batch in found] == written
    assert log.read(0, 1 << 20, log.end_offset) == [batch for _, batch in written]
    assert log.last_hlc == 1019


def test_a_read_begins_with_the_batch_that_holds_the_offset_and_ends_below_the_limit() -> None:
    log = opened(FaultyDisk())
    for _ in range(5):
        put(log, [record()] * 3)
    assert bases(log.read(7, 1 << 20, 15)) == [6, 9, 12]
    assert bases(log.read(0, 1 << 20, 9)) == [0, 3, 6]
    assert bases(log.read(0, 1 << 20, 8)) == [0, 3]
    assert bases(log.read(8, 1 << 20, 8)) == []
    assert bases(log.read(15, 1 << 20, 15)) == []


def test_a_read_keeps_to_its_bytes_but_returns_one_batch_however_large() -> None:
    log = opened(FaultyDisk())
    put(log, [record(bytes(50_000))])
    fill(log, 10, size=100)
    size = len(log.read(1, 1, log.end_offset)[0])
    assert bases(log.read(0, 10, log.end_offset)) == [0]
    assert bases(log.read(0, 10, log.end_offset, at_least_one=False)) == []
    assert bases(log.read(1, 3 * size, log.end_offset)) == [1, 2, 3]
    assert bases(log.read(1, 3 * size - 1, log.end_offset)) == [1, 2]
    assert bases(log.read(1, 0, log.end_offset)) == [1]
    assert bases(log.read(1, -5, log.end_offset, at_least_one=False)) == []


def test_offsets_outside_the_log_are_refused() -> None:
    log = opened(FaultyDisk())
    fill(log, 3)
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange) as refused:
            log.read(offset, 1000, 3)
        assert (refused.value.start_offset, refused.value.end_offset) == (0, 3)


def test_a_batch_below_the_end_is_refused() -> None:
    log = opened(FaultyDisk())
    fill(log, 3)
    batch = encode_batch([record()], base_offset=2)
    with pytest.raises(OffsetsNotAscending):
        log.append(memoryview(batch), read_header(batch), 0, 0)


def test_offsets_may_have_gaps() -> None:
    log = opened(FaultyDisk())
    fill(log, 1)
    batch = encode_batch([record()], base_offset=10)
    log.append(memoryview(batch), read_header(batch), 0, 0)
    assert (log.end_offset, offsets(log)) == (11, [0, 10])
    assert bases(log.read(5, 1000, 11)) == [10]


def test_segments_roll_by_size_and_by_age() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, LogConfig(segment_bytes=1000, segment_ms=5000))
        fill(log, 20)
        assert log.segment_count == 4
        assert offsets(log) == list(range(20))
        fill(log, 1, now_ms=4999)
        assert log.segment_count == 5
        put(log, [record()], now_ms=9999)
        assert log.segment_count == 6
        log.roll_if_due(14_000)
        assert log.segment_count == 6
        log.roll_if_due(14_999)
        log.roll_if_due(30_000)
        assert log.segment_count == 7
        assert offsets(log) == list(range(22))

    asyncio.run(scenario())


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk(), SMALL)
        fill(log, 1)
        put(log, [record(bytes(5000))])
        fill(log, 1)
        assert (log.segment_count, offsets(log)) == (3, [0, 1, 2])

    asyncio.run(scenario())


def test_room_is_allocated_ahead_in_growing_steps_within_the_segment(tmp_path: Path) -> None:
    log = Log.open(
        OsDisk(),
        str(tmp_path),
        LogConfig(segment_bytes=5 << 20),
        durable_end=0,
        clean=False,
        now_ms=0,
    )
    sizes = set()
    for _ in range(45):
        fill(log, 1, size=100_000)
        sizes.add((tmp_path / f"{0:020d}.log").stat().st_size)
    assert sizes == {1 << 20, 2 << 20, 4 << 20, 5 << 20}
    log.close()
    assert (tmp_path / f"{0:020d}.log").stat().st_size == log.size_bytes


def test_everybody_who_waits_for_a_sync_learns_the_durable_end() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        disk.holds_syncs = True
        log = opened(disk)
        fill(log, 1)
        first = log.sync()
        fill(log, 1)
        second = log.sync()
        assert log.durable_end == 0
        disk.release_syncs()
        assert await first >= 1
        assert await second == 2
        assert log.durable_end == await log.sync() == 2

    asyncio.run(scenario())


def test_one_sync_serves_all_appends_before_it_began(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        log = Log.open(disk, str(tmp_path), LogConfig(), durable_end=0, clean=False, now_ms=0)
        waiting = []
        for _ in range(100):
            fill(log, 1)
            waiting.append(log.sync())
        ends = await asyncio.gather(*waiting)
        assert ends[-1] == 100
        assert all(end > number for number, end in enumerate(ends))
        assert ends == sorted(ends)

    asyncio.run(scenario())


def test_a_sync_covers_segments_that_were_rolled_meanwhile() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        fill(log, 12)
        assert log.segment_count == 3
        assert await log.sync() == 12
        assert {path for path in disk.syncs if path.endswith(".log")} == {
            path for path in disk.contents() if path.endswith(".log")
        }
        assert all(not inode.changes for path, inode in disk.live.items() if path.endswith(".log"))

    asyncio.run(scenario())


def test_rolling_moves_the_durable_end_even_if_nobody_asks() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk(), SMALL)
        fill(log, 12)
        await turns(10)
        assert log.durable_end >= 10

    asyncio.run(scenario())


def test_a_failed_sync_fails_the_log_for_good() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        fill(log, 1)
        await log.sync()
        disk.fails_sync = lambda path: path.endswith(".log")
        fill(log, 1)
        waiting = [log.sync(), log.sync()]
        for future in waiting:
            with pytest.raises(LogFailed):
                await future
        disk.fails_sync = lambda path: False
        disk.syncs.clear()
        with pytest.raises(LogFailed):
            await log.sync()
        with pytest.raises(LogFailed):
            fill(log, 1)
        assert isinstance(log.failed, LogFailed)
        assert (log.durable_end, disk.syncs) == (1, [])
        log.close()
        assert disk.syncs == []

    asyncio.run(scenario())


def test_a_failed_sync_of_a_rolled_segment_fails_the_log() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        disk.fails_sync = lambda path: path.endswith(f"{0:020d}.log")
        log = opened(disk, SMALL)
        fill(log, 7)
        assert log.segment_count == 2
        with pytest.raises(LogFailed):
            await log.sync()
        assert log.durable_end == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("preallocate", [True, False])
def test_a_full_disk_refuses_appends_and_takes_them_again_when_there_is_room(
    preallocate: bool,
) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        config = LogConfig(segment_bytes=3000, preallocate=preallocate)
        log = opened(disk, config)
        fill(log, 4)
        await log.sync()
        disk.capacity = 6000
        refused = 0
        for _ in range(40):
            before = (log.end_offset, log.size_bytes, len(log.producers))
            try:
                put(log, [record(bytes(100), at=5)], producer=(9, 0, log.end_offset))
            except OSError:
                refused += 1
                assert (log.end_offset, log.size_bytes, len(log.producers)) == before
        assert 0 < refused < 40
        reached = log.end_offset
        assert await log.sync() == reached
        assert len(read_all(log)) == reached
        disk.capacity = None
        fill(log, 5)
        await log.sync()
        again = opened(disk, config, durable_end=log.durable_end)
        assert offsets(again) == list(range(reached + 5))

    asyncio.run(scenario())


def test_the_last_bytes_of_a_disk_are_used() -> None:
    disk = FaultyDisk()
    disk.capacity = 1000
    log = opened(disk)
    with pytest.raises(OSError, match="No space"):
        fill(log, 10)
    assert log.end_offset == 5


def test_deleting_makes_room_on_a_full_disk() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, LogConfig(segment_bytes=2000, retention_bytes=3000))
        fill(log, 60)
        await log.sync()
        disk.capacity = sum(map(len, disk.contents().values()))
        with pytest.raises(OSError, match="No space"):
            fill(log, 20)
        for _ in range(3):
            log.retain(0, log.end_offset)
            await asyncio.gather(*(log.sync() for _ in range(5)))
            await turns(20)
        fill(log, 5)
        assert log.start_offset > 0

    asyncio.run(scenario())


def test_a_closed_log_takes_nothing_more_and_opens_as_it_was() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        fill(log, 12)
        log.close()
        log.close()
        assert log.durable_end == 12
        with pytest.raises(LogClosed):
            fill(log, 1)
        with pytest.raises(LogClosed):
            log.truncate(9, 0, 0)
        reads = disk.bytes_read
        again = opened(disk, SMALL, durable_end=12, clean=True)
        assert disk.bytes_read - reads < 3000
        assert offsets(again) == list(range(12))

    asyncio.run(scenario())


def test_truncation_cuts_whole_batches_and_appends_go_on_there() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        for number in range(12):
            put(log, [record(bytes(100))] * 3, epoch=number // 4, hlc=number + 1)
        log.truncate(9, 100, 0)
        assert log.end_offset == 36
        log.truncate(9, 17, 0)
        assert (log.end_offset, log.last_epoch, log.last_hlc) == (15, 1, 5)
        put(log, [record(b"new")], epoch=9)
        assert offsets(log) == list(range(16))
        assert log.end_offset_for_epoch(5) == (1, 15)
        await log.sync()
        again = opened(disk, SMALL, durable_end=16)
        assert (offsets(again), again.last_epoch) == (list(range(16)), 9)
        with pytest.raises(OffsetOutOfRange):
            again.truncate(9, -1, 0)
        again.truncate(9, 0, 0)
        assert (again.end_offset, again.last_epoch) == (0, -1)

    asyncio.run(scenario())


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    log = opened(FaultyDisk())
    assert log.end_offset_for_epoch(3) == (-1, -1)
    for epoch in (2, 2, 4, 7):
        put(log, [record()] * 2, epoch=epoch)
    assert [log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3, 4, 6, 7, 8)] == [
        (-1, -1),
        (2, 4),
        (2, 4),
        (4, 6),
        (4, 6),
        (7, 8),
        (7, 8),
    ]
    assert log.last_epoch == 7


def test_few_files_are_open_however_many_segments_there_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        cache = SegmentCache(max_files=3, max_index_bytes=2000)
        log = Log.open(
            OsDisk(),
            str(tmp_path),
            LogConfig(segment_bytes=500, index_interval_bytes=1),
            durable_end=0,
            clean=False,
            now_ms=0,
            cache=cache,
        )
        fill(log, 100)
        await log.sync()
        assert log.segment_count > 30
        for offset in range(0, 100, 7):
            assert bases(log.read(offset, 1, 100)) == [offset]
            assert len(cache._files) <= 3
            assert cache._index_bytes <= 2000
        assert offsets(log) == list(range(100))
        log.close()
        assert not cache._files
        assert cache._index_bytes == 0

    asyncio.run(scenario())


def test_the_directory_holds_what_people_expect_of_it() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        fill(log, 8)
        log.close()
        names = disk.list(DIRECTORY)
        assert [name for name in names if name.endswith(".log")] == [
            f"{0:020d}.log",
            f"{5:020d}.log",
        ]
        assert {name.partition(".")[2] for name in names} == {"log", "index", "producers"}

    asyncio.run(scenario())
