"""Trees whose servers die, with subscribers at every node and a publisher at work.

Plans: the six servers of the design in both orders (`six`), the three cases in which the original
failed, also with the supervisor's leader stopped (`cases`), random deaths for a while (`storm`).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sapwood
from chaos.audience import KINDS, Audience, GatewayProcess, Publisher, Subscriber, judged
from chaos.tree_words import wrong
from chaos.trees import HEALED_S, NotHealed, Tree, await_true
from sapwood.client import KafkaClient

TOPIC = "news"
RATE_PER_S = 20.0
PATIENCE_S = 60.0
# In the median, of all orphans of a command: for a machine that does little else.
HEALING_MS = 1000
CALM_S = 1.0
Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    name: str
    records: int = 0
    subscribers: int = 0
    kills: int = 0
    healing_ms: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        healing = "nobody was orphaned"
        if self.healing_ms:
            middle, worst = statistics.median(self.healing_ms), max(self.healing_ms)
            healing = (
                f"{len(self.healing_ms)} orphans attached again, after {middle:.0f} ms in the "
                f"median, {worst} ms at most"
            )
        verdict = "exact" if self.is_clean else "WRONG"
        lines = [
            f"{self.name}: {self.kills} killed; {self.records} records to {self.subscribers} "
            f"subscribers: {verdict}; {healing}"
        ]
        return "\n".join([*lines, *(f"  {it}" for it in self.problems)])


def too_slow(healing_ms: Sequence[int]) -> list[str]:
    """What a long command adds to the verdict."""
    if not healing_ms or statistics.median(healing_ms) < HEALING_MS:
        return []
    middle = f"{statistics.median(healing_ms):.0f} ms in the median"
    return [f"orphans attached again after {middle}, the limit is {HEALING_MS} ms"]


class Play:
    """A tree with its audience and a publisher, until the verdict."""

    def __init__(self, tree: Tree, outcome: Outcome, say: Say, rate_per_s: float) -> None:
        self.tree = tree
        self.outcome = outcome
        self.say = say
        self._rate_per_s = rate_per_s
        self._stack = ExitStack()
        self._publisher: Publisher | None = None
        self._audience: Audience | None = None
        self._healed_before = 0

    def gateway(self, servers: Sequence[str]) -> GatewayProcess:
        process = GatewayProcess(servers)
        self._stack.callback(process.stop)
        return process

    def begin(self, subscribers: Sequence[Subscriber]) -> None:
        self._healed_before = len(self.tree.healing_ms())
        self.outcome.subscribers = len(subscribers)
        self.say(f"{self.outcome.name}: {len(subscribers)} subscribers begin to listen")
        self._audience = self._stack.enter_context(Audience(subscribers))
        self._publisher = Publisher(self.tree.living, TOPIC, self._rate_per_s)
        self._publisher.start()
        time.sleep(CALM_S)

    def kill(self, *names: str) -> None:
        self.say(f"{self.outcome.name}: {', '.join(names)} killed")
        for name in names:
            if name in self.tree.edges:
                self.tree.kill(name)
            else:
                self.tree.cluster.kill(int(name))
        self.outcome.kills += len(names)

    def becomes(self, *shapes: str) -> None:
        self.tree.becomes(*shapes)
        time.sleep(CALM_S)

    def end(self) -> None:
        """What was published, and whether everybody has got it."""
        if self._publisher is None or self._audience is None:
            raise RuntimeError("it hasn't begun")
        self._publisher.finish()
        with KafkaClient(self.tree.living) as client:
            found = client.consume({(TOPIC, 0): 0}, stop_at="end")
            log = [(it.value or b"").decode() for it in found]
        self._audience.await_count(len(log), PATIENCE_S)
        self.outcome.records = len(log)
        self.outcome.problems += judged(log, self._publisher, self._audience)
        self.outcome.problems += wrong(self.tree)
        # Last, when all is at rest: before that not everybody may have been told of.
        self.outcome.healing_ms = self.tree.healing_ms()[self._healed_before :]

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.finish()
        self._stack.close()


@contextmanager
def played(
    name: str, directory: Path, say: Say, *, rate_per_s: float = RATE_PER_S
) -> Iterator[Play]:
    """`name` says what it is; what goes wrong on the way belongs to the outcome, too."""
    outcome = Outcome(name)
    data = directory / name.replace(" ", "-").replace(",", "")
    with sapwood.Cluster(nodes=3, data_dir=data, topics={TOPIC: 1}) as cluster:
        play = Play(Tree(cluster), outcome, say, rate_per_s)
        try:
            yield play
            play.end()
        except NotHealed as error:
            outcome.problems.append(f"not healed: {error}")
        finally:
            play.close()


def at_every_node(play: Play, names: Sequence[str]) -> list[Subscriber]:
    """A Kafka client at each of these, and lines at the last."""
    tree = play.tree
    edges = [tree.address(it) for it in tree.edges]
    found = []
    for name in names:
        own = tree.address(name)
        others = tree.living if name.isdigit() else edges
        servers = list(dict.fromkeys([own, *others]))
        found.append(Subscriber("confluent", f"at-{name}", servers, TOPIC))
    gateway = play.gateway([tree.address(names[-1]), *edges])
    found.append(Subscriber("lines", f"lines-at-{names[-1]}", [gateway.lines], TOPIC))
    found.append(Subscriber("websocket", f"page-at-{names[-1]}", [gateway.rest], TOPIC))
    return found


# -- six servers -------------------------------------------------------------------------------

SIX = {
    "d then b": (("d", "0(b(e f) c) 1 2"), ("b", "0(c e f) 1 2")),
    "b then d": (("b", "0(c d(e f)) 1 2"), ("d", "0(c e f) 1 2")),
}


def six(directory: Path, say: Say, orders: Sequence[str] = tuple(SIX)) -> Iterator[Outcome]:
    """a is core node 0; b and c below it; d below b; e and f below d."""
    for order in orders:
        with played(f"six servers, {order}", directory, say) as play:
            tree = play.tree
            tree.grow(b="0", c="0", d="b", e="d", f="d")
            tree.becomes("0(b(d(e f)) c) 1 2")
            play.begin(at_every_node(play, ("0", "b", "c", "d", "e", "f")))
            for name, shape in SIX[order]:
                play.kill(name)
                play.becomes(shape)
            play.kill("0")
            await_true(
                lambda tree=tree: tree.below() == {"1", "2", "c", "e", "f"},  # type: ignore[misc]
                "not everybody found another father when a died",
            )
        yield play.outcome


# -- the three cases ---------------------------------------------------------------------------

CASES: dict[str, Sequence[Sequence[str]]] = {
    "the second, then the first": (("q",), ("p",)),
    "the root at a bad time": (("p", "0"),),
    "a server and its backup": (("p", "q"),),
}


def cases(
    directory: Path,
    say: Say,
    names: Sequence[str] = tuple(CASES),
    stopped: Sequence[bool] = (False, True),
) -> Iterator[Outcome]:
    """p below core node 0, q below p, r below q; each case also while the supervisor's leader
    stands still: then the edges' own word counts until it goes on."""
    for name in names:
        for is_stopped in stopped:
            without = ", supervisor stopped" if is_stopped else ""
            with played(f"{name}{without}", directory, say) as play:
                tree = play.tree
                tree.grow(p="0", q="p", r="q")
                tree.becomes("0(p(q(r))) 1 2")
                play.begin(at_every_node(play, ("p", "q", "r")))
                controller = tree.cluster.status().controller
                if is_stopped:
                    say(f"{play.outcome.name}: core node {controller} stands still")
                    tree.pause(controller)
                for killed in CASES[name]:
                    play.kill(*killed)
                    await_true(tree.are_edges_attached, "an edge has no way up")
                if controller in tree.paused:
                    tree.resume(controller)
                await_true(
                    lambda tree=tree: set(tree.edges) <= tree.below(),  # type: ignore[misc]
                    lambda tree=tree: f"not everybody is in the tree: {tree.shape()}",  # type: ignore[misc]
                )
            yield play.outcome


# -- a storm -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Storm:
    seed: int
    seconds: float = 120.0
    edges: int = 15
    subscribers: int = 60
    every_s: float = 2.0
    gateways: int = 3
    fan_out: int = 2
    least_kills: int = 0
    """It goes on for these on a machine where starts take long."""

    @property
    def command(self) -> str:
        return (
            f"python -m chaos tree storm --seed {self.seed} --seconds {self.seconds:g} "
            f"--edges {self.edges} --subscribers {self.subscribers}"
        )


def storm(options: Storm, directory: Path, say: Say) -> Iterator[Outcome]:
    chance = random.Random(options.seed)
    with played(f"storm {options.seed}", directory, say) as play:
        tree, cluster = play.tree, play.tree.cluster
        for number in range(options.edges):
            father = f"e{(number - 1) // options.fan_out}" if number else "0"
            tree.grow(**{f"e{number}": father})
            say(f"{number + 1} of {options.edges} edges are there")
        everybody = dict(tree.edges)
        places = [tree.address(it) for it in everybody]
        gateways = [
            play.gateway(chance.sample(places, min(5, len(places))))
            for _ in range(options.gateways)
        ]
        play.begin(
            [
                _subscriber(KINDS[number % len(KINDS)], number, places, gateways, chance)
                for number in range(options.subscribers)
            ]
        )
        until = time.monotonic() + options.seconds
        away: list[str] = []
        while time.monotonic() < until or play.outcome.kills < options.least_kills:
            round_ends = time.monotonic() + options.every_s
            if away:
                _restart(play, everybody, away.pop())
            # A core node now and then; one at a time, so that there is a quorum.
            victim = chance.choice([*everybody, *map(str, cluster.nodes)])
            play.kill(victim)
            away.append(victim)
            time.sleep(max(0.0, round_ends - time.monotonic()))
        if away:
            _restart(play, everybody, away.pop())
        say("waiting until the tree is whole")
        wanted = {*everybody, *map(str, cluster.nodes)}
        await_true(
            lambda: tree.below() == wanted,
            lambda: f"not in the tree: {wanted - tree.below()}",
            2 * HEALED_S,
        )
    yield play.outcome


def _subscriber(
    kind: str,
    number: int,
    places: Sequence[str],
    gateways: Sequence[GatewayProcess],
    chance: random.Random,
) -> Subscriber:
    name = f"{kind}-{number}"
    gateway = gateways[number // len(KINDS) % len(gateways)]
    if kind == "lines":
        return Subscriber(kind, name, [gateway.lines], TOPIC)
    if kind == "websocket":
        return Subscriber(kind, name, [gateway.rest], TOPIC)
    own = places[number % len(places)]
    return Subscriber(kind, name, [own, *chance.sample(places, min(3, len(places)))], TOPIC)


def _restart(play: Play, everybody: dict[str, int], name: str) -> None:
    play.say(f"{play.outcome.name}: {name} starts again")
    if name in everybody:
        play.tree.cluster.restart_edge(everybody[name])
        play.tree.edges[name] = everybody[name]
    else:
        play.tree.cluster.restart(int(name))
