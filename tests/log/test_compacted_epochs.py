"""Compaction takes records, never what a log knows of its epochs and voters."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.log import VOTERS_KEY, CorruptLog, Log, LogConfig
from sapwood.log.cleaner import Cleaned, CompactionPlan, clean
from sapwood.log.ledger import KEPT_VOTERS
from tests.disk.faulty import Crashed, FaultyDisk
from tests.log.batches import DIRECTORY, fetched, offsets, opened, put, read_all, record, starts

COMPACTED = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=600,
    min_cleanable_dirty_ratio=0.0,
    index_interval_bytes=200,
    delete_retention_ms=0,
)
Run = Callable[[CompactionPlan], Coroutine[Any, Any, Cleaned]]


def inline(disk: FaultyDisk) -> Run:
    async def run(plan: CompactionPlan) -> Cleaned:
        return clean(disk, plan)

    return run


def keep(log: Log, key: bytes, batches: int, *, epoch: int | None = None) -> None:
    for _ in range(batches):
        put(log, [record(bytes(100), key)], hlc=log.end_offset + 1, epoch=epoch)


def forget_snapshots(disk: FaultyDisk) -> None:
    for name in disk.list(DIRECTORY):
        if name.endswith(".producers"):
            disk.remove(f"{DIRECTORY}/{name}")


async def filled(disk: FaultyDisk, *, markers: bool = True) -> Log:
    """Nearly all of it is superseded, and whole epochs are."""
    log = opened(disk, COMPACTED)
    for epoch in range(1, 12):
        if markers:
            log.append_marker(2 * epoch, epoch, 0)
            log.append_marker(2 * epoch + 1, epoch, 0)
        if epoch in (3, 8):
            log.append_control(VOTERS_KEY, b"%d" % epoch, 2 * epoch + 1, epoch, 0)
        keep(log, b"key", 3, epoch=2 * epoch + 1)
    await log.sync()
    return log


@pytest.mark.parametrize("markers", [True, False])
def test_epochs_are_exact_after_compaction_even_from_the_segments_alone(markers: bool) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, markers=markers)
        position, known, voters = log.position, starts(log), log.voters
        for _ in range(3):
            assert await log.compact(1, log.end_offset, inline(disk)) is not None
            for survivor in (disk, disk.after_crash(random.Random(0))):
                forget_snapshots(survivor)
                again = opened(survivor, COMPACTED, durable_end=position[1])
                assert (again.position, starts(again), again.voters) == (position, known, voters)
            again = opened(disk, COMPACTED, durable_end=position[1])
            follower = opened(FaultyDisk(), COMPACTED)
            fetched(again, follower)
            assert (follower.position, follower.voters) == (position, voters)
            assert starts(follower) == known
            assert read_all(follower) == read_all(again)
            log = again
            keep(log, b"key", 8)
            await log.sync()
            position, known = log.position, starts(log)
        assert len(offsets(log)) < 15

    asyncio.run(scenario())


def test_a_follower_of_a_compacted_log_gets_to_its_end() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        keep(log, b"a", 3)
        for _ in range(3):
            put(log, [record(None, b"a")])
        await log.sync()
        log.roll_if_due(COMPACTED.segment_ms + 1)
        await log.sync()
        for now_ms in (1, 2, 3):
            await log.compact(now_ms, log.end_offset, inline(disk))
            follower = opened(FaultyDisk())
            fetched(log, follower)
            assert follower.position == log.position == (0, 6)

    asyncio.run(scenario())


def test_the_first_markers_of_a_new_segment_are_those_of_its_base() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk)
        await log.compact(1, log.end_offset, inline(disk))
        for segment in log._segments:
            held = {it.header.leader_epoch for it in segment.entries() if it.is_marker}
            at_base = {epoch for epoch, start in starts(log) if start == segment.base_offset}
            assert at_base <= held

    asyncio.run(scenario())


async def compacting(log: Log, run: Run, turns: int) -> asyncio.Task[int | None]:
    task = asyncio.create_task(log.compact(1, log.end_offset, run))
    for _ in range(turns):
        await asyncio.sleep(0)
    return task


def marked_at_the_end(disk: FaultyDisk) -> Log:
    """Closed segments, the last of which ends with markers."""
    log = opened(disk, COMPACTED)
    keep(log, b"key", 8, epoch=1)
    log.append_marker(2, 1, 0)
    log.append_marker(3, 1, 0)
    put(log, [record(bytes(500), b"other")], epoch=3)
    assert log.segment_count == 4
    return log


@pytest.mark.parametrize("turns", range(14))
@pytest.mark.parametrize("what", ["truncate", "reset"])
def test_a_log_may_be_cut_while_it_is_compacted(what: str, turns: int) -> None:
    async def scenario() -> None:
        leader = opened(FaultyDisk(), COMPACTED)
        keep(leader, b"key", 4, epoch=5)
        await leader.advance_start(2)
        disk = FaultyDisk()
        log = marked_at_the_end(disk)
        await log.sync()
        task = await compacting(log, inline(disk), turns)
        if what == "truncate":
            log.truncate(2, 8, 0)
            expected = (2, 8)
        else:
            log.reset(leader.snapshot(), 0)
            expected = (5, 2)
        assert log.position == expected
        await task
        for _ in range(3):
            assert log.position == expected
            for survivor in (disk, disk.after_crash(random.Random(turns))):
                again = opened(survivor, COMPACTED, durable_end=expected[1])
                assert again.position == expected
                assert again.read(again.end_offset, 1, again.end_offset) == []
                assert offsets(again)[-1:] == ([7] if what == "truncate" else [])
            keep(log, b"key", 6, epoch=6)
            await log.sync()
            await log.compact(2, log.end_offset, inline(disk))
            expected = log.position
            last = log.end_offset - 1
            assert offsets(log)[-1] == offsets(opened(disk, COMPACTED))[-1] == last
            break

    asyncio.run(scenario())


def test_segments_that_were_cut_while_they_were_read_are_not_called_damaged() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = marked_at_the_end(disk)
        await log.sync()

        async def run(plan: CompactionPlan) -> Cleaned:
            log.truncate(1, 8, 0)
            return clean(disk, plan)

        assert await log.compact(1, 8, run) is None
        assert log.position == (1, 8)

        async def damaged(plan: CompactionPlan) -> Cleaned:
            disk.flip(f"{DIRECTORY}/{0:020d}.log", 100)
            return clean(disk, plan)

        with pytest.raises(CorruptLog):
            await log.compact(1, 8, damaged)

    asyncio.run(scenario())


def test_what_a_compaction_found_says_nothing_about_a_log_that_was_reset_meanwhile() -> None:
    async def scenario() -> None:
        leader = opened(FaultyDisk(), COMPACTED)
        keep(leader, b"key", 4, epoch=5)
        await leader.advance_start(2)
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        for number in range(8):
            keep(log, b"%d" % number, 1)
        await log.sync()

        async def run(plan: CompactionPlan) -> Cleaned:
            cleaned = clean(disk, plan)
            assert not cleaned.changed
            log.reset(leader.snapshot(), 0)
            return cleaned

        assert await log.compact(1, 8, run) is None
        assert log._state.state.cleaned == ()

    asyncio.run(scenario())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_after_any_crash_positions_epochs_and_voters_are_those_of_a_prefix(seed: int) -> None:
    chance = random.Random(seed)
    history: list[tuple[tuple[int, int], list[tuple[int, int]], list[tuple[int, bytes]]]] = []
    durable = (-1, 0)

    async def life(disk: FaultyDisk) -> None:
        nonlocal durable
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        loop.set_exception_handler(lambda loop, context: task.cancel() if task else None)
        log = opened(disk, COMPACTED, durable_end=chance.choice([0, durable[1]]))
        assert log.position >= durable
        known = [it for it in history if it[0] <= log.position]
        assert known[-1:] == [(log.position, starts(log), log.voters)] or log.position == (-1, 0)
        history[:] = known
        for _ in range(12):
            for _ in range(chance.randrange(12)):
                end, epoch, voters = log.end_offset, log.last_epoch, log.voters
                kind = chance.choice(["marker"] * 3 + ["control"] + ["batch"] * 7)
                if epoch < 0 or kind == "marker" or chance.random() < 0.05:
                    epoch += 1  # for a batch: without a marker, as before there were any
                begun = [(epoch, end)] if epoch > log.last_epoch else []
                said = [(end, chance.randbytes(5))] if kind == "control" else []
                position = (epoch, end + (kind != "marker"))
                history.append((position, starts(log) + begun, (voters + said)[-KEPT_VOTERS:]))
                if kind == "marker":
                    log.append_marker(epoch, 1, 0)
                elif kind == "control":
                    log.append_control(VOTERS_KEY, said[0][1], epoch, 1, 0)
                else:
                    value = chance.randbytes(80) if chance.random() < 0.7 else None
                    put(log, [record(value, b"%d" % chance.randrange(3))], epoch=epoch)
                assert history[-1] == (log.position, starts(log), log.voters)
            await log.sync()
            durable = log.durable_position
            assert durable == log.position
            before = (log.position, list(starts(log)), log.voters)
            compaction = asyncio.create_task(log.compact(1, durable[1], inline(disk)))
            if chance.random() < 0.3:
                for _ in range(chance.randrange(14)):
                    await asyncio.sleep(0)
                compaction.cancel()
            await asyncio.wait([compaction])
            if not compaction.cancelled():
                compaction.result()
            assert (log.position, starts(log), log.voters) == before
            if chance.random() < 0.3:
                forget_snapshots(disk)
            follower = opened(FaultyDisk(), COMPACTED)
            fetched(log, follower)
            assert (follower.position, starts(follower), follower.voters) == before

    disk = FaultyDisk()
    for _ in range(4):
        disk.crash_at = disk.steps + chance.randrange(1, 300)
        try:
            asyncio.run(life(disk))
        except (Crashed, OSError, asyncio.CancelledError):
            assert disk.crashed
        disk = disk.after_crash(chance)
    asyncio.run(life(disk))
