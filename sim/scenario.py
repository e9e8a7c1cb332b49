"""One seed of tier 2: real nodes and real clients through faults, then healing, then judgement."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from sapwood.client.cluster import TopicPartition
from sapwood.raft import Timing
from sapwood.wire.errors import KafkaError
from sim import invariants, seams
from sim.edges import SimEdge
from sim.faults import Nemesis
from sim.groups import CLASSIC, CONSUMER, EndsNeverGoBack, GroupWorkload
from sim.invariants import Judges, Violation
from sim.merging import ClosedTimesHold, MergingWorkload, OneSequence
from sim.node import SimNode
from sim.plan import Outcome, Plan, trace_path
from sim.planted import PLANTS
from sim.planting import planted
from sim.seats import SESSION_MS
from sim.transactions import TransactionalWorkload
from sim.workload import Shape, Workload
from sim.world import World

T = TypeVar("T")

LIVENESS_S = 60.0
"""After the last fault: everything acknowledged or refused, read to the end, and writable."""
TREES = 0.5
"""Of the seeds that have nothing else that is special."""
MERGES = 0.5
"""Of those, and of the trees."""
CARRIED = 0.5
"""Of those, how many have clients that carry the cluster's clock."""
ELECTIONS_S = 10 * Timing().silence_s
"""Ten election timeouts: so long every partition may be without a leader once all nodes run."""


class Scenario:
    """Nodes and clients through faults, then in peace, then before the judges."""

    node_counts: tuple[int, ...] = (1, 3, 3, 3, 3, 5)
    always: tuple[str, ...] = ()
    """Faults that every seed has."""
    may_lose = False

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self._plan = plan
        chance = self._chance = world.random("scenario")
        segment_bytes = chance.choice([2_000, 16_000, 200_000])
        self._configs = {"segment.bytes": str(segment_bytes)}
        self.nodes = [
            SimNode(world, n, founds=n == 0, is_told=plan.hints)
            for n in range(plan.nodes or chance.choice(self.node_counts))
        ]
        self.judges = Judges(world.loop, self._invariants())
        self.edges = self._planted_edges()
        bootstrap = ",".join(it.address for it in self.edges or self.nodes)
        self.workload = self._workload(bootstrap)
        self.nemesis: Nemesis | None = None

    def _planted_edges(self) -> list[SimEdge]:
        """Those that clients use in place of the nodes, if there are any."""
        return []

    def _invariants(self) -> Iterable[invariants.Invariant]:
        yield invariants.OnlyWhatWasSent()
        yield invariants.OneValuePerOffset()
        yield invariants.NothingAcknowledgedIsLost()
        yield invariants.NoDuplicates()
        yield invariants.OrderIsKept()
        yield invariants.HighWatermarkNeverGoesBack(self.nodes)
        yield invariants.OneLeaderPerTerm(self.nodes)
        yield invariants.ReplicasAgree(self.nodes)

    def _workload(self, bootstrap: str) -> Workload:
        return Workload(self.world, self.judges, bootstrap, self._shape())

    def _shape(self) -> Shape:
        chance = self._chance
        burst = chance.choice([1, 3, 10])
        topics = [f"topic{n}" for n in range(chance.randint(1, 2))]
        return Shape(
            keys=[(topic, n) for topic in topics for n in range(chance.randint(1, 3))],
            producers=chance.randint(1, 3),
            consumers=chance.randint(1, 2),
            pause_s=burst / chance.choice([2, 10, 30]),
            burst=burst,
            value_bytes=chance.choice([0, 100, 3000]),
            options={
                "batch_bytes": chance.choice([200, 2_000, 256 * 1024]),
                "linger_ms": chance.choice([0, 0, 5]),
                "request_timeout_ms": chance.choice([1_000, 5_000, 30_000]),
                "connect_timeout_ms": 3_000,
                "delivery_timeout_ms": chance.choice([3_000, 120_000]),
                "allow_auto_create": False,
            },
            may_lose=self.may_lose,
        )

    async def run(self) -> None:
        await self._start_nodes()
        await self.workload.create_topics(self._configs)
        self.workload.start()
        gap_s = self._chance.choice([0.5, 2.0, 5.0])
        names = [actor.name for actor in self.workload.actors]
        self.nemesis = Nemesis(
            self.world,
            self.nodes,
            [*names, *(edge.machine.name for edge in self.edges)],
            gap_s,
            only=self._plan.faults,
            also=self.always,
            edges=self.edges,
        )
        self.world.trace.note(f"faults: {', '.join(self.nemesis.kinds)}; {self.workload.shape}")
        await self.nemesis.rage(self._plan.minutes * 60)
        await self.nemesis.calm()
        await self._judge()

    async def _start_nodes(self) -> None:
        """One founds the cluster, the others join it."""
        for node in self.nodes:
            node.others = [it.address for it in self.nodes if it is not node]
        self.nodes[0].start()
        await self._within("the first node serves", lambda: self.nodes[0].serves)
        for node in self.nodes[1:]:
            node.start()
        await self._within("all nodes serve", self._all_serve)
        await self._within("the metadata has all its voters", self._is_grown)

    def _is_grown(self) -> bool:
        """Before that one lost node may be one too many."""
        wanted = min(3, len(self.nodes))
        return all(
            len(replica.voters) >= wanted for node in self.nodes for replica in node.partitions()
        )

    async def _judge(self) -> None:
        await self._within("every node runs again", self._all_run)
        await self._within("every partition has a leader", self._all_are_led, ELECTIONS_S)
        await self._within("every node serves again", self._all_serve)
        self.workload.stop_producing()
        await self._within("everything sent is settled", lambda: self.workload.is_settled)
        ends = await self._settled("every partition takes a record", self.workload.probe())
        await self._within("consumers have read all", lambda: self.workload.caught_up(ends))
        await self._judge_more(ends)
        await self._within("replicas have converged", self._converged)
        contents = await self._settled("all can be read", self.workload.contents(ends))
        self.judges.at_end(contents)
        count = sum(len(batch.records) for batch in contents)
        self.world.trace.note(f"{count} records, {self.workload.acknowledged} acknowledged")

    async def _judge_more(self, ends: dict[TopicPartition, int]) -> None:
        """What only some scenarios have to show."""

    def _all_run(self) -> bool:
        return all(node.serves for node in self.nodes)

    def _all_are_led(self) -> bool:
        """By a replica that can do it: one that is offline leads nobody, whoever believes in it."""
        replicas = [it for node in self.nodes for it in node.partitions()]
        led = {it.key for it in replicas if it.leads and it.is_confirmed}
        return all(it.key in led for it in replicas)

    def _all_serve(self) -> bool:
        return all(node.serves and not node.offline() for node in self.nodes)

    def _converged(self) -> bool:
        extents: dict[tuple[bytes, int], tuple[int, int]] = {}
        for node in self.nodes:
            for replica in node.partitions():
                extent = replica.high_watermark, replica.log.end_offset
                is_whole = extent[0] == extent[1] and replica.has_leader
                if not is_whole or extents.setdefault(replica.key, extent) != extent:
                    return False
        return True

    async def _within(
        self, what: str, condition: Callable[[], bool], limit_s: float = LIVENESS_S
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not condition():
            if loop.time() > deadline:
                states = [f"{it.machine.name}: {it.failure or it.offline()}" for it in self.nodes]
                raise Violation("Liveness", f"not so after {limit_s:g} s: {what}; {states}")
            await asyncio.sleep(0.05)
        self.world.trace.note(what)

    async def _settled(self, what: str, work: Awaitable[T]) -> T:
        try:
            result = await asyncio.wait_for(work, LIVENESS_S)
        except (KafkaError, TimeoutError) as error:
            told = str(error) or f"not within {LIVENESS_S:g} s"
            raise Violation("Liveness", f"not so: {what}: {told}") from error
        self.world.trace.note(what)
        return result


class Transacting(Scenario):
    """Applications write in transactions, and are fenced by their own next instances."""

    def _workload(self, bootstrap: str) -> Workload:
        applications = self._chance.randint(1, 2)
        self._transactional = TransactionalWorkload(
            self.world, self.judges, bootstrap, self._shape(), applications
        )
        return self._transactional

    async def _judge_more(self, ends: dict[TopicPartition, int]) -> None:
        judged = self._transactional.judge_committed(ends)
        await self._settled("no transaction is open", judged)


class Grouped(Scenario):
    """Groups of either protocol process what is written, while their members come and go."""

    def _invariants(self) -> Iterable[invariants.Invariant]:
        yield from super()._invariants()
        self._ends = EndsNeverGoBack(self.world.loop)
        yield self._ends

    def _workload(self, bootstrap: str) -> Workload:
        groups = self._chance.choice([[CLASSIC], [CONSUMER], [CLASSIC, CONSUMER]])
        self._grouped = GroupWorkload(
            self.world, self.judges, bootstrap, self._shape(), groups, self._ends
        )
        return self._grouped

    async def _judge_more(self, ends: dict[TopicPartition, int]) -> None:
        workload = self._grouped
        await self._within("groups have processed all", lambda: workload.have_come_to(ends))
        workload.dismiss()
        await self._within("their members have left", lambda: workload.has_been_left)
        await asyncio.sleep(2 * SESSION_MS / 1000)  # those who died are forgotten


class Treed(Scenario):
    """Clients see nothing but edges, which hang from nodes or from each other."""

    def _planted_edges(self) -> list[SimEdge]:
        chance = self.world.random("edges")
        cores = [node.address for node in self.nodes]
        edges: list[SimEdge] = []
        for number in range(chance.randint(2, 4)):
            above = [None, *(edge.address for edge in edges)]
            edges.append(SimEdge(self.world, number, cores, chance.choice(above)))
        return edges

    def _invariants(self) -> Iterable[invariants.Invariant]:
        for it in super()._invariants():
            # Two edges may be at different ends of what they have heard.
            if isinstance(it, invariants.HighWatermarkNeverGoesBack):
                it.trusts_readers = False
            yield it

    async def _start_nodes(self) -> None:
        await super()._start_nodes()
        for edge in self.edges:
            edge.start()
        await self._within("every edge serves", self._all_hang)

    async def _judge(self) -> None:
        await self._within("every edge hangs from another one", self._all_hang)
        await super()._judge()
        self.world.trace.note(f"depths: {[edge.depth for edge in self.edges]}")

    def _all_hang(self) -> bool:
        return all(edge.is_attached and edge.depth > 0 for edge in self.edges)


class Merging(Scenario):
    """Some read all topics in the order of the cluster's clock."""

    def _shape(self) -> Shape:
        carries = self.world.random("clock").random() < CARRIED
        return replace(super()._shape(), carries_clock=carries)

    def _invariants(self) -> Iterable[invariants.Invariant]:
        yield from super()._invariants()
        self._closed, self._one = ClosedTimesHold(self.nodes), OneSequence()
        yield self._closed
        yield self._one

    def _workload(self, bootstrap: str) -> Workload:
        self._merging = MergingWorkload(
            self.world, self.judges, bootstrap, self._shape(), self._closed, self._one
        )
        return self._merging

    async def _judge_more(self, ends: dict[TopicPartition, int]) -> None:
        contents = await self._settled("all can be read", self.workload.contents(ends))
        count = sum(len(batch.records) for batch in contents)
        merged = self._merging
        await self._within("all is merged", lambda: merged.have_merged(count))


class MergingTreed(Merging, Treed):
    """The same, through edges."""


class Damaged(Scenario):
    """Bits flip on the only copy there is: records may be lost, but nothing wrong is served."""

    node_counts = (1,)
    always = ("flipped bit",)
    may_lose = True

    def _invariants(self) -> Iterable[invariants.Invariant]:
        yield invariants.OnlyWhatWasSent()

    async def _judge(self) -> None:
        await asyncio.sleep(LIVENESS_S / 4)


def kind_of(world: World, plan: Plan) -> type[Scenario]:
    kinds: list[type[Scenario]] = [Scenario, Scenario, Grouped, Transacting, Damaged]
    if plan.nodes is not None and plan.nodes > 1:
        kinds.remove(Damaged)
    kind = world.random("kind").choice(kinds)
    # Drawn for itself, so that there may be more kinds without every seed becoming another one.
    if kind is not Scenario:
        return kind
    is_treed = world.random("tree").random() < TREES
    if world.random("merge").random() < MERGES:
        return MergingTreed if is_treed else Merging
    return Treed if is_treed else Scenario


def run_seed(seed: int, plan: Plan) -> Outcome:
    began = time.perf_counter()
    world = World(seed)
    failure = details = ""
    with seams.installed(world), planted(PLANTS, plan.plant):
        scenario = kind_of(world, plan)(world, plan)
        try:
            world.run(scenario.run(), within_s=plan.minutes * 60 + 10 * LIVENESS_S)
        except Exception as error:
            failure = (
                str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            )
            details = "".join(traceback.format_exception(error))
        finally:
            world.close()
    if plan.traces is not None and (failure or plan.always_trace):
        world.trace.write(trace_path(plan.traces, seed), f"{failure}\n\n{details}")
    return Outcome(
        seed=seed,
        simulated_s=world.loop.elapsed(),
        wall_s=time.perf_counter() - began,
        events=world.loop.events,
        digest=world.trace.digest(),
        acknowledged=scenario.workload.acknowledged,
        faults=scenario.nemesis.counts if scenario.nemesis is not None else {},
        failure=failure,
    )
