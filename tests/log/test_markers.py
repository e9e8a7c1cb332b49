"""Epoch markers: entries that take no offset, and with them a log's exact position."""

from __future__ import annotations

import asyncio
import random

import pytest

from sapwood.log import CorruptLog, EpochsNotAscending, Log, LogConfig, OffsetOutOfRange
from sapwood.log.entry import HEADERS_SIZE
from tests.disk.faulty import FaultyDisk
from tests.log.batches import (
    DIRECTORY,
    first_at,
    newest,
    offsets,
    opened,
    put,
    read_all,
    record,
    starts,
)

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=1, retention_ms=-1)


def mark(log: Log, *epochs: int) -> None:
    for epoch in epochs:
        log.append_marker(epoch, 1, 0)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_marker_takes_no_offset_and_readers_never_see_it() -> None:
    log = opened(FaultyDisk())
    mark(log, 1)
    assert log.position == (1, 0)
    assert log.read(0, 1000, 0) == []
    put(log, [record(at=5)] * 2, epoch=1, hlc=3)
    mark(log, 2, 4)
    put(log, [record(at=7)], epoch=4, hlc=5)
    mark(log, 6)
    assert (log.position, log.last_epoch) == ((6, 3), 6)
    assert offsets(log) == [0, 1, 2]
    assert len(log.read(0, 1 << 20, 3)) == 2
    assert log.read(3, 1000, 3) == []
    assert first_at(log, 6, 3) == (2, 7)
    assert first_at(log, -5, 3) == (0, 5)
    assert newest(log, 3) == (2, 7)
    assert log.offset_for_hlc(4) == 2
    assert log.offset_for_hlc(1) == 0


def test_the_end_of_an_empty_epoch_is_known() -> None:
    log = opened(FaultyDisk())
    mark(log, 1)
    fill_epoch(log, 1, 2)
    mark(log, 2, 5)
    fill_epoch(log, 5, 1)
    mark(log, 7)
    assert [log.end_of_epoch(epoch) for epoch in range(9)] == [
        (-1, -1), (1, 2), (2, 2), (2, 2), (2, 2), (5, 3), (5, 3), (7, 3), (7, 3),
    ]  # fmt: skip


def fill_epoch(log: Log, epoch: int, batches: int, size: int = 100) -> None:
    for _ in range(batches):
        put(log, [record(bytes(size))], epoch=epoch, hlc=log.end_offset + 1)


def test_epochs_only_grow() -> None:
    log = opened(FaultyDisk())
    mark(log, 3)
    for epoch in (2, 3):
        with pytest.raises(EpochsNotAscending):
            mark(log, epoch)
    with pytest.raises(EpochsNotAscending):
        put(log, [record()], epoch=2)
    assert log.position == (3, 0)


def test_a_marker_alone_is_synced_and_moves_the_durable_position() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        fill_epoch(log, 1, 1)
        assert await log.sync() == 1
        assert log.durable_position == (1, 1)
        disk.holds_syncs = True
        mark(log, 2)
        first = log.sync()
        mark(log, 3)
        assert (log.position, log.durable_position, first.done()) == ((3, 1), (1, 1), False)
        second = log.sync()
        disk.held.pop(0)()
        assert await first == 1
        assert log.durable_position == (2, 1)
        disk.release_syncs()
        assert await second == 1
        assert log.durable_position == (3, 1)
        assert log.sync().done()

    asyncio.run(scenario())


@pytest.mark.parametrize("clean", [True, False])
def test_the_position_survives_a_restart_with_epochs_that_are_empty(clean: bool) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        mark(log, 1)
        fill_epoch(log, 1, 3)
        mark(log, 2, 3)
        await log.sync()
        if clean:
            log.close()
        again = opened(disk, durable_end=3, clean=clean)
        assert again.position == (3, 3)
        # A sync that ended at offset 3 need not have covered the markers there.
        assert again.durable_position == ((3, 3) if clean else (1, 3))
        await again.sync()
        assert again.durable_position == (3, 3)
        assert again.end_of_epoch(2) == (2, 3)

    asyncio.run(scenario())


def test_a_marker_that_was_not_synced_is_there_or_not_but_nothing_behind_it_without_it() -> None:
    async def written(disk: FaultyDisk, size: int) -> None:
        log = opened(disk, SMALL)
        fill_epoch(log, 1, 4, size)
        await log.sync()
        disk.holds_syncs = True
        mark(log, 2, 3)
        fill_epoch(log, 3, 4, size)
        mark(log, 4)

    found = set()
    for size in (90, 150, 400):
        disk = FaultyDisk()
        asyncio.run(written(disk, size))
        for seed in range(150):
            log = opened(disk.after_crash(random.Random(seed)), SMALL, durable_end=4)
            found.add(log.position)
            known = [(1, 0), (2, 4), (3, 4), (4, 8)]
            assert starts(log) == [it for it in known if it[0] <= log.last_epoch]
            assert (log.last_epoch < 3) <= (log.end_offset == 4)
            assert (log.last_epoch == 4) <= (log.end_offset == 8)
    assert {(1, 4), (2, 4), (3, 4), (3, 8), (4, 8)} <= found


def test_truncation_cuts_markers_at_the_same_offset() -> None:
    disk = FaultyDisk()
    log = opened(disk)
    mark(log, 1)
    fill_epoch(log, 1, 2)
    mark(log, 2, 3)
    fill_epoch(log, 3, 2)
    mark(log, 4)
    log.truncate(9, 9, 0)
    assert log.position == (4, 4)
    for epoch, offset in ((3, 4), (3, 3), (3, 2), (2, 2), (1, 2), (1, 1), (1, 0), (0, 0)):
        log.truncate(epoch, offset, 0)
        assert log.position == (epoch if epoch else -1, offset)
        assert log.durable_position == log.position
        again = opened(disk, durable_end=offset)
        assert again.position == log.position
        assert starts(again) == starts(log)


def test_truncation_to_an_older_epoch_cuts_where_that_epoch_ended() -> None:
    log = opened(FaultyDisk())
    fill_epoch(log, 1, 2)
    mark(log, 3)
    fill_epoch(log, 3, 2)
    log.truncate(2, 4, 0)
    assert log.position == (1, 2)
    log.truncate(0, 4, 0)
    assert log.position == (-1, 0)


def test_truncation_never_goes_below_the_start() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk())
        fill_epoch(log, 1, 2)
        mark(log, 3)
        fill_epoch(log, 3, 2)
        await log.advance_start(3)
        for epoch, offset in ((3, 2), (2, 3), (0, 4)):
            with pytest.raises(OffsetOutOfRange):
                log.truncate(epoch, offset, 0)
        assert log.position == (3, 4)

    asyncio.run(scenario())


def rolled(disk: FaultyDisk) -> Log:
    """A segment that ends with markers, of which the next one has the same."""
    log = opened(disk, SMALL)
    mark(log, 1)
    fill_epoch(log, 1, 4)
    mark(log, 2, 3)
    put(log, [record(bytes(500))], epoch=3, hlc=9)
    assert log.segment_count == 2
    return log


def test_truncation_cuts_markers_at_the_end_of_a_closed_segment() -> None:
    async def scenario() -> None:
        for epoch in (3, 2, 1):
            disk = FaultyDisk()
            log = rolled(disk)
            log.truncate(epoch, 4, 0)
            assert (log.position, log.segment_count) == ((epoch, 4), 2)
            for it in (log, opened(disk, SMALL, durable_end=4)):
                assert it.position == (epoch, 4)
                assert starts(it) == [
                    start for start in ((1, 0), (2, 4), (3, 4)) if start[0] <= epoch
                ]
                assert offsets(it) == list(range(4))
            fill_epoch(log, 3, 3)
            assert offsets(log) == list(range(7))

    asyncio.run(scenario())


def lost(disk: FaultyDisk, base_offset: int, size: int = 0) -> None:
    """A power cut takes what was not synced of a segment, and not its name."""
    inode = disk.live[f"{DIRECTORY}/{base_offset:020d}.log"]
    assert len(inode.live) > size >= len(inode.durable)
    del inode.live[size:]


async def marked_and_rolled(disk: FaultyDisk) -> Log:
    """The markers are durable in the first segment, and not yet in the next one."""
    log = opened(disk, SMALL)
    fill_epoch(log, 1, 4)
    mark(log, 2)
    log._take_snapshot()
    await log.sync()
    mark(log, 3, 4)
    await log.sync()
    disk.holds_syncs = True
    put(log, [record(bytes(500))], epoch=4, hlc=9)
    assert (log.segment_count, log.durable_position) == (2, (4, 4))
    return log


def test_markers_at_the_end_of_a_segment_count_when_the_next_one_lost_its_own() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        await marked_and_rolled(disk)
        lost(disk, 4)
        again = opened(disk, SMALL, durable_end=4)
        known = [(1, 0), (2, 4), (3, 4), (4, 4)]
        assert (again.position, starts(again)) == ((4, 4), known)
        # And the next one gets them anew, so that what follows them is never without them.
        put(again, [record(bytes(10))], epoch=4)
        first = disk.live[f"{DIRECTORY}/{0:020d}.log"]
        del first.live[-3 * HEADERS_SIZE :]
        last = opened(disk, SMALL, durable_end=4)
        assert (last.position, starts(last)) == ((4, 5), known)

    asyncio.run(scenario())


def test_a_segment_that_ends_at_the_start_is_not_deleted_while_it_gets_markers() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        fill_epoch(log, 1, 4)
        await log.sync()
        await log.advance_start(4)
        mark(log, 2, 3)
        await log.sync()
        disk.holds_syncs = True
        put(log, [record(bytes(500))], epoch=3, hlc=9)
        assert log.segment_count == 2
        lost(disk, 4)
        again = opened(disk, SMALL, durable_end=4)
        assert (again.start_offset, again.position) == (4, (3, 4))

    asyncio.run(scenario())


def test_a_segment_that_was_closed_while_a_start_was_stored_is_not_deleted_with_it() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        fill_epoch(log, 1, 4)
        await log.sync()
        disk.holds_syncs = True
        stored = log.advance_start(4)
        await settled()
        mark(log, 2, 3)
        synced = log.sync()
        store, sync = disk.held
        sync()
        await synced
        disk.held.clear()
        put(log, [record(bytes(500))], epoch=3, hlc=9)
        rolling, disk.held = disk.held, []
        store()
        await stored
        disk.release_syncs()
        assert (log.segment_count, log.durable_position, len(rolling)) == (2, (3, 4), 2)
        lost(disk, 4)
        assert opened(disk, SMALL, durable_end=4).position == (3, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("batch_behind", [True, False])
def test_the_position_survives_the_deletion_of_all_that_it_came_from(batch_behind: bool) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = rolled(disk)
        if not batch_behind:
            log.truncate(3, 4, 0)
        position = log.position
        await log.sync()
        await log.advance_start(4)
        await settled()
        assert f"{0:020d}.log" not in disk.list(DIRECTORY)
        for survivor in (disk, disk.after_crash(random.Random(1))):
            for name in survivor.list(DIRECTORY):
                if name.endswith(".producers"):
                    survivor.remove(f"{DIRECTORY}/{name}")
            again = opened(survivor, SMALL, durable_end=4)
            assert again.position == position
            assert [again.end_of_epoch(epoch) for epoch in (1, 2)] == [(1, 4), (2, 4)]
            again.truncate(2, 4, 0)
            assert opened(survivor, SMALL, durable_end=4).position == (2, 4)
            again.truncate(1, 4, 0)
            assert opened(survivor, SMALL, durable_end=4).position == (1, 4)

    asyncio.run(scenario())


def test_when_everything_is_too_old_the_epoch_stays() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        config = LogConfig(segment_bytes=1000, retention_ms=10)
        log = opened(disk, config)
        mark(log, 1)
        fill_epoch(log, 1, 3)
        mark(log, 2)
        await log.sync()
        for now_ms in (10_000_000, 20_000_000, 30_000_000):
            log.retain(now_ms, log.end_offset)
            await settled()
            assert (log.start_offset, log.position) == (3, (2, 3))
            assert opened(disk, config, durable_end=3).position == (2, 3)
        assert read_all(log) == []

    asyncio.run(scenario())


def test_a_snapshot_does_not_speak_of_markers_that_are_not_durable() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        fill_epoch(log, 1, 3)
        await log.sync()
        mark(log, 2)
        log._take_snapshot()
        log._snapshots.write(log.durable_position)
        assert not [it for it in disk.list(DIRECTORY) if it.endswith(".producers")]
        await log.sync()
        assert [it for it in disk.list(DIRECTORY) if it.endswith(".producers")]

    asyncio.run(scenario())


def test_a_snapshot_of_a_marker_that_was_cut_does_not_count() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        fill_epoch(log, 1, 3)
        mark(log, 2)
        log._take_snapshot()
        await log.sync()
        log.truncate(1, 3, 0)
        assert log.position == (1, 3)
        assert opened(disk, durable_end=3).position == (1, 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("byte", range(0, 81, 3))
def test_a_damaged_marker_is_never_passed_over(byte: int) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        fill_epoch(log, 1, 2)
        position = log.size_bytes
        mark(log, 2)
        fill_epoch(log, 2, 2)
        await log.sync()
        disk.flip(f"{DIRECTORY}/{0:020d}.log", position + byte)
        for durable_end in (3, 1):  # it was written as a whole, whatever is known of the sync
            with pytest.raises(CorruptLog):
                opened(disk, durable_end=durable_end)

    asyncio.run(scenario())
