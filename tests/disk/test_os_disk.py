"""Real files, real threads."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sapwood.disk import OsDisk, SyncFailed, os_disk, replace, unfinished
from sapwood.disk.os_disk import OsFile


class Gate:
    """Stands in for fdatasync: lets a test see syncs begin and decide when they end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.descriptors: list[int] = []
        self.error: OSError | None = None
        monkeypatch.setattr(os_disk, "_datasync", self)

    def __call__(self, descriptor: int) -> None:
        self.descriptors.append(descriptor)
        self.began.release()
        if not self.permits.acquire(timeout=30):
            raise TimeoutError
        if self.error is not None:
            raise self.error

    async def wait_for_a_sync(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.began.acquire)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def created(disk: OsDisk, path: Path) -> OsFile:
    file = disk.open(str(path), create=True)
    file.sync()
    return file


def test_writes_land_where_they_belong_and_reads_end_at_the_end_of_the_file(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "f"), create=True)
    file.pwrite([b"abc", memoryview(b"def"), bytearray(b"g")], 0)
    file.pwrite([b"Z"], 2)
    assert (file.pread(100, 0), file.pread(3, 1), file.size) == (b"abZdefg", b"bZd", 7)
    file.pwrite([b"."] * 3000, 7)
    assert file.size == 3007
    file.truncate(2)
    assert (file.pread(10, 0), file.size) == (b"ab", 2)


def test_allocated_room_reads_as_zeros_and_counts_as_size(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "f"), create=True)
    file.pwrite([b"abc"], 0)
    file.allocate(3, 5000)
    assert (file.size, file.pread(6, 0)) == (5003, b"abc\0\0\0")


def test_a_failed_allocation_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsDisk().open(str(tmp_path / "f"), create=True)
    file.pwrite([b"abc"], 0)

    def half(descriptor: int, offset: int, length: int) -> None:
        os.ftruncate(descriptor, offset + length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", half)
    with pytest.raises(OSError, match="No space"):
        file.allocate(3, 5000)
    assert (file.size, os.path.getsize(tmp_path / "f")) == (3, 3)


def test_a_short_write_goes_on_until_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsDisk().open(str(tmp_path / "f"), create=True)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: os.pwrite(fd, buffers[0][:2], at))
    file.pwrite([b"abc", b"def"], 0)
    assert file.pread(10, 0) == b"abcdef"


def test_names_come_sorted_and_removal_is_no_error_twice(tmp_path: Path) -> None:
    disk = OsDisk()
    directory = str(tmp_path / "a" / "b")
    assert disk.list(directory) == []
    disk.makedirs(directory)
    for name in ("2", "1"):
        disk.open(f"{directory}/{name}", create=True).close()
    assert disk.list(directory) == ["1", "2"]
    disk.rename(f"{directory}/1", f"{directory}/3")
    disk.remove(f"{directory}/2")
    disk.remove(f"{directory}/2")
    assert disk.list(directory) == ["3"]
    disk.remove(str(tmp_path / "a"))
    assert not disk.exists(directory)
    assert disk.free_bytes(str(tmp_path)) > 0


def test_opening_what_is_not_there_fails_unless_it_is_to_be_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsDisk().open(str(tmp_path / "f"))


def test_all_who_ask_before_a_sync_begins_share_it(tmp_path: Path, gate: Gate) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        file = disk.open(str(tmp_path / "f"), create=True)
        first = disk.sync(file)
        await gate.wait_for_a_sync()
        second, third = disk.sync(file), disk.sync(file)
        assert second is third
        assert second is not first
        gate.permits.release()
        await first
        assert not second.done()
        await gate.wait_for_a_sync()
        gate.permits.release()
        await second
        assert len(gate.descriptors) == 2

    asyncio.run(scenario())


def test_syncs_of_different_files_run_at_the_same_time(tmp_path: Path, gate: Gate) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        files = [disk.open(str(tmp_path / str(n)), create=True) for n in range(10)]
        synced = [disk.sync(file) for file in files]
        for _ in range(8):
            await gate.wait_for_a_sync()
        assert len(gate.descriptors) == 8
        for _ in files:
            gate.permits.release()
        await asyncio.gather(*synced)
        assert len(gate.descriptors) == 10

    asyncio.run(scenario())


def test_a_failed_sync_reaches_all_who_wait_and_is_never_retried(
    tmp_path: Path, gate: Gate
) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        file = disk.open(str(tmp_path / "f"), create=True)
        gate.error = OSError(errno.EIO, "Input/output error")
        first = disk.sync(file)
        await gate.wait_for_a_sync()
        during = disk.sync(file)
        gate.permits.release()
        for future in (first, during, disk.sync(file)):
            with pytest.raises(SyncFailed, match="Input/output error"):
                await future
        gate.error = None
        gate.permits.release()
        with pytest.raises(SyncFailed):
            await disk.sync(file)
        with pytest.raises(SyncFailed):
            file.sync()
        assert len(gate.descriptors) == 1

    asyncio.run(scenario())


def test_a_file_closed_during_its_sync_keeps_its_descriptor_until_the_sync_ends(
    tmp_path: Path, gate: Gate
) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        file = disk.open(str(tmp_path / "f"), create=True)
        descriptor = file.descriptor
        synced = disk.sync(file)
        await gate.wait_for_a_sync()
        file.close()
        file.close()
        other = disk.open(str(tmp_path / "g"), create=True)
        assert other.descriptor != descriptor
        gate.permits.release()
        await synced
        await disk.offload(lambda: None)
        again = disk.open(str(tmp_path / "h"), create=True)
        assert again.descriptor == descriptor

    asyncio.run(scenario())


def test_a_sync_makes_new_names_durable_up_to_the_first_old_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    synced: list[str] = []
    original: Callable[[str], None] = disk.sync_dir

    def sync_dir(directory: str) -> None:
        synced.append(os.path.relpath(directory, tmp_path))
        original(directory)

    monkeypatch.setattr(disk, "sync_dir", sync_dir)
    disk.makedirs(str(tmp_path / "a" / "b"))
    file = created(disk, tmp_path / "a" / "b" / "f")
    assert synced == ["a/b", "a", "."]
    file.sync()
    created(disk, tmp_path / "a" / "b" / "g")
    assert synced == ["a/b", "a", ".", "a/b"]


def test_work_off_the_loop_returns_its_result_or_its_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        assert await disk.offload(lambda: 42) == 42
        with pytest.raises(FileNotFoundError):
            await disk.offload(lambda: disk.open(str(tmp_path / "nothing")))

    asyncio.run(scenario())


def test_many_completions_wake_the_loop_once(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        loop = asyncio.get_running_loop()
        wakes = 0
        original = loop.call_soon_threadsafe

        def counting(*args: object) -> object:
            nonlocal wakes
            wakes += 1
            return original(*args)  # type: ignore[arg-type]

        files = [disk.open(str(tmp_path / str(n)), create=True) for n in range(8)]
        synced = [disk.sync(file) for file in files]
        for _ in files:
            await gate.wait_for_a_sync()
        monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
        for _ in files:
            gate.permits.release()
        # The loop is busy until all have reported.
        while len(disk._reports.get(loop, [])) < len(files):
            os.sched_yield()
        await asyncio.gather(*synced)
        assert wakes == 1

    asyncio.run(scenario())


def test_a_loop_that_is_gone_is_not_told(tmp_path: Path, gate: Gate) -> None:
    disk = OsDisk()
    file = disk.open(str(tmp_path / "f"), create=True)

    async def leave() -> None:
        disk.sync(file)
        await gate.wait_for_a_sync()

    asyncio.run(leave())
    gate.permits.release()

    async def come_back() -> None:
        gate.permits.release()
        await disk.sync(file)

    asyncio.run(come_back())


def test_replacing_a_file_leaves_no_trace_of_a_failed_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    path = str(tmp_path / "f")
    replace(disk, path, [b"one"])
    replace(disk, path, [b"two"])

    def full(self: OsFile, buffers: object, offset: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OsFile, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        replace(disk, path, [b"three"])
    assert disk.list(str(tmp_path)) == ["f"]
    assert Path(path).read_bytes() == b"two"
    assert unfinished("f.tmp")


def test_a_boot_has_a_name_where_the_system_gives_it_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path / "boot_id"
    monkeypatch.setattr(os_disk, "_BOOT_ID", str(name))
    assert OsDisk().boot_id() == ""
    name.write_text("0b1c\n")
    assert OsDisk().boot_id() == "0b1c"
