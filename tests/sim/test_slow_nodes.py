"""Nodes that are too slow for what they have to do: load must never cause more load."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sapwood.replica import Partition
from sim import seams
from sim.loop import PROCESS, Process
from sim.plan import Plan
from sim.planting import patched
from sim.scenario import Scenario
from sim.workload import Shape
from sim.world import World

PARTITIONS = 120
PER_NEWS_S = 0.004
"""Of a node's time, for each thing that one of its groups is told. With these partitions that is
what thousands cost on a machine that has other work to do."""
CONVERGED_S = 60.0


@contextlib.contextmanager
def slow_groups(world: World) -> Iterator[None]:
    busy_until: dict[Process, float] = {}
    tell = Partition.tell

    def told(self: Partition, news: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        process, now = PROCESS.get(), world.loop.time()
        busy_until[process] = max(busy_until.get(process, now), now) + PER_NEWS_S
        process.stall(busy_until[process] - now)
        return tell(self, news, *args, **kwargs)

    with patched(Partition, "tell", told):
        yield


class SlowCreation(Scenario):
    def _shape(self) -> Shape:
        keys = [("many", index) for index in range(PARTITIONS)]
        return replace(super()._shape(), keys=keys, producers=1, consumers=1)

    async def run(self) -> None:
        await self._start_nodes()
        with slow_groups(self.world):
            await self.workload.create_topics(self._configs)
            await self._within("all lead and follow", self._all_take_part, CONVERGED_S)

    def replicas(self) -> list[Partition]:
        return [it for node in self.nodes for it in node.partitions() if it.topic == "many"]

    def _all_take_part(self) -> bool:
        replicas = self.replicas()
        return len(replicas) == 3 * PARTITIONS and all(it.has_leader for it in replicas)


def test_thousands_of_new_groups_elect_their_leaders_once_however_slow_the_nodes_are() -> None:
    world = World(7)
    with seams.installed(world):
        scenario = SlowCreation(world, Plan(minutes=1, nodes=3))
        try:
            world.run(scenario.run(), within_s=2 * CONVERGED_S)
            terms = [it.group.term for it in scenario.replicas()]
        finally:
            world.close()
    assert terms.count(1) > 0.9 * len(terms)
