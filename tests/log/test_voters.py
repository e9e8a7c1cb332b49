"""Who votes, as the log's own control records say: kept, whatever becomes of the records."""

from __future__ import annotations

import asyncio
import random

import pytest

from sapwood.log import VOTERS_KEY, Log, LogConfig, snapshot
from sapwood.log.ledger import KEPT_VOTERS
from sapwood.wire.batch import read_header
from sapwood.wire.records import decode_batch
from tests.disk.faulty import FaultyDisk
from tests.log.batches import DIRECTORY, fetched, first_at, newest, offsets, opened, put, record

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def say(log: Log, value: bytes) -> int:
    return log.append_control(VOTERS_KEY, value, max(log.last_epoch, 0), log.end_offset, 0)


def fill(log: Log, batches: int) -> None:
    for _ in range(batches):
        put(log, [record(bytes(100), b"key")])


async def spoken(disk: FaultyDisk) -> Log:
    log = opened(disk, SMALL)
    log.append_marker(1, 1, 0)
    for number in range(4):
        say(log, b"%d" % number)
        fill(log, 6)
    await log.sync()
    return log


SAID = [(0, b"0"), (7, b"1"), (14, b"2"), (21, b"3")]


def without_snapshots(disk: FaultyDisk) -> None:
    for name in disk.list(DIRECTORY):
        if name.endswith(".producers"):
            disk.remove(f"{DIRECTORY}/{name}")


def test_a_control_record_takes_an_offset_and_is_a_batch_that_clients_know() -> None:
    log = opened(FaultyDisk())
    fill(log, 2)
    assert say(log, b"us") == 2
    assert log.end_offset == 3
    (batch,) = log.read(2, 1000, 3)
    header = read_header(batch)
    assert (header.is_control, header.record_count, header.leader_epoch) == (True, 1, 0)
    assert decode_batch(batch)[0][2:4] == (b"\0\0\0\6", b"us")
    assert log.voters == [(2, b"us")]
    # Without a time of its own it is nothing that a search by time could find.
    assert first_at(log, 0, 3) == (0, 0)
    assert newest(log, 3) == (0, 0)


def test_other_control_records_say_nothing_about_voters() -> None:
    log = opened(FaultyDisk())
    for key in (b"\0\0\0\0", b"\0\0\0\1", b"", b"\0\0\0\6\0"):
        log.append_control(key, b"x", 0, 1, 0)
    assert log.voters == []


@pytest.mark.parametrize("interval", [1, 5, 1000])
def test_voters_survive_restarts(interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_INTERVAL_BATCHES", interval)

    async def scenario() -> None:
        disk = FaultyDisk()
        log = await spoken(disk)
        assert log.voters == SAID
        assert opened(disk, SMALL, durable_end=28).voters == SAID
        log.close()
        assert opened(disk, SMALL, durable_end=28, clean=True).voters == SAID
        without_snapshots(disk)
        assert opened(disk, SMALL, durable_end=28, clean=True).voters == SAID

    asyncio.run(scenario())


def test_the_last_few_are_kept() -> None:
    log = opened(FaultyDisk())
    for number in range(20):
        say(log, b"%d" % number)
    assert log.voters == [(n, b"%d" % n) for n in range(20 - KEPT_VOTERS, 20)]


@pytest.mark.parametrize("interval", [1, 1000])
def test_truncation_takes_back_what_was_said(
    interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_INTERVAL_BATCHES", interval)

    async def scenario() -> None:
        disk = FaultyDisk()
        log = await spoken(disk)
        for offset in (27, 22, 21, 14, 8, 0):
            log.truncate(1, offset, 0)
            expected = [it for it in SAID if it[0] < offset]
            assert log.voters == expected
            assert opened(disk, SMALL, durable_end=offset).voters == expected

    asyncio.run(scenario())


def test_voters_survive_the_deletion_of_what_said_so() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await spoken(disk)
        for start, known in ((10, SAID), (23, SAID), (28, SAID)):
            await log.advance_start(start)
            for _ in range(20):
                await asyncio.sleep(0)
            assert log.voters == known
            for survivor in (disk, disk.after_crash(random.Random(start))):
                assert opened(survivor, SMALL, durable_end=28).voters == known
                without_snapshots(survivor)
                assert opened(survivor, SMALL, durable_end=28).voters == known

    asyncio.run(scenario())


def test_a_follower_knows_the_same_voters() -> None:
    async def scenario() -> None:
        leader, follower = await spoken(FaultyDisk()), opened(FaultyDisk(), SMALL)
        fetched(leader, follower)
        assert follower.voters == SAID
        assert offsets(follower) == offsets(leader)

    asyncio.run(scenario())


def test_a_snapshot_of_a_start_from_before_all_that_is_known_gives_the_oldest() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk(), SMALL)
        fill(log, 3)
        for number in range(3 + KEPT_VOTERS):
            say(log, b"%d" % number)
        await log.advance_start(2)
        follower = opened(FaultyDisk(), SMALL)
        follower.reset(log.snapshot(), 0)
        assert follower.voters == [(1, b"3")]
        fetched(log, follower)
        assert follower.voters == log.voters

    asyncio.run(scenario())
