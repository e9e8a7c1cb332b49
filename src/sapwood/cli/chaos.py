"""`sapwood chaos`: trouble on purpose, and a verdict."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sapwood.chaos.run import Nemesis, Plan, Run
from sapwood.cli.connect import bootstrap_option
from sapwood.cli.logs import log_level_option
from sapwood.cli.output import output_option, print_json, print_table, table_of

if TYPE_CHECKING:
    from sapwood.chaos.orders import Plant
    from sapwood.chaos.run import Actor, Show
    from sapwood.chaos.verdict import Verdict
    from sapwood.cluster import Cluster

_log = logging.getLogger("sapwood.chaos")

# Kafka's name, so that a subscriber that crashed is soon given up.
_OWN_CONFIG = {"group.consumer.session.timeout.ms": 3000}
_PLANTS = ("keep-late", "acknowledge-late", "forget-ids", "overtake", "stale-owner")
_DEAD_S, _WHOLE_S = (0.5, 4.0), (4.0, 10.0)
_HEALTHY_S = 120.0
_MOST_SHOWN = 10
_LOG_EVERY_S = 5.0


@click.group()
def chaos() -> None:
    """Let clients misbehave, and see that the guarantees hold."""


@chaos.command()
@click.option("--topics", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True,
              help="Of each topic.")  # fmt: skip
@click.option("--publishers", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--subscribers", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Of trouble.")
@click.option("--messages", type=click.IntRange(min=0), default=0, show_default=True,
              help="To be got at least, even if it takes longer.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0.1), default=10.0, show_default=True,
              help="Messages a second of each publisher.")  # fmt: skip
@click.option("--seed", type=int, help="Of the clients' mischief.  [default: by the clock]")
@click.option(
    "--plant",
    type=click.Choice(_PLANTS),
    help="A bug in the clients that the verdict must find: keep-late (acknowledged before it is "
    "kept), acknowledge-late (kept before it is acknowledged), forget-ids (of repeated puts), "
    "overtake (one message another), stale-owner (kept after standing still, though by now "
    "another process of that subscriber has it).",
)
@click.option("--nodes", type=click.IntRange(min=1), default=3, show_default=True,
              help="Of the cluster that is started for this, if no other is named.")  # fmt: skip
@click.option("--kill-nodes", is_flag=True, help="Kill a node of that cluster now and then, too.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the clients' notes here.  [default: a directory that is removed]",
)
@output_option
@log_level_option
@bootstrap_option
def clients(
    seed: int | None,
    plant: str | None,
    nodes: int,
    kill_nodes: bool,
    directory: Path | None,
    output: str,
    bootstrap: str | None,
    **sizes: Any,
) -> None:
    """Run clients that misbehave, and judge from the data.

    Publishers and durable subscribers, each a process, crash, are killed, stall for up to 10 s,
    drop acknowledgements and come and go over a list of topics; of every four subscribers two have
    two processes at a time, under one id. Then all comes to rest, and what the topics hold and what
    the clients noted is held against the promises: lost 0, doubled 0, out of order 0; exit status 1
    if not.

    \b
    sapwood chaos clients --seconds 60
    sapwood chaos clients --plant keep-late      # a run that has to fail
    """
    if kill_nodes and bootstrap is not None:
        raise click.UsageError("--kill-nodes is for a cluster of its own: leave -b out")
    seed = int(time.time()) if seed is None else seed
    plan = Plan(seed=seed, plant=cast("Plant", plant or ""), **sizes)
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        nemesis, address = Nemesis(), bootstrap
        if address is None:
            cluster = stack.enter_context(_own_cluster(nodes))
            nemesis = NodeKiller(cluster, nodes, seed) if kill_nodes else nemesis
            address = cluster.bootstrap
        _log.info("seed %d, clients' notes in %s", seed, directory)
        run = Run(plan, address, directory, stack.enter_context(_display()), nemesis)
        verdict = run.carry_out()
        if verdict.is_clean and bootstrap is not None:
            run.clean_up()
        elif bootstrap is not None:
            _log.error("left for a closer look: %s and their subscribers", ", ".join(run.topics))
    _report(verdict, seed, output)
    sys.exit(0 if verdict.is_clean else 1)


def _own_cluster(nodes: int) -> Cluster:
    from sapwood.cluster import Cluster

    return Cluster(nodes=nodes, config=_OWN_CONFIG)


class NodeKiller(Nemesis):
    """Kills one node at a time, starts it again, and lets the cluster become whole in between."""

    def __init__(self, cluster: Cluster, nodes: int, seed: int) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._chance = random.Random(seed)
        self._dead: int | None = None
        self._act_at = 0.0

    def act(self) -> None:
        now = time.monotonic()
        if now < self._act_at:
            return
        if self._dead is None:
            self._dead = self._chance.randrange(self._nodes)
            self._cluster.kill(self._dead)
            _log.info("killed node %d", self._dead)
            self._act_at = now + self._chance.uniform(*_DEAD_S)
        else:
            self.heal()
            self._act_at = time.monotonic() + self._chance.uniform(*_WHOLE_S)

    def heal(self) -> None:
        if self._dead is not None:
            self._cluster.restart(self._dead)
            self._dead = None
            self._cluster.wait_healthy(_HEALTHY_S)


@contextmanager
def _display() -> Iterator[Show]:
    """A table on a terminal; else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def show(phase: str, actors: Sequence[Actor]) -> None:
            headings = (phase.upper(), "", "CRASHES", "MESSAGES", "LAST")
            live.update(table_of(headings, [_row(each) for each in actors]), refresh=True)

        yield show


def _row(actor: Actor) -> tuple[object, ...]:
    state = "ended" if actor.has_ended else "runs" if actor.is_running else "down"
    last = "" if actor.last is None else f"{actor.last.what} {actor.last.topic}"
    return actor.orders.notes.stem, state, max(0, actor.starts - 1), actor.messages, last


class _Lines:
    def __init__(self) -> None:
        self._said_at = float("-inf")
        self._phase = ""

    def __call__(self, phase: str, actors: Sequence[Actor]) -> None:
        now = time.monotonic()
        if phase == self._phase and now < self._said_at + _LOG_EVERY_S:
            return
        self._said_at, self._phase = now, phase
        told = ", ".join(
            f"{name} {messages} ({crashes} crashes)"
            for name, _, crashes, messages, _ in map(_row, actors)
        )
        _log.info("%s: %s", phase, told)


def _report(verdict: Verdict, seed: int, output: str) -> None:
    wrong = {
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "out of order": verdict.out_of_order,
        "undelivered": verdict.undelivered,
    }
    rest = {
        "stored": verdict.stored,
        "got": verdict.got,
        "crashes": verdict.crashes,
        "came again unacknowledged": verdict.again,
        "in the window": verdict.in_the_window,
        "seed": seed,
    }
    counts = {name: len(each) for name, each in wrong.items()} | rest
    if output == "json":
        print_json({name.replace(" ", "_"): count for name, count in counts.items()})
    else:
        print_table(("VERDICT", ""), list(counts.items()))
    for name, cases in wrong.items():
        for case in cases[:_MOST_SHOWN]:
            _log.error("%s: %s", name, case)
        if len(cases) > _MOST_SHOWN:
            _log.error("%s: and %d more", name, len(cases) - _MOST_SHOWN)
