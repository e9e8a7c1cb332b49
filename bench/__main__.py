"""`python -m bench`: Sapwood and its peers, one after the other, on the same work."""

import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from bench import peers
from bench.goals import verdicts
from bench.peers import SPEAK_KAFKA, LoadFailed, Peer, PeerFailed
from bench.report import OURS, Results, print_tables, write
from bench.work import GROUPS, METRICS, Row, Turn, Work

WIDTH = 190  # of the tables in a file or a pipe
MANY = frozenset(GROUPS["partitions"])
OUTPUT = Path(__file__).resolve().parent.parent / ".cache" / "bench"


def names(_: click.Context, option: click.Parameter, given: str | None) -> tuple[str, ...] | None:
    known = peers.NAMES if option.name == "wanted" else (*METRICS, *GROUPS)
    chosen = given.split(",") if given else []
    if unknown := set(chosen) - set(known):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return tuple(name for it in chosen for name in GROUPS.get(it, (it,))) or None


def numbers(_: click.Context, __: click.Parameter, given: str | None) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in given.split(",")) if given else None
    except ValueError as error:
        raise click.BadParameter("numbers, separated by commas") from error


@click.command()
@click.option("--peers", "wanted", callback=names, help="Which, separated by commas.  [all]")
@click.option("--rounds", type=click.IntRange(min=1), help="How often each is measured.  [3]")
@click.option("--scale", type=click.IntRange(min=1), help="Messages of 100 B per row.  [2000000]")
@click.option("--rows", callback=names, help=f"Of {', '.join((*METRICS, *GROUPS))}.  [all]")
@click.option("--sizes", callback=numbers, help="Bytes per message.  [100,1000]")
@click.option("--partitions", callback=numbers, help="How many.  [1,12,60]")
@click.option(
    "--durability", type=click.Choice(["synced", "os", "both"]), default="both", show_default=True
)
@click.option(
    "--nodes",
    type=click.Choice(["1", "3", "both"]),
    default="both",
    show_default=True,
    help="Each partition has a replica on every node.",
)
@click.option("--kills", type=click.IntRange(min=1), help="Of leaders, per turn.  [5]")
@click.option("--many", type=click.IntRange(min=1), help="Partitions of the last rows.  [3000]")
@click.option("--quick", is_flag=True, help="One short round with 12 partitions.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=OUTPUT,
    help="Where the plot and the raw numbers go.  [.cache/bench]",
)
def main(
    wanted: tuple[str, ...] | None,
    rounds: int | None,
    scale: int | None,
    rows: tuple[str, ...] | None,
    sizes: tuple[int, ...] | None,
    partitions: tuple[int, ...] | None,
    durability: str,
    nodes: str,
    kills: int | None,
    many: int | None,
    quick: bool,
    output: Path,
) -> None:
    """Compare Sapwood with the brokers that can be had here."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    console = Console(stderr=True)
    work = Work().quick() if quick else Work()
    work = replace(
        work,
        sizes=sizes or work.sizes,
        partitions=partitions or work.partitions,
        messages=scale or work.messages,
        warm_up_messages=min(work.warm_up_messages, scale or work.messages),
        metrics=frozenset(rows or METRICS),
        durabilities={"synced": (True,), "os": (False,), "both": (True, False)}[durability],
        nodes={"1": (1,), "3": (3,), "both": (1, 3)}[nodes],
        kills=kills or work.kills,
        many=many or work.many,
    )
    chosen = available(wanted or peers.NAMES, console)
    if not chosen:
        raise click.ClickException("none of the brokers can be run here")
    rounds = rounds or (1 if quick else 3)
    results = Results(
        titles={name: peer.title for name, peer in chosen.items()},
        about={
            "when": time.strftime("%Y-%m-%d %H:%M"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
            "python": platform.python_version(),
            "rounds": rounds,
            "messages": work.messages,
        },
    )
    try:
        measure(chosen, work, rounds, results, console)
    except KeyboardInterrupt:
        console.print("interrupted: what follows is what was measured so far")
    print_tables(results, Console(width=None if sys.stdout.isatty() else WIDTH))
    for line in verdicts(results):
        print(line)
    console.print("written: " + ", ".join(str(path) for path in write(results, output)))
    if any(error.startswith(results.titles.get(OURS, "\0")) for error in results.errors):
        sys.exit(1)


def available(wanted: tuple[str, ...], console: Console) -> dict[str, Peer]:
    """The peers that can be run here; a line about each that can't."""
    found: dict[str, Peer] = {}
    for name in wanted:
        peer = peers.peer(name)
        missing = peer.missing()
        if missing is None:
            try:
                peer.prepare()
            except PeerFailed as error:
                missing = str(error)
        if missing is None:
            found[name] = peer
        else:
            console.print(f"without {peer.title}: {missing}")
    return found


def turns(
    chosen: dict[str, Peer], work: Work, results: Results, status: Status
) -> Iterator[tuple[str, Turn, Callable[[], None]]]:
    """A round: where it is, whose turn, and what to measure."""
    for nodes in work.nodes:
        for synced in work.durabilities:
            for name, peer in chosen.items():
                where = f"{peer.title}, {'synced' if synced else 'OS-buffered'}"
                where += f", {nodes} nodes" if nodes > 1 else ""

                def record(row: Row, value: float, name: str = name) -> None:
                    if row.metric in work.metrics:
                        results.record(name, row, value)

                def say(text: str, where: str = where) -> None:
                    status.update(f"{where}: {text}")

                turn = Turn(name, peer, work, synced, nodes, record, say)
                if nodes > 1 and not peer.is_clustered:
                    continue
                if work.metrics - MANY:
                    yield where, turn, turn.rows
                # Nothing is written to them, so it makes no difference how durably.
                speaks_kafka = nodes > 1 and name in SPEAK_KAFKA
                if speaks_kafka and synced == work.durabilities[0] and work.metrics & MANY:
                    yield f"{where}, {work.many} partitions", turn, turn.many


def measure(
    chosen: dict[str, Peer], work: Work, rounds: int, results: Results, console: Console
) -> None:
    with console.status("") as status:
        for number in range(1, rounds + 1):
            for where, turn, rows in turns(chosen, work, results, status):
                where = f"{where}, round {number} of {rounds}"
                began = time.monotonic()
                try:
                    rows()
                    results.others.append(turn.others)
                    took = f"{time.monotonic() - began:.0f} s"
                    console.print(
                        f"{where}: {took}, {turn.others:.0%} of the machine used by others"
                    )
                except (LoadFailed, PeerFailed) as error:
                    results.errors.append(f"{where}: {error}")
                    console.print(f"[red]{where}: {error}[/red]")


if __name__ == "__main__":
    main()
