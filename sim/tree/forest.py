"""Core nodes and edges in memory: a bag of messages, connections that break, clocks of their own.

All that happens by chance comes from one source, so that a seed is a run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from sapwood.metadata import records as r
from sapwood.metadata.edges import FIRST_EDGE_ID
from sapwood.metadata.image import Image
from sapwood.tree import supervisor
from sapwood.tree.edge import Edge
from sapwood.tree.root import Root
from sapwood.tree.supervisor import Supervisor
from sapwood.tree.words import (
    Answer,
    Ask,
    AskSupervisor,
    Attach,
    Changed,
    Claim,
    Effect,
    Part,
    Place,
    Reply,
    Since,
    Timing,
)
from sapwood.wire.errors import KafkaError
from sim.trace import Trace
from sim.tree.invariants import Invariants

REPORT_S = 1.0
CUT_OFF_S = 3.0
TURN_S = 0.25


@dataclass(slots=True)
class Weather:
    loss: float = 0.0
    delay_s: float = 0.005
    straggling: float = 0.0
    """How many messages take seconds."""


class Node:
    """What core nodes and edges have in common: a place, a life, and a clock."""

    def __init__(self, forest: Forest, place: Place) -> None:
        self.forest = forest
        self.place = place
        self.up = False
        self.life = 0
        self.is_gone = False
        self.paused_until = 0.0
        self.pace = 1.0
        self.offset = 0.0

    @property
    def node_id(self) -> int:
        return self.place.node_id

    @property
    def now(self) -> float:
        return self.offset + self.forest.now * self.pace

    def start(self) -> None:
        self.up = True
        self.life += 1
        self.begin()
        self.act()

    def stop(self) -> None:
        self.up = False
        self.life += 1

    # To be told by what is above and below

    def begin(self) -> None: ...

    def rules(self) -> Root | Edge:
        raise KeyError(self.node_id)

    def asked(self, attach: Attach) -> None: ...

    def child_lost(self, node_id: int, since: Since) -> None: ...

    def answered(self, source: tuple[int, int], since: Since, answer: Answer) -> None: ...

    def parent_lost(self, since: Since) -> None: ...

    # Acting

    def tick(self) -> None:
        self.rules().tick(self.now)
        self.act()

    def act(self) -> None:
        """Carry out what is ordered, and come back when there is something to do."""
        rules, forest = self.rules(), self.forest
        while effects := rules.take_effects():
            for effect in effects:
                self.carry_out(effect)
        forest.invariants.check(self)
        delay_s = (rules.deadline - self.now) / self.pace
        life = self.life

        def tick() -> None:
            if self.life == life and self.now >= rules.deadline - 1e-9:
                self.tick()

        forest.later(max(0.0, delay_s) + 1e-6, tick, self)

    def carry_out(self, effect: Effect) -> None:
        forest = self.forest
        match effect:
            case Reply(child, since, answer):
                who = self.node_id, self.life
                forest.post(self, child, f"{answer}", lambda to: to.answered(who, since, answer))
            case Changed():
                forest.trace(self, self.shown())

    def shown(self) -> str:
        return ""


class Core(Node):
    root: Root
    heard_at = 0.0
    """Of the controller."""

    def begin(self) -> None:
        self.heard_at = self.now
        self.root = Root(self.place, self.forest.timing, self.now)
        self.root.know_cores(self.place, self.forest.core_places)
        self.forest.later(0.0, self.report, self)

    def rules(self) -> Root:
        return self.root

    def asked(self, attach: Attach) -> None:
        self.root.asked(self.now, attach)
        self.act()

    def child_lost(self, node_id: int, since: Since) -> None:
        self.root.lost(node_id, since)
        self.act()

    def carry_out(self, effect: Effect) -> None:
        super().carry_out(effect)
        if isinstance(effect, Changed):
            self.tell_supervisor()

    def report(self) -> None:
        self.tell_supervisor()
        if self.hears_controller():
            self.heard_at = self.now
        self.root.cut_off(self.now - self.heard_at > CUT_OFF_S)
        self.act()
        self.forest.later(REPORT_S, self.report, self)

    def hears_controller(self) -> bool:
        forest = self.forest
        if forest.controller is None or not forest.controller.up:
            return False
        return not forest.is_cut(forest.controller.node_id, self.node_id)

    def tell_supervisor(self) -> None:
        forest, claims = self.forest, self.root.claims()
        if forest.controller is not None:
            controller = forest.controller.node_id
            forest.post(self, controller, "report", lambda _: forest.reported(self, claims))

    def shown(self) -> str:
        return f"has {[it.node_id for it in self.root.children]}"


class EdgeNode(Node):
    edge: Edge
    known: tuple[Place, ...] = ()
    hung_from: tuple[int, int] | None = None
    """The parent and which of its lives it was: another one knows nothing of this child."""

    def begin(self) -> None:
        forest = self.forest
        self.hung_from = None
        self.edge = Edge(
            self.place, self.life, self.known, forest.timing, forest.rng.random, self.now
        )

    def rules(self) -> Edge:
        return self.edge

    def asked(self, attach: Attach) -> None:
        before = self.edge.children
        self.edge.asked(self.now, attach)
        if not attach.renewing and self.edge.children != before:
            self.forest.invariants.taken_in(self, attach)
        self.act()

    def child_lost(self, node_id: int, since: Since) -> None:
        self.edge.child_lost(self.now, node_id, since)
        self.act()

    def answered(self, source: tuple[int, int], since: Since, answer: Answer) -> None:
        self.edge.answered(self.now, since, answer)
        if self.edge.parent is not None and self.edge.parent.node_id == source[0]:
            self.hung_from = source
        self.act()

    def parent_lost(self, since: Since) -> None:
        self.edge.lost(self.now, since)
        self.act()

    def carry_out(self, effect: Effect) -> None:
        forest = self.forest
        super().carry_out(effect)
        match effect:
            case Ask(place, attach):
                forest.ask(self, place, attach)
            case AskSupervisor(number, places):
                forest.ask_supervisor(self, number, places)
            case Part(place, since):
                forest.post(
                    self, place.node_id, "part", lambda to: to.child_lost(self.node_id, since)
                )

    def shown(self) -> str:
        edge = self.edge
        parent = edge.parent.node_id if edge.parent else None
        return f"{edge.phase.name} below {parent}, {edge.advert}, best {edge.feasible}"


class Forest:
    def __init__(self, seed: int, cores: int, edges: int, *, traced: bool = False) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.timing = Timing()
        self.weather = Weather()
        self.cut: set[tuple[int, int]] = set()
        """Links, from and to, that carry nothing."""
        self.walls: set[tuple[int, int]] = set()
        """Those that never will."""
        self.events = 0
        self.story = Trace()
        self._is_traced = traced
        self._events: list[tuple[float, int, Node | None, int, Callable[[], None]]] = []
        self._count = 0
        self.core_places = tuple(Place(it, f"core{it}", 9092) for it in range(cores))
        self.cores = {it.node_id: Core(self, it) for it in self.core_places}
        self.edges: dict[int, EdgeNode] = {}
        for number in range(FIRST_EDGE_ID, FIRST_EDGE_ID + edges):
            node = EdgeNode(self, Place(number, f"edge{number}", 9092))
            node.known = self.core_places
            self.edges[number] = node
        self.image = Image(cluster_id="forest")
        for it in self.core_places:
            listeners = {"kafka": (it.host, it.port)}
            self.image.apply(r.NodeRegistered(node_id=it.node_id, listeners=listeners))
        self.image.apply(r.EdgeRemoved(edge_id=FIRST_EDGE_ID + edges - 1))
        self.controller: Core | None = None
        self.supervisor = Supervisor(0.0)
        self.wishes: dict[int, str] = {}
        self.places = supervisor.PLACES
        self.healed: list[int] = []
        self.invariants = Invariants(self)

    # -- time --------------------------------------------------------------------------------

    def trace(self, node: Node | None, what: str) -> None:
        if self._is_traced:
            who = str(node.node_id) if node is not None else "-"
            self.story.add(f"{self.now:12.6f} {who:<6} {what}", self.events)

    def later(self, delay_s: float, action: Callable[[], None], node: Node | None = None) -> None:
        self._count += 1
        life = node.life if node is not None else 0
        heapq.heappush(self._events, (self.now + delay_s, self._count, node, life, action))

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Whether it was done before the time was up."""
        events = self._events
        while events and events[0][0] <= end:
            when, _, node, life, action = heapq.heappop(events)
            self.now = max(self.now, when)
            if node is not None:
                if node.life != life:
                    continue
                if node.paused_until > self.now:
                    heapq.heappush(events, (node.paused_until, self._count, node, life, action))
                    self._count += 1
                    continue
            self.events += 1
            action()
            if done is not None and done():
                return True
        self.now = end
        return done is not None and done()

    # -- messages ----------------------------------------------------------------------------

    def node(self, node_id: int) -> Node | None:
        return self.cores.get(node_id) or self.edges.get(node_id)

    def nodes(self) -> list[Node]:
        return [*self.cores.values(), *self.edges.values()]

    def is_cut(self, source: int, to: int) -> bool:
        return (source, to) in self.cut or (source, to) in self.walls

    def delay_s(self) -> float:
        delay_s = self.rng.expovariate(1.0) * self.weather.delay_s
        if self.rng.random() < self.weather.straggling:
            delay_s += 5.0 * self.rng.random()
        return delay_s

    def post(self, source: Node, node_id: int, what: str, action: Callable[[Node], None]) -> None:
        """Something for a node that is to arrive some time, if it does."""
        if self.rng.random() < self.weather.loss:
            return
        to = self.node(node_id)
        if to is None:
            return
        life = to.life

        def arrive() -> None:
            if to.up and to.life == life and not self.is_cut(source.node_id, node_id):
                self.trace(to, f"<- {source.node_id}: {what}")
                action(to)

        self.later(self.delay_s(), arrive, to)

    def ask(self, child: EdgeNode, place: Place, attach: Attach) -> None:
        to = next((it for it in self.nodes() if it.place[1:] == place[1:]), None)
        if to is None or (not to.up and self.rng.random() < 0.8):
            # Its host says that nobody is there; or the host is gone, too, and says nothing.
            self.hear_of_loss(child, attach.since)
            return
        if to.up:
            self.post(child, to.node_id, f"{attach}", lambda it: it.asked(attach))

    def hear_of_loss(self, child: EdgeNode, since: Since) -> None:
        self.later(self.delay_s(), lambda: child.parent_lost(since), child)

    def broken(self, node: Node) -> None:
        """Whoever had a connection to a node that is gone hears of it."""
        for edge in self.edges.values():
            parent = edge.edge.parent if edge.up else None
            hears = not self.is_cut(node.node_id, edge.node_id)
            if hears and parent is not None and parent.node_id == node.node_id:
                self.hear_of_loss(edge, edge.edge.since)
        if isinstance(node, EdgeNode) and node.edge.parent is not None:
            parent_node, since = self.node(node.edge.parent.node_id), node.edge.since
            if parent_node is not None and parent_node.up:
                found = parent_node
                self.later(
                    self.delay_s(), lambda: found.child_lost(node.node_id, since), parent_node
                )

    # -- the supervisor ----------------------------------------------------------------------

    def is_alive(self, core: int) -> bool:
        return self.image.nodes[core].alive if core in self.image.nodes else False

    def ask_supervisor(self, edge: EdgeNode, number: int, places: tuple[Place, ...]) -> None:
        for place in places:
            core = self.cores.get(place.node_id)
            if core is not None and core.up and not self.is_cut(edge.node_id, core.node_id):
                self.post(
                    edge, core.node_id, "register", lambda it: self.register(it, edge, number)
                )
                return
        self.later(self.delay_s(), lambda: self.offer(edge, number, None), edge)

    def register(self, core: Node, edge: EdgeNode, number: int) -> None:
        place: Place | None = None
        if self.controller is not None and not self.is_cut(core.node_id, self.controller.node_id):
            try:
                _, place, records = supervisor.register(
                    self.image,
                    edge.node_id,
                    edge.place.host,
                    edge.place.port,
                    self.wishes.get(edge.node_id, ""),
                    is_alive=self.is_alive,
                    loads={},
                    places=self.places,
                )
                self.commit(records)
            except KafkaError as error:
                self.wishes.pop(edge.node_id, None)
                self.trace(core, str(error))
        life = edge.life
        self.post(
            core,
            edge.node_id,
            f"offer {place}",
            lambda it: self.offer(edge, number, place) if it.life == life else None,
        )

    def offer(self, edge: EdgeNode, number: int, place: Place | None) -> None:
        edge.edge.offered(edge.now, number, place)
        edge.act()

    def reported(self, core: Core, claims: tuple[Claim, ...]) -> None:
        self.supervisor.reported(core.node_id, claims, self.now)
        self.turn()

    def supervise(self) -> None:
        self.turn()
        self.later(TURN_S, self.supervise)

    def turn(self) -> None:
        if self.controller is not None and self.controller.up:
            for core in self.cores.values():
                node = self.image.nodes[core.node_id]
                if node.alive != core.up:
                    self.commit([r.NodeChanged(node_id=core.node_id, alive=core.up)])
            self.commit(self.supervisor.turn(self.image, self.is_alive, self.now))

    def commit(self, records: list[r.Record]) -> None:
        for record in records:
            self.trace(None, f"{record}")
            self.image.apply(record)
            if isinstance(record, r.EdgeConfirmed) and record.healing_ms:
                self.healed.append(record.healing_ms)

    def elect(self, core: Core | None) -> None:
        self.controller = core
        self.supervisor = Supervisor(self.now)
        self.trace(core, "is the supervisor" if core else "no supervisor")
