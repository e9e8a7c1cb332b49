"""A replica that is too far behind begins anew where another one starts."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from sapwood.log import (
    VOTERS_KEY,
    BadSnapshot,
    Log,
    LogConfig,
    LogFailed,
    OffsetOutOfRange,
    ProducerTable,
    SeenBatch,
)
from tests.disk.faulty import Crashed, FaultyDisk
from tests.log.batches import DIRECTORY, fetched, offsets, opened, put, read_all, record, starts

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def grow(log: Log, epoch: int, batches: int, *, records: int = 1, producer: int = 7) -> None:
    for _ in range(batches):
        at = log.end_offset
        put(
            log,
            [record(b"%d" % at + bytes(100))] * records,
            epoch=epoch,
            hlc=at + 1,
            producer=(producer, 0, at),
        )


async def leader_from(offset: int, disk: FaultyDisk | None = None) -> Log:
    log = opened(disk or FaultyDisk(), SMALL)
    log.append_marker(1, 1, 0)
    log.append_control(VOTERS_KEY, b"first", 1, 1, 0)
    grow(log, 1, 9)
    log.append_marker(2, 1, 0)
    log.append_marker(3, 1, 0)
    grow(log, 3, 10, records=2)
    log.append_control(VOTERS_KEY, b"second", 3, 1, 0)
    log.append_marker(4, 1, 0)
    await log.sync()
    await log.advance_start(offset)
    return log


def same(one: Log, other: Log) -> None:
    assert one.position == other.position
    assert one.voters[-1:] == other.voters[-1:]
    assert starts(one)[-1:] == starts(other)[-1:]
    assert seen(one.producers) == seen(other.producers)
    assert records(one.producers) <= records(other.producers)


def seen(table: ProducerTable) -> dict[int, tuple[int, list[SeenBatch]]]:
    return {key: (it.epoch, list(it.batches)) for key, it in table._producers.items()}


def records(table: ProducerTable) -> int:
    return sum(it.records for it in table._producers.values())


@pytest.mark.parametrize("start", [10, 12, 13, 20, 31])
@pytest.mark.parametrize("behind", [0, 4, 11])
def test_a_reset_log_fetches_the_rest_and_is_the_same(start: int, behind: int) -> None:
    async def scenario() -> None:
        leader = await leader_from(start)
        disk = FaultyDisk()
        follower = opened(disk, SMALL)
        grow(follower, 0, behind, producer=3)
        await follower.sync()
        if behind < start - 1:
            with pytest.raises(OffsetOutOfRange):
                leader.read_replica(*follower.position, 1000)
        follower.reset(leader.snapshot(), 0)
        end = start + (start == 13)  # that one lies within a batch
        assert (follower.start_offset, follower.end_offset) == (start, end)
        assert follower.durable_position == follower.position
        assert follower.position == (3 if start < 31 else 4, end)
        assert follower.voters == [it for it in leader.voters if it[0] < end]
        again = opened(disk, SMALL, durable_end=min(behind, end))
        same(again, follower)
        for log in (follower, again):
            fetched(leader, log)
            same(log, leader)
            assert read_all(log) == read_all(leader)
        again = opened(disk, SMALL, durable_end=end)
        assert (again.position, read_all(again)) == (leader.position, read_all(leader))
        assert sum(name.endswith(".producers") for name in disk.list(DIRECTORY)) <= 2

    asyncio.run(scenario())


def test_all_epochs_at_the_start_are_known_and_can_be_cut_again() -> None:
    async def scenario() -> None:
        leader = await leader_from(10)
        disk = FaultyDisk()
        follower = opened(disk, SMALL)
        follower.reset(leader.snapshot(), 0)
        assert starts(follower) == [(1, 0), (2, 10), (3, 10)]
        follower.truncate(2, 10, 0)
        assert follower.position == opened(disk, SMALL).position == (2, 10)
        fetched(leader, follower)
        same(follower, leader)

    asyncio.run(scenario())


def test_what_is_no_snapshot_changes_nothing() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        grow(log, 1, 5)
        await log.sync()
        good = (await leader_from(12)).snapshot()
        before = disk.contents()
        inside = bytearray((await leader_from(13)).snapshot())
        inside[-1] ^= 1
        for wrong in (b"", b"rubbish", good[:-1], bytes(len(good)), good + b"x", bytes(inside)):
            with pytest.raises(BadSnapshot):
                log.reset(wrong, 0)
        assert disk.contents() == before
        grow(log, 1, 1)
        assert offsets(log) == list(range(6))

    asyncio.run(scenario())


def test_a_disk_that_is_full_leaves_the_old_log_in_use() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        grow(log, 1, 5)
        await log.sync()
        await log.advance_start(1)
        disk.capacity = sum(map(len, disk.contents().values())) + 400
        leader = await leader_from(20)
        for producer in range(20):
            grow(leader, 4, 1, producer=producer)
        with pytest.raises(OSError, match="No space"):
            log.reset(leader.snapshot(), 0)
        assert log.failed is None
        disk.capacity = None
        await log.advance_start(2)
        for it in (log, opened(disk, SMALL, durable_end=5)):
            assert offsets(it) == list(range(2, 5))

    asyncio.run(scenario())


def test_a_reset_that_fails_half_way_takes_the_log_out_of_service() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        grow(log, 1, 5)
        await log.sync()
        disk.fails_sync = lambda path: ".producers" in path
        snapshot = (await leader_from(20)).snapshot()
        with pytest.raises(OSError, match="sync failed"):
            log.reset(snapshot, 0)
        with pytest.raises(LogFailed):
            grow(log, 1, 1)
        log.close()
        disk.fails_sync = lambda path: False
        again = opened(disk, SMALL, durable_end=5)
        assert (again.start_offset, again.position) == (20, (3, 20))

    asyncio.run(scenario())


@pytest.mark.parametrize(("start", "end"), [(20, 20), (21, 22)])
def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one(start: int, end: int) -> None:
    async def prepared(disk: FaultyDisk) -> bytes:
        log = opened(disk, SMALL)
        grow(log, 1, 14, producer=3)
        log.append_control(VOTERS_KEY, b"old", 1, 1, 0)
        await log.sync()
        await log.advance_start(3)
        return (await leader_from(start)).snapshot()

    async def reset_at(disk: FaultyDisk, snapshot: bytes, step: int) -> bool:
        log = opened(disk, SMALL, durable_end=15)
        grow(log, 1, 1, producer=3)
        disk.crash_at = disk.steps + step
        with contextlib.suppress(Crashed, LogFailed):
            log.reset(snapshot, 0)
            grow(log, 5, 1)
            return await log.sync() > 0
        return False

    positions: set[tuple[int, int]] = set()
    step, finished = 0, False
    while not finished:
        step += 1
        disk = FaultyDisk()
        snapshot = asyncio.run(prepared(disk))
        finished = asyncio.run(reset_at(disk, snapshot, step))
        for seed in range(6):
            survivor = disk.after_crash(random.Random(seed))
            # Opening may be interrupted, too.
            survivor.crash_at = random.Random(step * seed).randrange(1, 40)
            with contextlib.suppress(Crashed):
                opened(survivor, SMALL, durable_end=15)
            log = opened(survivor.after_crash(random.Random(seed)), SMALL, durable_end=15)
            positions.add(log.position)
            if log.start_offset == 3:
                assert (log.voters, log.last_epoch) == ([(14, b"old")], 1)
                assert log.position in ((1, 15), (1, 16))
                assert offsets(log)[:12] == list(range(3, 15))
                assert len(log.producers) == 1
            else:
                assert (log.start_offset, log.voters) == (start, [(0, b"first")])
                assert log.position in ((3, end), (5, end + 1))
                assert offsets(log) == list(range(start, log.end_offset))
                assert seen(log.producers.as_of(end)) == seen(producers_of(snapshot))
    assert {(1, 15), (3, end), (5, end + 1)} <= positions
    assert step > 15


def producers_of(snapshot: bytes) -> ProducerTable:
    log = opened(FaultyDisk(), SMALL)
    log.reset(snapshot, 0)
    return log.producers


def test_waiters_for_a_sync_are_told_when_the_log_was_reset() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        grow(log, 1, 8)
        snapshot = (await leader_from(20)).snapshot()
        disk.holds_syncs = True
        waiting = log.sync()
        log.reset(snapshot, 0)
        disk.release_syncs()
        assert await waiting == 20
        assert log.durable_position == (3, 20)
        assert not [it for it in disk.list(DIRECTORY) if it < f"{20:020d}" and "state" not in it]

    asyncio.run(scenario())
