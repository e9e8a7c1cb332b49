"""What a log finds when it is opened: nothing is trusted, nothing is deleted, little is read."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.disk import OsDisk
from sapwood.log import CorruptLog, Log, LogConfig, segment, snapshot
from sapwood.log.entry import HEADER_SIZE, HEADERS_SIZE, encode_markers
from sapwood.wire.batch import BatchHeader, read_header
from sapwood.wire.records import encode_batch
from tests.disk.faulty import SECTOR, FaultyDisk
from tests.log.batches import DIRECTORY, fill, first_at, offsets, opened, put, read_all, record

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)


async def filled(disk: FaultyDisk, batches: int = 40) -> Log:
    log = opened(disk, SMALL)
    fill(log, batches)
    await log.sync()
    return log


def made(batches: int = 40) -> FaultyDisk:
    disk = FaultyDisk()
    asyncio.run(filled(disk, batches))
    return disk


def path(base_offset: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"


def logs(disk: FaultyDisk) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".log")]


def entry_positions(disk: FaultyDisk, file: str) -> list[int]:
    data = disk.contents()[file]
    positions, position = [], 0
    while position + HEADER_SIZE < len(data) and any(data[position : position + HEADER_SIZE]):
        positions.append(position)
        position += HEADER_SIZE + read_header(data, position + HEADER_SIZE).size
    return positions


def tear(disk: FaultyDisk, file: str, position: int) -> None:
    """Of the entry there the second sector is missing, or what follows its header."""
    start = max((position // SECTOR + 1) * SECTOR, position + HEADER_SIZE)
    end = position + HEADER_SIZE + read_header(disk.contents()[file], position + HEADER_SIZE).size
    start = start if start < end else position + HEADER_SIZE
    content = disk.live[file]
    for data in (content.live, content.durable):
        data[start : min(end, start + SECTOR)] = bytes(min(end, start + SECTOR) - start)


def test_an_unclean_stop_loses_nothing_that_is_in_the_files() -> None:
    disk = made()
    for noted in (0, 17, 40):
        again = opened(disk, SMALL, durable_end=noted)
        assert (offsets(again), again.durable_end) == (list(range(40)), noted)


def test_what_recovery_finds_beyond_the_durable_end_is_durable_after_a_sync() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        await filled(disk)
        again = opened(disk, SMALL, durable_end=5)
        disk.syncs.clear()
        assert await again.sync() == 40
        assert {it for it in disk.syncs if it.endswith(".log")} == set(logs(disk))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "where", ["crc", "length", "hlc", "offset", "epoch", "attributes", "value"]
)
@pytest.mark.parametrize("base", [0, 20])
def test_damage_below_the_durable_end_is_found_before_it_is_served(where: str, base: int) -> None:
    disk = made()
    position = entry_positions(disk, path(base))[4]
    position += {
        "crc": 0,
        "length": 7,
        "hlc": 15,
        "offset": HEADER_SIZE + 7,
        "epoch": HEADER_SIZE + 15,
        "attributes": HEADER_SIZE + 22,
        "value": HEADER_SIZE + 100,
    }[where]
    disk.flip(path(base), position)
    before = disk.contents()
    with pytest.raises(CorruptLog) as found:  # noqa: PT012 - when it opens or when it is read
        log = opened(disk, SMALL, durable_end=40)
        assert bytes(log.read(0, 100, 40)[0])
        read_all(log)
    assert found.value.path == path(base)
    assert abs(found.value.position - position) < 250
    assert disk.contents() == before


def test_what_is_not_damaged_can_still_be_read() -> None:
    disk = made()
    disk.flip(path(0), entry_positions(disk, path(0))[4] + 100)
    log = opened(disk, SMALL, durable_end=40)
    assert len(log.read(0, 300, 40)) == 1
    assert len(log.read(10, 1 << 20, 40)) > 1
    for _ in range(2):
        with pytest.raises(CorruptLog):
            log.read(4, 1000, 40)


def test_a_torn_tail_above_the_durable_end_is_cut_off() -> None:
    disk = made()
    last = logs(disk)[-1]
    tear(disk, last, entry_positions(disk, last)[-2])
    log = opened(disk, SMALL, durable_end=35)
    assert offsets(log) == list(range(38))
    assert disk.live[last].durable == disk.live[last].live
    fill(log, 2)
    assert offsets(log) == list(range(40))


@pytest.mark.parametrize("byte", [0, 5, 40, HEADERS_SIZE, 600, 1200])
def test_what_was_written_as_a_whole_and_changed_later_is_not_taken_for_torn(byte: int) -> None:
    """It may have been acknowledged: to cut it off would be to forget it."""

    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk)
        for value in (b"a", b"b"):
            put(log, [record(value * 1200, at=0)])
        await log.sync()
        position = entry_positions(disk, path(0))[1]
        disk.flip(path(0), position + byte)
        before = bytes(disk.live[path(0)].live)
        with pytest.raises(CorruptLog):
            opened(disk, durable_end=0)
        assert disk.live[path(0)].live == before
        disk.flip(path(0), position + byte)
        tear(disk, path(0), position)
        assert opened(disk, durable_end=0).end_offset == 1

    asyncio.run(scenario())


def test_a_torn_segment_takes_all_later_ones_with_it() -> None:
    disk = made()
    files = logs(disk)
    tear(disk, files[1], entry_positions(disk, files[1])[3])
    survivors = int(files[1][-24:-4]) + 3
    log = opened(disk, SMALL, durable_end=survivors - 1)
    assert offsets(log) == list(range(survivors))
    assert logs(disk) == files[:2]
    assert offsets(opened(disk, SMALL, durable_end=survivors)) == list(range(survivors))


def test_a_second_write_that_outlived_the_first_does_not_come_back_behind_a_new_one() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        fill(log, 4)
        positions = entry_positions(disk, path(0))
        content = disk.live[path(0)]
        for data in (content.live, content.durable):
            data[positions[2] : positions[3]] = bytes(positions[3] - positions[2])
        again = opened(disk, SMALL, durable_end=0)
        assert again.end_offset == 2
        put(again, [record(b"2" + bytes(100), at=2)], hlc=99 << 16)
        await again.sync()
        assert offsets(opened(disk, SMALL, durable_end=0)) == [0, 1, 2]

    asyncio.run(scenario())


def test_an_entry_of_an_older_epoch_is_not_taken_for_the_next_one() -> None:
    disk, other = FaultyDisk(), FaultyDisk()
    for where, epochs in ((disk, (3, 5)), (other, (3, 4, 4))):
        log = opened(where, SMALL)
        for epoch in epochs:
            put(log, [record(b"value")], epoch=epoch)
    # As if a write of both batches of epoch 4 had failed half way, and this one had come instead.
    third = entry_positions(other, path(0))[2]
    content = other.contents()[path(0)][third:]
    disk.open(path(0)).pwrite([content], third)
    assert opened(disk, SMALL, durable_end=2).position == (5, 2)


def test_a_log_that_ends_before_its_durable_end_is_damaged() -> None:
    disk = made()
    with pytest.raises(CorruptLog, match="ends at offset 40"):
        opened(disk, SMALL, durable_end=41)
    with pytest.raises(CorruptLog, match="no segment"):
        opened(FaultyDisk(), SMALL, durable_end=1)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_missing_segment_is_noticed(number: int) -> None:
    disk = made()
    disk.remove(logs(disk)[number])
    before = disk.contents()
    with pytest.raises(CorruptLog):
        opened(disk, SMALL, durable_end=40)
    assert {it for it in before if it.endswith(".log")} == set(logs(disk))


def test_after_a_clean_stop_even_the_last_entry_must_be_good() -> None:
    disk = made()
    opened(disk, SMALL, durable_end=40).close()
    last = logs(disk)[-1]
    disk.flip(last, entry_positions(disk, last)[-1] + 100)
    with pytest.raises(CorruptLog):
        opened(disk, SMALL, durable_end=0, clean=True)


@pytest.mark.parametrize("suffix", [".index", ".producers"])
@pytest.mark.parametrize("kind", ["missing", "empty", "flipped", "garbled", "cut"])
def test_damaged_indexes_and_snapshots_are_made_anew(suffix: str, kind: str) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        last: BatchHeader | None = None
        for number in range(40):
            last = put(
                log,
                [record(bytes(100), at=number)],
                producer=(3, 1, number),
                epoch=number // 10,
                hlc=number + 1,
            )
        await log.sync()
        log.close()
        for file in [it for it in disk.contents() if it.endswith(suffix)]:
            content = disk.live[file].live
            if kind == "missing":
                disk.remove(file)
            elif kind == "empty":
                content.clear()
            elif kind == "flipped":
                disk.flip(file, len(content) // 2)
            elif kind == "garbled":
                content[:] = random.Random(0).randbytes(len(content))
            else:
                del content[len(content) - 3 :]
        for _ in range(2):
            again = opened(disk, SMALL, durable_end=40)
            assert offsets(again) == list(range(40))
            assert [again.read(offset, 1, 40) for offset in (0, 21, 39)]
            assert first_at(again, 23, 40) == (23, 23)
            assert again.offset_for_hlc(24) == 23
            assert last is not None
            assert again.producers.check(last, 0) == last.base_offset
            assert (again.last_epoch, again.end_offset_for_epoch(1)) == (3, (1, 20))
            again.close()

    asyncio.run(scenario())


def test_an_index_damaged_while_the_log_is_open_is_made_anew() -> None:
    disk = made(100)
    log = opened(disk, SMALL, durable_end=100)
    for file in [it for it in disk.contents() if it.endswith(".index")]:
        disk.flip(file, 60)
    assert offsets(log) == list(range(100))
    assert first_at(log, 50, 100) == (50, 50)


def test_a_stale_index_is_recognised_by_the_entry_it_points_to() -> None:
    disk = made(8)
    opened(disk, SMALL, durable_end=8).close()
    stale = bytes(disk.live[path(0, ".index")].live)
    other = FaultyDisk()
    log = opened(other, SMALL)
    fill(log, 10, size=33)
    other.open(path(0, ".index"), create=True).pwrite([stale], 0)
    assert offsets(opened(other, SMALL, durable_end=8)) == list(range(10))


def test_the_state_file_must_be_whole() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk)
        await log.advance_start(20)
        state = next(it for it in disk.contents() if it.endswith(".state"))
        disk.flip(state, 20)
        before = disk.contents()
        with pytest.raises(CorruptLog, match="state file"):
            opened(disk, SMALL, durable_end=40)
        assert disk.contents() == before

    asyncio.run(scenario())


def test_opening_a_large_log_reads_only_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_INTERVAL_BYTES", 8 << 20)

    async def scenario() -> None:
        disk = FaultyDisk()
        config = LogConfig(segment_bytes=64 << 20)
        log = opened(disk, config)
        batch = encode_batch([(0, None, bytes(16_000), ())])
        header = read_header(batch)
        while log.size_bytes < 300 << 20:
            batch[:8] = log.end_offset.to_bytes(8, "big")
            log.append(
                memoryview(batch),
                header._replace(base_offset=log.end_offset),
                log.end_offset,
                0,
            )
            if log.end_offset % 100 == 0:
                await log.sync()
        await log.sync()
        noted = log.end_offset - 50
        disk.bytes_read = disk.reads = 0
        again = opened(disk, config, durable_end=noted)
        assert again.end_offset == log.end_offset
        # 50 batches, the headers since the last snapshot, indexes and the room ahead.
        assert disk.bytes_read < 60 << 20
        assert disk.reads < 1500

    asyncio.run(scenario())


def test_a_kill_in_the_middle_leaves_a_log_that_opens_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = LogConfig(segment_bytes=100_000)
        log = Log.open(OsDisk(), str(tmp_path), config, durable_end=0, clean=False, now_ms=0)
        fill(log, 2000)
        await log.sync()
        again = Log.open(OsDisk(), str(tmp_path), config, durable_end=1900, clean=False, now_ms=0)
        assert offsets(again) == list(range(2000))
        again.close()
        clean = Log.open(OsDisk(), str(tmp_path), config, durable_end=2000, clean=True, now_ms=0)
        assert offsets(clean) == list(range(2000))

    asyncio.run(scenario())


def test_files_from_before_there_were_markers_open_as_they_did() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        for number in range(30):
            put(log, [record(bytes(100))], epoch=number // 10 + 1, producer=(5, 0, number))
        await log.sync()
        table = log.producers.encode()
        log.discard()
        for base in (0, 8):
            disk.remove(path(base))
        body = struct.pack(">iqiqiq", 1, 0, 2, 10, 3, 20) + table
        fields = struct.pack(">qqI", 1, 30, 3) + body
        header = struct.pack(">4sHHI", b"SAPP", 1, 0, crc32c(fields))
        disk.open(path(30, ".producers"), create=True).pwrite([header, fields], 0)
        state = (
            b'{"start_offset":17,"durable_end":0,"timeline":1,"cut_offset":30,"cleaned":[],'
            b'"swap":null}'
        )
        header = struct.pack(">4sHHI", b"SAPS", 1, 0, crc32c(state))
        name = f"{DIRECTORY}/{1:010d}.state"
        disk.open(name, create=True).pwrite([header, state], 0)
        for durable_end in (30, 17):
            old = opened(disk, SMALL, durable_end=durable_end)
            assert (old.start_offset, old.position, old.voters) == (17, (3, 30), [])
            assert old.durable_position == ((3, 30) if durable_end == 30 else (2, 17))
            assert [old.end_of_epoch(epoch) for epoch in (1, 2)] == [(-1, -1), (2, 20)]
            assert (len(old.producers), offsets(old)) == (1, list(range(17, 30)))
        old.append_marker(4, 1, 0)
        assert opened(disk, SMALL, durable_end=30).position == (4, 30)

    asyncio.run(scenario())


def test_a_truncation_that_cut_deeper_than_it_was_asked_to_is_no_damage() -> None:
    disk = FaultyDisk()
    log = opened(disk, SMALL)
    put(log, [record()] * 5)
    log.append_entries(encode_markers([1], 9, 0)[0], 0)
    log.truncate(0, 9, 0)
    assert log.position == (0, 5)
    assert opened(disk, SMALL, durable_end=9).position == (0, 5)
    log.truncate(0, 3, 0)
    assert log.position == (-1, 0)
    assert opened(disk, SMALL, durable_end=3).position == (-1, 0)
    with pytest.raises(CorruptLog):
        opened(disk, SMALL, durable_end=4)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_flipped_bit_is_ever_served(data: st.DataObject) -> None:
    disk = made(30)
    expected = read_all(opened(disk, SMALL, durable_end=30))
    file = data.draw(st.sampled_from(sorted(disk.contents())))
    position = data.draw(st.integers(0, len(disk.contents()[file]) - 1))
    disk.flip(file, position, data.draw(st.integers(0, 7)))
    durable_end = data.draw(st.integers(0, 30))
    before = disk.contents()
    try:
        found = read_all(opened(disk, SMALL, durable_end=durable_end))
    except CorruptLog:
        after = disk.contents()
        assert {it: after[it] for it in before if it.endswith(".log")} == {
            it: content for it, content in before.items() if it.endswith(".log")
        }
        return
    assert found == expected[: len(found)]
    assert len(found) >= durable_end


def test_preallocated_room_is_given_back_when_a_crash_kept_it() -> None:
    async def scenario() -> None:
        patch = pytest.MonkeyPatch()
        patch.setattr(segment, "_FIRST_ALLOCATION", 1900)
        disk = FaultyDisk()
        log = opened(disk, SMALL)
        fill(log, 8)
        await log.sync()
        fill(log, 4)
        assert log.segment_count == 2
        patch.undo()
        # The segment was rolled, but neither its new size nor its index reached the disk.
        content = disk.live[path(0)].live
        size = len(content)
        content.extend(bytes(500))
        disk.remove(path(0, ".index"))
        await log.sync()
        again = opened(disk, SMALL, durable_end=12)
        assert offsets(again) == list(range(12))
        assert len(disk.contents()[path(0)]) == size

    asyncio.run(scenario())
