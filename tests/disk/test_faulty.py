"""The disk that judges must be judged itself."""

import asyncio
import errno
import random

import pytest

from sapwood.disk import SyncFailed
from tests.disk.faulty import SECTOR, Crashed, FaultyDisk


def made(path: str = "/d/file") -> FaultyDisk:
    disk = FaultyDisk()
    disk.makedirs("/d")
    disk.open(path, create=True)
    return disk


def test_a_crash_loses_only_sectors_that_were_not_synced() -> None:
    seen = set()
    for seed in range(50):
        disk = made()
        file = disk.open("/d/file")
        file.pwrite([b"a" * SECTOR], 0)
        file.sync()
        file.pwrite([b"b" * SECTOR, b"c" * SECTOR], SECTOR)
        found = disk.after_crash(random.Random(seed)).contents()["/d/file"]
        assert found[:SECTOR] == b"a" * SECTOR
        seen.add((b"b" in found, b"c" in found))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_a_new_name_survives_a_crash_once_its_file_or_directory_is_synced() -> None:
    lost = sum("/d/file" not in made().after_crash(random.Random(n)).contents() for n in range(20))
    assert lost > 0
    disk = made()
    disk.open("/d/file").sync()
    disk.rename("/d/file", "/d/other")
    disk.sync_dir("/d")
    for seed in range(20):
        assert list(disk.after_crash(random.Random(seed)).contents()) == ["/d/other"]


def test_a_removal_does_not_come_after_a_file_that_took_the_name_later() -> None:
    for seed in range(20):
        disk = made()
        disk.remove("/d/file")
        disk.open("/d/file", create=True).sync()
        assert "/d/file" in disk.after_crash(random.Random(seed)).contents()


def test_a_crash_can_be_ordered_for_any_step_and_nothing_works_after_it() -> None:
    disk = made()
    disk.crash_at = disk.steps + 2
    file = disk.open("/d/file")
    file.pwrite([b"x"], 0)
    with pytest.raises(Crashed):
        file.pwrite([b"y"], 1)
    with pytest.raises(Crashed):
        file.pread(1, 0)


def test_a_full_disk_refuses_to_grow_files() -> None:
    disk = made()
    disk.capacity = 10
    file = disk.open("/d/file")
    file.pwrite([b"12345"], 0)
    with pytest.raises(OSError, match="No space") as refused:
        file.allocate(5, 6)
    assert refused.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        file.pwrite([b"6789012"], 5)
    assert file.size == 10


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    async def scenario() -> None:
        disk = made()
        disk.holds_syncs = True
        file = disk.open("/d/file")
        file.pwrite([b"a"], 0)
        synced = disk.sync(file)
        file.pwrite([b"b"], 1)
        disk.release_syncs()
        await synced
        assert bytes(file.inode.durable) == b"a"
        disk.fails_sync = lambda path: path == "/d/file"
        failing = disk.sync(file)
        disk.release_syncs()
        with pytest.raises(SyncFailed):
            await failing

    asyncio.run(scenario())


def test_a_power_cut_is_another_boot() -> None:
    disk = made()
    assert disk.after_crash(random.Random(0)).boot_id() != disk.boot_id()
