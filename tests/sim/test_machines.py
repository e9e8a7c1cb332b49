"""Disks and clocks of simulated machines."""

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any

import pytest

from sapwood.disk import SyncFailed
from sim.clock import EPOCH_MS
from sim.disk import Crashed, SimDisk
from sim.world import Machine, World

PATH = "/d/file"


def machine_with(content: bytes, *, synced: bool) -> Machine:
    machine = World(3).machine("m")
    machine.disk.makedirs("/d")
    file = machine.disk.open(PATH, create=True)
    file.pwrite([content], 0)
    if synced:
        file.sync()
    return machine


def run(machine: Machine, work: Coroutine[Any, Any, Any]) -> Any:
    task = machine.begin().spawn(work)
    machine.world.loop.run_until(task.done, within_s=1000)
    return task.result()


def content(disk: SimDisk) -> bytes:
    return disk.contents().get(PATH, b"")


def test_a_crash_keeps_what_was_written_and_a_power_cut_what_was_synced() -> None:
    unsynced = bytes([7]) * 100_000
    machine = machine_with(unsynced, synced=False)
    boot = machine.disk.boot_id()
    machine.begin()
    old = machine.disk
    machine.crash()
    assert content(machine.disk) == unsynced
    assert machine.disk.boot_id() == boot
    with pytest.raises(Crashed):
        old.open(PATH)
    machine.begin()
    machine.power_cut()
    assert content(machine.disk) != unsynced
    assert machine.disk.boot_id() != boot
    machine = machine_with(unsynced, synced=True)
    machine.power_cut()
    assert content(machine.disk) == unsynced


def test_a_sync_takes_virtual_time_and_serves_all_who_asked_before_it_began() -> None:
    machine = machine_with(b"a", synced=True)
    machine.weather.sync_s = 1.0

    async def sync() -> None:
        file = machine.disk.open(PATH)
        file.pwrite([b"b"], 0)
        first, second = machine.disk.sync(file), machine.disk.sync(file)
        assert first is second
        began = asyncio.get_running_loop().time()
        await first
        assert asyncio.get_running_loop().time() - began > 0.5
        assert bytes(file.inode.durable) == b"b"
        assert machine.disk.sync(file) is not first

    run(machine, sync())


def test_what_is_written_while_a_sync_runs_waits_for_the_next_one() -> None:
    machine = machine_with(b"a", synced=True)
    machine.weather.sync_s = 1.0

    async def sync() -> None:
        file = machine.disk.open(PATH)
        file.pwrite([b"b"], 0)
        first = machine.disk.sync(file)
        await asyncio.sleep(0.5)  # it runs by now
        file.pwrite([b"c"], 0)
        second = machine.disk.sync(file)
        await first
        assert bytes(file.inode.durable) == b"b"
        await second
        assert bytes(file.inode.durable) == b"c"

    run(machine, sync())


def test_a_failed_sync_may_leave_pages_that_later_syncs_take_for_clean() -> None:
    for forgets in (False, True):
        machine = machine_with(b"a", synced=True)
        machine.weather.forgets_failures = forgets
        file = machine.disk.open(PATH)
        file.pwrite([b"b"], 0)
        machine.weather.failure_chance = 1.0
        with pytest.raises(SyncFailed):
            file.sync()
        with pytest.raises(SyncFailed):
            file.sync()
        machine.weather.failure_chance = 0.0
        machine.begin()
        machine.crash()
        machine.disk.open(PATH).sync()
        assert content(machine.disk) == b"b"
        machine.power_cut()
        assert content(machine.disk) == (b"a" if forgets else b"b")


def test_a_full_disk_refuses_and_a_wiped_one_is_empty() -> None:
    machine = machine_with(b"abc", synced=True)
    machine.weather.capacity = 5
    with pytest.raises(OSError, match="No space") as refused:
        machine.disk.open(PATH).pwrite([b"defg"], 3)
    assert refused.value.errno == errno.ENOSPC
    machine.wipe()
    assert machine.disk.contents() == {}


def test_a_blocking_sync_keeps_its_process_from_running_anything_else() -> None:
    machine = machine_with(b"a", synced=False)
    machine.weather.sync_s = 10.0

    async def block() -> float:
        began = asyncio.get_running_loop().time()
        machine.disk.open(PATH).sync()
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time() - began

    assert run(machine, block()) > 5


def test_work_that_is_offloaded_resolves_on_the_loop_with_its_error_if_it_has_one() -> None:
    machine = machine_with(b"a", synced=True)

    async def offload() -> None:
        assert await machine.disk.offload(lambda: 6 * 7) == 42
        with pytest.raises(FileNotFoundError):
            await machine.disk.offload(lambda: machine.disk.open("/d/none"))

    run(machine, offload())


@pytest.mark.parametrize("power", [False, True])
def test_a_process_can_be_ordered_to_die_at_a_change_of_its_disk(power: bool) -> None:
    machine = machine_with(b"a", synced=True)
    written: list[int] = []

    async def write() -> None:
        file = machine.disk.open(PATH)
        for position in range(100):
            file.pwrite([b"x"], position)
            written.append(position)
            await asyncio.sleep(1)

    machine.order_crash(10, power=power)
    machine.begin().spawn(write())
    loop = machine.world.loop
    loop.call_later(200, lambda: None)
    loop.run_until(lambda: loop.elapsed() > 199)
    assert len(written) == 9
    assert not machine.runs
    assert machine.has_power is not power


def test_a_bit_flips_in_what_is_stored() -> None:
    machine = machine_with(b"abc", synced=True)
    assert machine.disk.flip_somewhere("*.none") is None
    where = machine.disk.flip_somewhere("/d/*")
    assert where is not None
    flipped = content(machine.disk)
    assert sum((a ^ b).bit_count() for a, b in zip(flipped, b"abc", strict=True)) == 1


def test_a_wall_clock_jumps_and_drifts_while_the_loop_goes_on_evenly() -> None:
    world = World(1)
    clock = world.machine("m").clock

    def after(seconds: float) -> int:
        world.run(asyncio.sleep(seconds), within_s=1000)
        return clock.now_ms() - EPOCH_MS

    assert after(10) == pytest.approx(10_000, abs=2)
    clock.jump(-288)
    assert after(10) == pytest.approx(20_000 - 288_000, abs=2)
    clock.set_drift(0.5)
    assert after(10) == pytest.approx(35_000 - 288_000, abs=2)
    clock.set_drift(0)
    assert after(10) == pytest.approx(45_000 - 288_000, abs=2)
    clock.set_right()
    assert after(10) == pytest.approx(50_000, abs=2)
