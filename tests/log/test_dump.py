"""A log shown to people, in whatever state it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sapwood.disk import OsDisk
from sapwood.log import Log, LogConfig
from sapwood.log.dump import DamageRow, EntryRow, dump
from sapwood.log.ledger import VOTERS_KEY
from sapwood.wire.records import Record
from tests.disk.faulty import FaultyDisk
from tests.log.batches import DIRECTORY, fill, opened, put
from tests.log.committed import end, write

SMALL = LogConfig(segment_bytes=1000)
FIRST = f"{DIRECTORY}/{0:020d}.log"


def made(batches: int = 12) -> FaultyDisk:
    disk = FaultyDisk()

    async def scenario() -> None:
        log = opened(disk, SMALL)
        fill(log, batches)
        await log.sync()

    asyncio.run(scenario())
    return disk


def test_every_entry_is_a_row_while_the_log_is_in_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = Log.open(OsDisk(), str(tmp_path), LogConfig(), durable_end=0, clean=False, now_ms=0)
        headers = (("h", b"x"), ("n", None))
        put(
            log,
            [(5, b"k", b"v", headers), (9, None, None, ())],
            hlc=(1234 << 16) + 1,
            epoch=3,
            producer=(7, 2, 40),
            compression=4,
        )
        fill(log, 1)
        rows = list(dump(str(tmp_path), records=True))
        assert len(rows) == 2
        row = rows[0]
        assert isinstance(row, EntryRow)
        assert (row.base_offset, row.last_offset, row.record_count) == (0, 1, 2)
        assert (row.append_time_ms, row.max_timestamp, row.leader_epoch) == (1234, 9, 3)
        assert (row.producer_id, row.producer_epoch, row.base_sequence) == (7, 2, 40)
        assert (row.codec, row.problem, row.position) == ("zstd", "", 0)
        assert row.records == (Record(0, 5, b"k", b"v", headers), Record(1, 9, None, None, ()))
        assert all(not it.records for it in dump(str(tmp_path)) if isinstance(it, EntryRow))
        assert rows == list(dump(f"{tmp_path}/{0:020d}.log", records=True))

    asyncio.run(scenario())


def test_the_end_of_a_transaction_is_said_in_words() -> None:
    disk = FaultyDisk()
    log = opened(disk)
    write(log, 7, b"a")
    end(log, 7, committed=True, coordinator_epoch=4)
    end(log, 8, committed=False)
    rows = [it for it in dump(DIRECTORY, disk=disk, records=True) if isinstance(it, EntryRow)]
    assert [(it.transactional, it.control) for it in rows] == [
        (True, ""),
        (True, "commit"),
        (True, "abort"),
    ]
    assert rows[1].records[0][2:4] == (b"commit", b"coordinator epoch 4")


def test_markers_and_voters_can_be_told_from_records() -> None:
    disk = FaultyDisk()
    log = opened(disk)
    log.append_marker(3, 7 << 16, 0)
    log.append_control(VOTERS_KEY, b"1, 2, 3", 3, 8 << 16, 0)
    log.append_marker(4, 9 << 16, 0)
    marker, control, last = dump(DIRECTORY, disk=disk, records=True)
    assert isinstance(marker, EntryRow)
    assert isinstance(control, EntryRow)
    assert isinstance(last, EntryRow)
    assert (marker.codec, marker.leader_epoch, marker.base_offset) == ("marker", 3, 0)
    assert (marker.record_count, marker.records, marker.problem) == (0, (), "")
    assert (marker.append_time_ms, control.control) == (7, "voters")
    assert control.records == (Record(0, -1, b"voters", b"1, 2, 3", ()),)
    assert (last.leader_epoch, last.base_offset) == (4, 1)
    disk.flip(FIRST, 60)
    damage, *rest = dump(DIRECTORY, disk=disk, records=True)
    assert (damage.position, damage.size, rest) == (0, marker.size, [control, last])
    for position in range(marker.size, marker.size + 20):
        disk.flip(FIRST, position)
    assert list(dump(DIRECTORY, disk=disk, records=True))[1:] == [last]


def test_all_segments_of_a_directory_come_in_order() -> None:
    rows = list(dump(DIRECTORY, disk=made()))
    assert [it.base_offset for it in rows if isinstance(it, EntryRow)] == list(range(12))
    assert len({it.path for it in rows}) == 3


def test_a_damaged_batch_is_shown_with_what_is_wrong() -> None:
    disk = made()
    disk.flip(FIRST, 150)
    rows = list(dump(DIRECTORY, disk=disk, records=True))
    assert [bool(it.problem) for it in rows] == [True] + [False] * 11


def test_damage_between_entries_is_shown_and_the_next_entry_is_found() -> None:
    disk = made()
    rows = list(dump(DIRECTORY, disk=disk))
    second, third = rows[1], rows[2]
    for position in range(second.position, second.position + 8):
        disk.flip(FIRST, position)
    found = list(dump(DIRECTORY, disk=disk))
    assert isinstance(found[1], DamageRow)
    assert (found[1].position, found[1].size) == (second.position, second.size)
    assert found[2] == third
    assert len(found) == 12


def test_a_torn_end_is_shown_and_room_ahead_is_not() -> None:
    disk = made(2)
    assert len(list(dump(DIRECTORY, disk=disk))) == 2
    content = disk.live[FIRST].live
    position = list(dump(DIRECTORY, disk=disk))[1].position
    del content[position + 90 :]
    torn = list(dump(DIRECTORY, disk=disk))[1]
    assert isinstance(torn, DamageRow)
    assert (torn.position, torn.size) == (position, 90)
    assert "cut short" in torn.problem


def test_rubbish_is_one_row_of_damage() -> None:
    disk = FaultyDisk()
    disk.makedirs(DIRECTORY)
    disk.open(FIRST, create=True).pwrite([b"\x01\x00\x00\x00rubbish" * 1000], 0)
    (row,) = dump(FIRST, disk=disk)
    assert isinstance(row, DamageRow)
    assert row.size == 11_000


def test_what_is_no_log_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="no log"):
        list(dump("/nowhere", disk=FaultyDisk()))
