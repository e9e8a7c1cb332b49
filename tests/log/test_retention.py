"""What goes by itself, and what is deleted on demand."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from sapwood.log import Log, LogConfig, OffsetOutOfRange
from sapwood.log.retention import GRACE_MS
from tests.disk.faulty import Crashed, FaultyDisk
from tests.log.batches import DIRECTORY, fill, offsets, opened, put, record


async def filled(disk: FaultyDisk, config: LogConfig, batches: int = 23) -> Log:
    log = opened(disk, config)
    fill(log, batches)  # timestamps 0, 1, 2 …
    await log.sync()
    return log


async def settled(log: Log) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def config(retention_ms: int = -1, retention_bytes: int = -1, policy: str = "delete") -> LogConfig:
    return LogConfig(
        segment_bytes=1000,  # five batches
        index_interval_bytes=200,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        cleanup_policy=frozenset({policy}),
    )


def test_segments_go_when_their_newest_record_is_too_old() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config(retention_ms=100))
        assert log.retain(104, 23) == 0
        assert log.retain(105, 23) == 5
        assert log.retain(110, 23) == 5
        await settled(log)
        assert (log.start_offset, offsets(log)) == (10, list(range(10, 23)))
        assert log.segment_count == 3
        assert f"{0:020d}.log" not in disk.list(DIRECTORY)
        again = opened(disk, config(), durable_end=23)
        assert (again.start_offset, offsets(again)) == (10, list(range(10, 23)))

    asyncio.run(scenario())


def test_records_that_were_old_when_they_came_can_still_be_read_back() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk(), config(retention_ms=86_400_000))
        written_ms = 10 * 86_400_000
        put(log, [record(at=5)], hlc=written_ms << 16, now_ms=written_ms)
        await log.sync()
        assert log.retain(written_ms + GRACE_MS - 1, 1) == 0
        assert log.retain(written_ms + GRACE_MS, 1) == 1

    asyncio.run(scenario())


def test_segments_go_when_there_is_too_much() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config(retention_bytes=2000))
        size = log.size_bytes
        segment = size * 5 // 23
        assert log.retain(0, 23) == 10
        await settled(log)
        assert 2000 <= log.size_bytes < 2000 + segment
        assert log.retain(0, 23) == 0

    asyncio.run(scenario())


def test_nothing_goes_beyond_the_limit_or_before_it_is_durable() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config(retention_ms=0))
        assert log.retain(10_000, 9) == 5
        assert log.retain(10_000, 0) == 0
        disk.holds_syncs = True
        fill(log, 20)
        assert log.retain(10_000, 43) == 15
        assert log.start_offset == 20

    asyncio.run(scenario())


def test_when_everything_is_too_old_the_active_segment_goes_too() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config(retention_ms=100))
        assert log.retain(10_000, 23) == 23
        await settled(log)
        assert (log.start_offset, log.end_offset, log.size_bytes) == (23, 23, 0)
        assert log.retain(20_000, 23) == 0
        fill(log, 1)
        assert offsets(log) == [23]
        again = opened(disk, config(), durable_end=23)
        assert (again.start_offset, again.end_offset) == (23, 24)

    asyncio.run(scenario())


def test_too_much_never_takes_the_active_segment() -> None:
    async def scenario() -> None:
        log = await filled(FaultyDisk(), config(retention_bytes=0))
        assert log.retain(0, 23) == 20
        await settled(log)
        assert offsets(log) == [20, 21, 22]

    asyncio.run(scenario())


def test_records_without_a_time_age_from_their_append() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk(), config(retention_ms=100))
        put(log, [record(at=-1)], hlc=5000 << 16)
        await log.sync()
        assert log.retain(5100, 1) == 0
        assert log.retain(5101, 1) == 1

    asyncio.run(scenario())


def test_a_compacted_log_keeps_what_is_old() -> None:
    async def scenario() -> None:
        log = await filled(
            FaultyDisk(), config(retention_ms=0, retention_bytes=0, policy="compact")
        )
        assert log.retain(10_000, 23) == 0

    asyncio.run(scenario())


def test_deleted_records_stay_deleted() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config())
        await log.advance_start(7)
        assert (log.start_offset, offsets(log)) == (7, list(range(7, 23)))
        for offset in (6, 24):
            with pytest.raises(OffsetOutOfRange):
                log.advance_start(offset)
        with pytest.raises(OffsetOutOfRange):
            log.read(6, 100, 23)
        again = opened(disk, config(), durable_end=23)
        assert (again.start_offset, offsets(again)) == (7, list(range(7, 23)))
        await again.advance_start(23)
        assert (offsets(again), again.end_offset) == ([], 23)
        last = opened(disk, config(), durable_end=23)
        assert (last.start_offset, last.end_offset) == (23, 23)

    asyncio.run(scenario())


def test_a_start_is_acknowledged_when_it_is_durable_and_files_go_after_that() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config())
        disk.holds_syncs = True
        advanced = log.advance_start(11)
        await settled(log)
        assert not advanced.done()
        assert log.start_offset == 11
        assert f"{0:020d}.log" in disk.list(DIRECTORY)
        disk.release_syncs()
        await advanced
        await settled(log)
        disk.release_syncs()
        assert f"{0:020d}.log" not in disk.list(DIRECTORY)

    asyncio.run(scenario())


def test_a_start_that_cannot_be_written_is_reported_and_tried_again() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config())
        disk.capacity = 0
        with pytest.raises(OSError, match="No space"):
            await log.advance_start(11)
        disk.capacity = None
        log.retain(0, 23)
        await settled(log)
        assert opened(disk, config(), durable_end=23).start_offset == 11

    asyncio.run(scenario())


def test_a_start_given_just_before_closing_is_kept() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, config())
        log.advance_start(9).add_done_callback(lambda done: done.exception())
        log.close()
        assert opened(disk, config(), durable_end=23, clean=True).start_offset == 9

    asyncio.run(scenario())


def test_a_crash_while_closing_never_leaves_a_log_that_ends_before_it_starts() -> None:
    async def closed_at(disk: FaultyDisk, step: int) -> None:
        log = opened(disk, config())
        fill(log, 4)
        disk.holds_syncs = True
        log.advance_start(4).add_done_callback(lambda done: done.cancelled() or done.exception())
        disk.crash_at = disk.steps + step
        with contextlib.suppress(Crashed):
            log.close()

    for step in range(1, 25):
        disk = FaultyDisk()
        asyncio.run(closed_at(disk, step))
        for seed in range(8):
            found = opened(disk.after_crash(random.Random(seed)), config())
            assert found.start_offset in (0, 4)
            assert found.start_offset <= found.end_offset
