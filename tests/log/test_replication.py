"""From one log to another: raw entries out of the leader's, checked into the follower's."""

from __future__ import annotations

import asyncio

import pytest

from sapwood.log import BadEntry, CorruptLog, Log, LogConfig, OffsetOutOfRange
from sapwood.log.entry import HEADERS_SIZE, encode_markers
from tests.disk.faulty import FaultyDisk
from tests.log.batches import DIRECTORY, fetched, opened, put, read_all, record, starts

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def led(disk: FaultyDisk, config: LogConfig = SMALL) -> Log:
    log = opened(disk, config)
    for epoch in range(1, 40):
        log.append_marker(epoch, epoch, 0)
        for number in range(epoch % 4):
            at = log.end_offset
            put(
                log,
                [record(b"%d" % at + bytes(60), at=at)] * (1 + number),
                epoch=epoch,
                hlc=epoch,
                producer=(epoch % 3, epoch, sum(range(1, number + 1))),
            )
    return log


@pytest.mark.parametrize("max_bytes", [0, 100, 500, 1 << 20])
def test_a_follower_becomes_the_same(max_bytes: int) -> None:
    async def scenario() -> None:
        leader = led(FaultyDisk())
        follower = opened(FaultyDisk(), LogConfig(segment_bytes=1700))
        fetches = fetched(leader, follower, max_bytes)
        assert follower.position == leader.position
        assert starts(follower) == starts(leader)
        assert read_all(follower) == read_all(leader)
        assert follower.last_hlc == leader.last_hlc
        assert follower.producers.encode() == leader.producers.encode()
        assert follower.segment_count > 3
        assert fetches <= leader.segment_count * 2 or max_bytes < 1 << 20

    asyncio.run(scenario())


def test_from_every_position_on_nothing_is_missing_and_nothing_comes_twice() -> None:
    async def scenario() -> None:
        leader = led(FaultyDisk())
        known = dict(starts(leader))
        for epoch, offset in [leader.end_of_epoch(epoch) for epoch in known]:
            partial = opened(FaultyDisk())
            fetched(leader, partial)
            partial.truncate(epoch, offset, 0)
            assert partial.position == (epoch, offset)
            fetched(leader, partial, 1 << 20)
            assert (partial.position, starts(partial)) == (leader.position, starts(leader))
            assert read_all(partial) == read_all(leader)

    asyncio.run(scenario())


def test_a_read_keeps_to_its_bytes_but_returns_one_entry_however_large() -> None:
    log = opened(FaultyDisk())
    log.append_marker(1, 1, 0)
    put(log, [record(bytes(5000))], epoch=1)
    put(log, [record(bytes(10))], epoch=1)
    log.append_marker(2, 1, 0)
    assert sizes(log.read_replica(-1, 0, 0, at_least_one=False)) == []
    assert sizes(log.read_replica(-1, 0, 80, at_least_one=False)) == []
    assert sizes(log.read_replica(-1, 0, 0)) == [HEADERS_SIZE]
    assert sizes(log.read_replica(-1, 0, 1000)) == [HEADERS_SIZE]
    assert sizes(log.read_replica(1, 0, 1000)) == [5000 + HEADERS_SIZE + 9]
    assert sizes(log.read_replica(1, 0, 1000, at_least_one=False)) == []
    assert sizes(log.read_replica(1, 1, 1000)) == [10 + 2 * HEADERS_SIZE + 7]
    assert sizes(log.read_replica(1, 1, 170)) == [10 + HEADERS_SIZE + 7]
    assert sizes(log.read_replica(1, 2, 1000)) == [HEADERS_SIZE]
    assert sizes(log.read_replica(2, 2, 1000)) == []
    for offset in (-1, 3):
        with pytest.raises(OffsetOutOfRange):
            log.read_replica(2, offset, 1000)


def sizes(pieces: list[memoryview]) -> list[int]:
    return [len(piece) for piece in pieces]


def test_more_markers_than_fit_come_one_after_the_other() -> None:
    leader, follower = opened(FaultyDisk()), opened(FaultyDisk())
    for epoch in range(10):
        leader.append_marker(epoch, 1, 0)
    put(leader, [record()], epoch=9)
    assert fetched(leader, follower, 3 * HEADERS_SIZE) == 4
    assert (starts(follower), follower.end_offset) == (starts(leader), 1)


def test_markers_of_deleted_segments_still_reach_a_follower_that_stands_there() -> None:
    async def scenario() -> None:
        leader, follower = opened(FaultyDisk(), SMALL), opened(FaultyDisk())
        for _ in range(4):
            put(leader, [record(bytes(100))], epoch=1)
        fetched(leader, follower)
        leader.append_marker(2, 1, 0)
        leader.append_marker(3, 1, 0)
        put(leader, [record(bytes(500))], epoch=3)
        await leader.advance_start(4)
        assert leader.segment_count == 1
        fetched(leader, follower)
        assert starts(follower) == starts(leader) == [(1, 0), (2, 4), (3, 4)]
        assert follower.position == (3, 5)

    asyncio.run(scenario())


def test_bytes_from_before_this_process_are_checked_before_they_are_sent() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        log.append_marker(1, 1, 0)
        for number in range(5):
            put(log, [record(bytes(100))], epoch=1, hlc=number)
        await log.sync()
        (whole,) = log.read_replica(1, 0, 1 << 20)
        for flipped in range(0, len(whole), 7):
            disk.flip(f"{DIRECTORY}/{0:020d}.log", HEADERS_SIZE + flipped)
            log._segments.active.verified.cut(0)
            found = b""
            with pytest.raises(CorruptLog):
                log.read_replica(1, 0, 1 << 20)
            with pytest.raises(CorruptLog):  # noqa: PT012 - somewhere on the way
                for offset in range(5):
                    found += log.read_replica(1, offset, 0)[0]
            assert len(found) == flipped // (len(whole) // 5) * (len(whole) // 5)
            assert bytes(whole).startswith(found)
            disk.flip(f"{DIRECTORY}/{0:020d}.log", HEADERS_SIZE + flipped)

    asyncio.run(scenario())


def test_wrong_entries_are_named_and_those_before_them_stay() -> None:
    leader = opened(FaultyDisk())
    leader.append_marker(1, 1, 0)
    ends = []
    for _ in range(4):
        put(leader, [record(bytes(30))], epoch=1)
        ends.append(len(leader.read_replica(-1, 0, 1 << 20)[1]) + HEADERS_SIZE)
    data = b"".join(leader.read_replica(-1, 0, 1 << 20))
    for position in range(0, len(data), 3):
        follower = opened(FaultyDisk())
        wrong = bytearray(data)
        wrong[position] ^= 4
        with pytest.raises(BadEntry) as refused:
            follower.append_entries(wrong, 0)
        whole = sum(end <= position for end in ends)
        assert follower.position == (-1 if position < HEADERS_SIZE else 1, whole)
        assert refused.value.position <= position
        follower.append_entries(data[refused.value.position :], 0)
        assert follower.position == leader.position
    for length in range(1, len(data)):
        follower = opened(FaultyDisk())
        if length not in (HEADERS_SIZE, *ends):
            with pytest.raises(BadEntry, match="cut short"):
                follower.append_entries(data[:length], 0)
        assert follower.end_offset == sum(end <= length for end in ends) or length in ends


def test_entries_out_of_order_are_refused() -> None:
    log = opened(FaultyDisk())
    put(log, [record()], epoch=3)
    put(log, [record()], epoch=4)
    other = opened(FaultyDisk())
    put(other, [record()] * 2, epoch=3)
    put(other, [record()], epoch=3)
    with pytest.raises(BadEntry, match="offset 0 follows 1"):
        log.append_entries(other.read_replica(3, 0, 100)[0], 0)
    with pytest.raises(BadEntry, match="epoch 3 follows 4"):
        log.append_entries(other.read_replica(3, 2, 100)[0], 0)
    with pytest.raises(BadEntry, match="offset 2 follows 4"):
        log.append_entries(bytes(encode_markers([5], 5, 0)[0]) + encode_markers([6], 2, 0)[0], 0)
    assert log.position == (5, 5)


def test_a_marker_that_is_held_is_skipped() -> None:
    log = opened(FaultyDisk())
    put(log, [record()], epoch=3)
    log.append_marker(4, 0, 0)
    log.append_marker(5, 0, 0)
    size = log.size_bytes
    log.append_entries(encode_markers([4, 5], 1, 0)[0], 0)
    log.append_entries(encode_markers([5, 6], 1, 0)[0], 0)
    assert (log.position, log.size_bytes) == ((6, 1), size + HEADERS_SIZE)
    with pytest.raises(BadEntry, match="follows"):
        log.append_entries(encode_markers([4], 7, 0)[0], 0)


def test_a_gap_that_compaction_left_is_taken_over() -> None:
    log = opened(FaultyDisk(), SMALL)
    log.append_entries(encode_markers([1], 0, 0)[0], 0)
    log.append_entries(encode_markers([2], 5 << 32, 0)[0], 0)
    assert log.position == (2, 5 << 32)
    follower = opened(FaultyDisk(), SMALL)
    fetched(log, follower)
    assert starts(follower) == [(1, 0), (2, 5 << 32)]


def test_many_entries_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = opened(FaultyDisk())
    for _ in range(50):
        put(leader, [record()], epoch=1)
    disk = FaultyDisk()
    follower = opened(disk, LogConfig(preallocate=False))
    steps = disk.steps
    follower.append_entries(b"".join(leader.read_replica(-1, 0, 1 << 20)), 0)
    assert disk.steps == steps + 1
    assert follower.position == leader.position


@pytest.mark.parametrize("preallocate", [True, False])
def test_a_full_disk_keeps_whole_runs_and_goes_on_when_there_is_room(preallocate: bool) -> None:
    async def scenario() -> None:
        leader = led(FaultyDisk())
        disk = FaultyDisk()
        follower = opened(disk, LogConfig(segment_bytes=1500, preallocate=preallocate))
        disk.capacity = 4000
        with pytest.raises(OSError, match="No space"):
            fetched(leader, follower)
        reached = follower.position
        await follower.sync()
        disk.capacity = None
        again = opened(disk, follower.config, durable_end=follower.durable_end)
        assert again.position == reached
        for log in (follower, again):
            fetched(leader, log)
            assert (log.position, read_all(log)) == (leader.position, read_all(leader))

    asyncio.run(scenario())
