"""One seed of the tree: faults, then healing.

Each seed draws which kinds of faults it has at all. Some seeds have edges behind a wall, which
reach the core through one other edge only, in the end, too.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from random import Random

from sapwood.tree import supervisor
from sapwood.tree.words import TreeViolation
from sapwood.wire.errors import KafkaError
from sim.plan import Outcome, Plan, check_faults, trace_path
from sim.planting import planted
from sim.tree.forest import Core, EdgeNode, Forest, Node, Weather
from sim.tree.invariants import Broken
from sim.tree.planted import PLANTS

FAULTS_S = 20.0
SETTLED_S = 20.0
"""After the last fault: silence, patience and pauses may follow one another."""
CALM = Weather()


class Run:
    def __init__(
        self,
        seed: int,
        *,
        faults_s: float = FAULTS_S,
        edges: int | None = None,
        only: Sequence[str] = (),
        traced: bool = False,
    ) -> None:
        rng = Random(seed)
        drawn = rng.choice((2, 3, 5, 8, 15, 31))
        forest = Forest(seed, rng.choice((1, 3, 3)), edges or drawn, traced=traced)
        forest.places = rng.choice((1, 2, 2, supervisor.PLACES))
        self.forest = forest
        self.rng = forest.rng
        self.faults_s = faults_s
        self.pace_s = rng.choice((0.05, 0.2, 0.5))
        self.counts: dict[str, int] = {}
        self.mortality = rng.choice((0.0, 0.0, 0.2))
        """How many of the edges that are down when the faults end stay so."""
        self.all: dict[str, Callable[[], None]] = {
            "kill": self.kill,
            "kill of two": self.kill_two,
            "kill of a core node": self.kill_core,
            "pause": self.pause,
            "isolation": self.isolate,
            "cuts": self.cut_some,
            "core out of reach": self.cut_core,
            "one-way cuts": self.cut_one_way,
            "lost supervisor": self.lose_supervisor,
            "false report": self.report_falsely,
        }
        check_faults(only, self.all)
        share = rng.choice((0.3, 0.6, 1.0))
        kinds = [it for it in self.all if rng.random() < share]
        self.kinds = list(only) or kinds or ["kill"]
        forest.weather = Weather(
            loss=rng.choice((0.0, 0.0, 0.02, 0.1)),
            delay_s=rng.choice((0.002, 0.01, 0.05, 0.1)),
            straggling=rng.choice((0.0, 0.0, 0.02)),
        )
        ids = list(forest.edges)
        if rng.random() < 0.5:
            # As a tree of fan-out 2: numbers below 2 hang from the core.
            for index, node_id in enumerate(ids):
                above = (index - 2) // 2
                forest.wishes[node_id] = str(ids[above] if index >= 2 else 0)
        if len(ids) > 2 and rng.random() < 0.3:
            self.wall_in(rng.sample(ids, rng.randint(1, len(ids) // 2)))
        for node in forest.nodes():
            node.pace = rng.uniform(0.9, 1.1)
            node.offset = rng.uniform(0.0, 300.0)

    def wall_in(self, some: list[int]) -> None:
        forest = self.forest
        gate = next(it for it in forest.edges.values() if it.node_id not in some)
        for node_id in some:
            forest.edges[node_id].known = (gate.place,)
            for other in forest.nodes():
                if other.node_id not in some and other is not gate:
                    forest.walls |= {(node_id, other.node_id), (other.node_id, node_id)}

    def go(self) -> None:
        forest = self.forest
        forest.trace(None, f"faults: {', '.join(self.kinds)}; {forest.weather}")
        for core in forest.cores.values():
            core.start()
        forest.elect(forest.cores[0])
        forest.supervise()
        for edge in forest.edges.values():
            forest.later(self.rng.random() * 2.0, edge.start)
        forest.later(2.0 + self.pace_s, self.strike)
        forest.run_until(2.0 + self.faults_s)
        forest.trace(None, "faults end")
        self.heal()

    # -- faults ------------------------------------------------------------------------------

    def strike(self) -> None:
        forest = self.forest
        if forest.now >= self.faults_s + 2.0:
            return
        kind = self.rng.choice(self.kinds)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        forest.trace(None, f"fault: {kind}")
        self.all[kind]()
        forest.later(self.rng.expovariate(1.0) * self.pace_s, self.strike)

    def some_edge(self) -> EdgeNode:
        return self.rng.choice(list(self.forest.edges.values()))

    def stop(self, node: Node) -> None:
        if not node.up:
            return
        self.forest.trace(node, "dies")
        if self.rng.random() < 0.8:  # else its host has died with it, and says nothing
            self.forest.broken(node)
        node.stop()
        self.forest.later(self.rng.expovariate(0.7), lambda: self.start(node))

    def start(self, node: Node) -> None:
        if not node.up and not node.is_gone:
            self.forest.trace(node, "starts")
            node.start()

    def kill(self) -> None:
        self.stop(self.some_edge())

    def kill_two(self) -> None:
        """An edge and its father: together, or the one just after the other."""
        edge = self.some_edge()
        father = edge.edge.parent if edge.up else None
        found = self.forest.node(father.node_id) if father is not None else None
        self.stop(edge)
        if found is not None:
            other = found
            self.forest.later(self.rng.random() * 0.05, lambda: self.stop(other))

    def kill_core(self) -> None:
        core = self.rng.choice(list(self.forest.cores.values()))
        self.stop(core)
        if core is self.forest.controller:
            self.lose_supervisor()

    def lose_supervisor(self) -> None:
        forest = self.forest
        if forest.controller is not None:
            forest.elect(None)
            forest.later(self.rng.expovariate(0.5), self.find_supervisor)

    def find_supervisor(self) -> None:
        forest = self.forest
        if forest.controller is None:
            living: list[Core] = [it for it in forest.cores.values() if it.up]
            if living:
                forest.elect(self.rng.choice(living))
            else:
                forest.later(0.5, self.find_supervisor)

    def pause(self) -> None:
        node = self.rng.choice(self.forest.nodes())
        node.paused_until = self.forest.now + self.rng.expovariate(0.5)

    def isolate(self) -> None:
        node, forest = self.some_edge(), self.forest
        kept = self.some_edge()
        for other in forest.nodes():
            if other is not kept:
                forest.cut |= {(node.node_id, other.node_id), (other.node_id, node.node_id)}
        self.mend()

    def cut_some(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            a, b = self.rng.sample(self.forest.nodes(), 2)
            self.forest.cut |= {(a.node_id, b.node_id), (b.node_id, a.node_id)}
        self.mend()

    def cut_one_way(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            a, b = self.rng.sample(self.forest.nodes(), 2)
            self.forest.cut.add((a.node_id, b.node_id))
        self.mend()

    def cut_core(self) -> None:
        """Edges reach each other only, but for a few: the more they have to move."""
        forest = self.forest
        spared = self.rng.sample(list(forest.edges), self.rng.randint(0, 2))
        for core in forest.cores:
            for edge in forest.edges:
                if edge not in spared:
                    forest.cut |= {(core, edge), (edge, core)}
        self.mend()

    def mend(self) -> None:
        if self.rng.random() < 0.8:
            self.forest.later(self.rng.expovariate(0.5), self.forest.cut.clear)

    def report_falsely(self) -> None:
        """Somebody reports a neighbour down that may well live."""
        forest, edge = self.forest, self.some_edge()
        told = forest.image.edges.known.get(edge.node_id)
        if told is not None and told.confirmed:
            pair = [str(told.father), str(edge.node_id)]
            self.rng.shuffle(pair)
            try:
                forest.commit(supervisor.report_down(forest.image, *pair))
            except KafkaError as error:
                forest.trace(None, str(error))

    # -- healing -----------------------------------------------------------------------------

    def heal(self) -> None:
        forest = self.forest
        forest.weather = CALM
        forest.cut.clear()
        for node in forest.nodes():
            node.paused_until = 0.0
            if isinstance(node, EdgeNode) and self.rng.random() < self.mortality:
                self.lay_to_rest(node)
            else:
                self.start(node)
        if forest.controller is None or not forest.controller.up:
            forest.controller = None
            self.find_supervisor()
        # What straggles comes late, and may bring some more loss.
        end = forest.now + SETTLED_S
        if not forest.run_until(end, lambda: not forest.invariants.unsettled()):
            raise Broken(f"after {SETTLED_S} s: {forest.invariants.unsettled()}")
        forest.trace(None, "all is well")

    def lay_to_rest(self, node: EdgeNode) -> None:
        """It won't come back; unless the others need it to reach the core."""
        if all(node.place not in it.known for it in self.forest.edges.values()):
            self.forest.trace(node, "dies for good")
            node.stop()
            node.is_gone = True


def failure_of(run: Run) -> str:
    """What is wrong with a run, if anything is."""
    try:
        run.go()
    except (Broken, TreeViolation) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_seed(seed: int, plan: Plan) -> Outcome:
    began = time.perf_counter()
    failure = details = ""
    with planted(PLANTS, plan.plant):
        run = Run(seed, faults_s=plan.minutes * 60, edges=plan.nodes, only=plan.faults, traced=True)
        try:
            run.go()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            details = "".join(traceback.format_exception(error))
    forest = run.forest
    if plan.traces is not None and (failure or plan.always_trace):
        forest.story.write(trace_path(plan.traces, seed), f"{failure}\n\n{details}")
    return Outcome(
        seed=seed,
        simulated_s=forest.now,
        wall_s=time.perf_counter() - began,
        events=forest.events,
        digest=forest.story.digest(),
        acknowledged=len(forest.healed),
        faults=run.counts,
        failure=failure,
    )
