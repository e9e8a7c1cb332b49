"""What goes wrong: a seed has some kinds of faults, at some rate, on top of each other.

Not all kinds at once: what one kind provokes another one may hide.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sapwood.broker.store import MetadataStore
from sapwood.metadata.registry import change_node
from sapwood.wire.errors import KafkaError
from sim.clock import LARGEST_JUMP_S
from sim.edges import SimEdge
from sim.loop import Process
from sim.network import Weather, ring, split
from sim.node import SimNode
from sim.plan import check_faults
from sim.world import World

Fault = Callable[[SimNode], Coroutine[Any, Any, None]]

DESTRUCTIVE = ("failing sync", "forgotten pages", "flipped bit", "wipe")
"""These take a copy away for good, if only because it can't be trusted any more: they are for one
node of a cluster, always the same one, so that a quorum of copies stays whole."""
UNBEARABLE = ("forgotten pages", "flipped bit", "wipe")
"""For a node on its own."""


DRAIN = "drain"
NODES_TO_MOVE_AMONG = 4
"""With three replicas each, fewer nodes leave a replica nowhere to go."""
UNDRAINED_S = 30.0
LOST_CLOCKS = "power cut that clocks don't survive"
MOVES = 0.5
RARE = 0.2
"""The share of seeds that have it, drawn for itself: else every seed would be another one."""


class Nemesis:
    """Makes faults for a while, and then makes good."""

    def __init__(
        self,
        world: World,
        nodes: list[SimNode],
        clients: list[str],
        gap_s: float,
        *,
        only: Sequence[str] = (),
        also: Sequence[str] = (),
        edges: Sequence[SimEdge] = (),
    ) -> None:
        self.counts: dict[str, int] = {}
        self._world = world
        self._nodes = nodes
        self._clients = clients
        self._gap_s = gap_s
        self._chance = world.random("faults")
        self._victim = self._chance.choice(nodes)
        self._all: dict[str, Fault] = {
            "crash": self._crash,
            "crash at a disk step": self._crash_at_step,
            "power cut": self._power_cut,
            "power cut at a disk step": self._power_cut_at_step,
            "power cut of all": self._power_cut_of_all,
            "restart": self._restart,
            "pause": self._pause,
            "paused client": self._pause_client,
            "resets": self._resets,
            "cut links": self._cut_links,
            "split": self._split,
            "bad weather": self._bad_weather,
            "slow disk": self._slow_disk,
            "failing sync": self._failing_sync,
            "forgotten pages": self._forgotten_pages,
            "flipped bit": self._flipped_bit,
            "wipe": self._wipe,
            "full disk": self._full_disk,
            "clock": self._clock,
            LOST_CLOCKS: self._lost_clocks,
        }
        if len(nodes) >= NODES_TO_MOVE_AMONG:
            self._all[DRAIN] = self._drain
        self._edges = edges
        if edges:
            self._all["crash of edges"] = self._crash_edges
            self._all["restart of an edge"] = self._restart_edge
            self._all["power cut of an edge"] = self._power_cut_edge
        check_faults(only, self._all)
        self.kinds = list(only) or [*self._some_kinds(), *also]
        self._running: list[asyncio.Task[None]] = []
        for node in nodes:
            node.restart_after_s = lambda node=node: self._restart_delay(node)
        for edge in edges:
            edge.restart_after_s = self._some_delay

    def _some_kinds(self) -> list[str]:
        kinds = [kind for kind in self._all if len(self._nodes) > 2 or kind not in UNBEARABLE]
        for kind in (LOST_CLOCKS, DRAIN):
            if kind in kinds:
                kinds.remove(kind)
        some = self._chance.sample(kinds, self._chance.randint(2, len(kinds)))
        if DRAIN in self._all and self._world.random("drain").random() < MOVES:
            some.append(DRAIN)
        return [*some, LOST_CLOCKS] if self._world.random("clocks").random() < RARE else some

    def _restart_delay(self, node: SimNode) -> float:
        if node is self._victim and node.failure is not None and "damaged" in node.failure:
            # A log or a journal without which a node can't know what it has promised: its
            # operator empties the directory, and it joins anew.
            node.machine.wipe()
        return self._some_delay()

    def _some_delay(self) -> float:
        return self._chance.uniform(0.02, self._chance.choice([0.1, 1.0, 4.0]))

    def _duration(self, most_s: float) -> float:
        return self._chance.uniform(0.05, self._chance.choice([0.2, 0.2 * most_s, most_s]))

    def _next_gap_s(self) -> float:
        """Some come in quick succession: many a bug needs two that meet."""
        if self._chance.random() < 0.4:
            return self._chance.uniform(0.01, 0.3)
        return self._chance.expovariate(0.6 / self._gap_s)

    async def rage(self, duration_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + duration_s
        while (gap_s := self._next_gap_s()) < end - loop.time():
            await asyncio.sleep(gap_s)
            kind = self._chance.choice(self.kinds)
            node = self._chance.choice(self._nodes)
            if kind in DESTRUCTIVE:
                node = self._victim
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self._world.trace.note(f"fault: {kind} ({node.machine.name})")
            task = asyncio.create_task(self._all[kind](node))
            self._running = [it for it in self._running if not it.done()] + [task]
        await asyncio.sleep(max(0.0, end - loop.time()))

    async def calm(self) -> None:
        """No more faults; everything that can be mended is."""
        self._world.trace.note("faults end")
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._world.network.weather = Weather()
        self._world.network.heal()
        for machine in self._world.machines.values():
            weather = machine.weather
            weather.slow_chance = weather.failure_chance = 0.0
            weather.capacity = None
            machine.disk.crash_at = None
            machine.clock.set_right()
        offline = [node for node in self._nodes if node.offline()]
        if 2 * len(offline) >= len(self._nodes):
            # There may be nobody left to refill them from: their operators restart them.
            for node in offline:
                node.stop()
        end = asyncio.get_running_loop().time() + UNDRAINED_S
        while self._drained() and asyncio.get_running_loop().time() < end:
            for node in self._nodes:
                self._order(node, draining=False)
            await asyncio.sleep(1.0)

    # -- the operator --------------------------------------------------------------------------

    async def _drain(self, node: SimNode) -> None:
        """Its replicas move elsewhere, and back: perhaps before the first have arrived."""
        self._order(node, draining=True)
        await asyncio.sleep(self._duration(20.0))
        held = sum(any(it.node == node.node_id for it in p.voters) for p in node.partitions())
        self._world.trace.note(f"{node.machine.name} votes on {held} partitions by now")
        self._order(node, draining=False)

    def _order(self, node: SimNode, *, draining: bool) -> None:
        """Of everybody: whoever is the controller does it, if there is one just now."""
        for each in self._nodes:
            broker, process = each.broker, each.machine.process
            if broker is not None and process is not None:
                process.spawn(self._obey(broker.state.store, node.node_id, draining))

    async def _obey(self, store: MetadataStore, node_id: int, draining: bool) -> None:
        with contextlib.suppress(KafkaError):
            async with store.changing() as image:
                await store.commit(change_node(image, node_id, draining=draining))
            self._world.trace.note(f"node {node_id} is {'' if draining else 'un'}drained")

    def _drained(self) -> bool:
        return any(
            known.draining
            for node in self._nodes
            if node.broker is not None
            for known in node.broker.state.image.nodes.values()
        )

    # -- the node ------------------------------------------------------------------------------

    async def _crash(self, node: SimNode) -> None:
        node.machine.crash()

    async def _power_cut(self, node: SimNode) -> None:
        node.machine.power_cut()

    async def _power_cut_of_all(self, node: SimNode) -> None:
        for each in self._nodes:
            each.machine.power_cut()

    async def _lost_clocks(self, node: SimNode) -> None:
        """All start again with clocks that are back, like hosts without a battery for theirs."""
        await self._power_cut_of_all(node)
        for each in self._nodes:
            each.machine.clock.jump(-self._chance.uniform(0, LARGEST_JUMP_S))

    async def _crash_at_step(self, node: SimNode) -> None:
        node.machine.order_crash(self._chance.randint(1, 60), power=False)

    async def _power_cut_at_step(self, node: SimNode) -> None:
        node.machine.order_crash(self._chance.randint(1, 60), power=True)

    async def _restart(self, node: SimNode) -> None:
        node.stop()

    async def _pause(self, node: SimNode) -> None:
        if node.machine.process is not None:
            await self._hold(node.machine.process, self._duration(20.0))

    async def _pause_client(self, node: SimNode) -> None:
        process = self._world.machines[self._chance.choice(self._clients)].process
        if process is not None:
            await self._hold(process, self._duration(20.0))

    async def _hold(self, process: Process, seconds: float) -> None:
        process.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            process.resume()

    async def _clock(self, node: SimNode) -> None:
        clock = node.machine.clock
        if self._chance.random() < 0.5:
            clock.jump(self._chance.uniform(-LARGEST_JUMP_S, LARGEST_JUMP_S))
        else:
            clock.set_drift(self._chance.uniform(-0.2, 0.2))

    # -- the tree ------------------------------------------------------------------------------

    async def _crash_edges(self, node: SimNode) -> None:
        """One, or several at once: then those below them have to look further."""
        for edge in self._chance.sample(self._edges, self._chance.randint(1, len(self._edges))):
            edge.machine.crash()

    async def _restart_edge(self, node: SimNode) -> None:
        self._chance.choice(self._edges).stop()

    async def _power_cut_edge(self, node: SimNode) -> None:
        self._chance.choice(self._edges).machine.power_cut()

    # -- the network ---------------------------------------------------------------------------

    async def _resets(self, node: SimNode) -> None:
        share = self._chance.choice([0.1, 0.5, 1.0])
        for end in self._world.network.connections():
            if self._chance.random() < share:
                self._world.network.reset(end)

    async def _cut_links(self, node: SimNode) -> None:
        network, name = self._world.network, node.machine.name
        others = [it.machine.name for it in self._nodes if it is not node] + self._clients
        for other in self._some_of(others):
            to_node, from_node = self._chance.choice([(1, 1), (1, 0), (0, 1)])
            if to_node:
                network.cut(other, name)
            if from_node:
                network.cut(name, other)
        await asyncio.sleep(self._duration(15.0))
        network.heal(self._chance.choice([0.0, 0.5, 1.0]))

    async def _split(self, node: SimNode) -> None:
        """Into groups that don't hear each other, or a ring in which only neighbours do."""
        network, nodes = self._world.network, [it.machine.name for it in self._nodes]
        self._chance.shuffle(nodes)
        if len(nodes) > 3 and self._chance.random() < 0.3:
            ring(network, nodes)
        else:
            groups: list[list[str]] = [[], []]
            for name in [*nodes, *self._clients]:
                self._chance.choice(groups).append(name)
            split(network, groups)
        await asyncio.sleep(self._duration(15.0))
        network.heal(self._chance.choice([0.0, 0.5, 1.0]))

    def _some_of(self, names: list[str]) -> list[str]:
        return self._chance.sample(names, self._chance.randint(1, len(names)))

    async def _bad_weather(self, node: SimNode) -> None:
        chance = self._chance
        self._world.network.weather = Weather(
            latency_s=chance.choice([0.0001, 0.001, 0.02, 0.1]),
            slow_chance=chance.choice([0.0, 0.0, 0.02]),
            slow_s=chance.choice([0.5, 5.0]),
            loss=chance.choice([0.0, 0.01, 0.1, 0.3]),
            cut_chance=chance.choice([0.0, 0.1, 0.7]),
            reset_chance=chance.choice([0.0, 0.0, 0.002, 0.02]),
        )
        await asyncio.sleep(self._duration(20.0))
        self._world.network.weather = Weather()

    # -- the disk ------------------------------------------------------------------------------

    async def _slow_disk(self, node: SimNode) -> None:
        weather = node.machine.weather
        weather.slow_chance = self._chance.choice([0.05, 0.5, 1.0])
        await asyncio.sleep(self._duration(20.0))
        weather.slow_chance = 0.0

    async def _failing_sync(self, node: SimNode) -> None:
        weather = node.machine.weather
        weather.failure_chance = self._chance.choice([0.05, 0.5])
        await asyncio.sleep(self._duration(2.0))
        weather.failure_chance = 0.0
        await asyncio.sleep(self._duration(5.0))
        # Its operator may not notice: then the others have to take over by themselves.
        is_noticed = len(self._nodes) == 1 or self._chance.random() < 0.5
        if node.offline() and is_noticed:
            await self._chance.choice([self._restart, self._crash, self._power_cut])(node)

    async def _forgotten_pages(self, node: SimNode) -> None:
        node.machine.weather.forgets_failures = True
        await self._failing_sync(node)

    async def _wipe(self, node: SimNode) -> None:
        """Somebody deletes its directory; it has to begin anew as another replica."""
        node.machine.power_cut()
        node.machine.wipe()

    async def _full_disk(self, node: SimNode) -> None:
        weather = node.machine.weather
        room = self._chance.choice([0, 1000, 100_000])
        weather.capacity = node.machine.disk.used_bytes() + room
        await asyncio.sleep(self._duration(10.0))
        weather.capacity = None

    async def _flipped_bit(self, node: SimNode) -> None:
        """While the power is off: what is in memory is not the disk's to damage."""
        node.machine.power_cut()
        kind = self._chance.choice(["/topic*.log", "/topic*.log", "/topic*", "*"])
        where = node.machine.disk.flip_somewhere("*" + kind)
        self._world.trace.note(f"a bit has flipped on {node.machine.name}: {where}")
