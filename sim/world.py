"""Everything that one seed makes: the loop, the network, the machines and the trace."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from sim.clock import WallClock
from sim.disk import DiskWeather, SimDisk
from sim.loop import PROCESS, Process
from sim.network import Network, NetworkedLoop
from sim.trace import LoopTrace

T = TypeVar("T")


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = NetworkedLoop()  # type: ignore[abstract]
        self.trace = LoopTrace(self.loop)
        self.network = Network(self.loop, self.random("network"), self.trace)
        self.loop.network = self.network
        self.machines: dict[str, Machine] = {}

    def random(self, concern: str) -> random.Random:
        """A source of its own for each concern: another fault must not change all the others."""
        return random.Random(f"{self.seed}/{concern}")

    def entropy(self, count: int) -> bytes:
        """Random bytes of the machine whose process asks."""
        return self.machines[PROCESS.get().host].entropy(count)

    def machine(self, name: str) -> Machine:
        machine = self.machines[name] = Machine(self, name)
        return machine

    def run(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        task = self.loop.create_task(work)
        self.loop.run_until(task.done, within_s=within_s)
        result: T = task.result()
        return result

    def close(self) -> None:
        for machine in self.machines.values():
            machine.disk.crashed = True
        self.loop.close()


class Machine:
    """A host on the network with a wall clock, a disk, and at most one process of interest."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = WallClock(world.loop)
        self.entropy = world.random(f"entropy/{name}").randbytes
        self.weather = DiskWeather(world.random(f"disk/{name}"))
        self.disk = SimDisk(world.loop, self.weather)
        self.process: Process | None = None
        self.has_power = True
        world.network.add_host(name)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.alive

    def begin(self) -> Process:
        """Start a process, which then has the disk to itself."""
        if self.runs:
            raise RuntimeError(f"a process runs on {self.name} already")
        if not self.has_power:
            self.has_power = True
            self.world.network.power_on(self.name)
        process = self.process = Process(self.world.loop, self.name, self.name)
        process.at_end.append(lambda: self._ended(process))
        return process

    def _ended(self, process: Process) -> None:
        self.world.network.process_died(process)
        self.disk = self.disk.after_exit() if self.has_power else self.disk.after_power_cut()

    def crash(self) -> None:
        """The process is gone; the kernel lives and has what it wrote."""
        if self.process is not None and self.process.alive:
            self.world.trace.note(f"{self.name} crashes")
            self.process.kill()

    def power_cut(self) -> None:
        if not self.has_power:
            return
        self.world.trace.note(f"{self.name} loses its power")
        self.has_power = False
        self.world.network.power_off(self.name)
        if self.process is not None and self.process.alive:
            self.process.kill()
        else:
            self.disk = self.disk.after_power_cut()

    def order_crash(self, steps: int, *, power: bool) -> None:
        """At the so manieth change of the disk from now, whatever is going on then."""
        self.disk.crash_at = self.disk.steps + steps
        self.disk.on_crash = self.power_cut if power else self.crash

    def wipe(self) -> None:
        """Somebody deletes the data directory of a node that is down."""
        if self.runs:
            raise RuntimeError(f"{self.name} runs")
        self.world.trace.note(f"the disk of {self.name} is wiped")
        self.disk = self.disk.wiped()
