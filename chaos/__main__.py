"""`python -m chaos`: run scenarios, judge recorded ones again."""

import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import click

from chaos.cut_off import Options as CutOffOptions
from chaos.cut_off import Outcome as CutOffOutcome
from chaos.cut_off import cut_off
from chaos.faults import KINDS
from chaos.history import History
from chaos.orphans import CASES, SIX, Storm, cases, six, storm, too_slow
from chaos.orphans import Outcome as Orphans
from chaos.report import Report, report
from chaos.run import ROOT, Options, Say, run, run_directory
from chaos.scenarios import SCENARIOS
from chaos.spark_once import Options as SparkOptions
from chaos.spark_once import Outcome, spark_once
from chaos.stress import Options as StressOptions
from chaos.stress import stress

SAY_EVERY_S = 10.0
FORMATS = ("parquet", "delta", "iceberg")


class Progress:
    """One line that is overwritten; where that can't be, a line now and then."""

    def __init__(self) -> None:
        self._said_at = 0.0
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._is_terminal:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
        elif time.monotonic() > self._said_at + SAY_EVERY_S:
            self._said_at = time.monotonic()
            click.echo(text, err=True)

    def end(self) -> None:
        if self._is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def fault_names(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, ...]:
    names = tuple(given.split(",")) if given else ()
    if unknown := set(names) - set(KINDS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    return names


seed_option = click.option("--seed", type=int, help="Of the first run; the next adds 1.  [any]")
nodes_option = click.option(
    "--nodes", type=click.IntRange(min=1), default=3, show_default=True, help="Size of the cluster."
)
seconds_option = click.option(
    "--seconds", type=float, default=40.0, show_default=True, help="Of faults in each run."
)
audit_option = click.option(
    "--audit", is_flag=True, help="Let Spark judge each run as well, from the log."
)
keep_option = click.option("--keep", is_flag=True, help="Keep data and logs of clean runs, too.")


@click.group()
def main() -> None:
    """Real nodes, real clients, real faults."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: whatever runs is ended


@main.command("run")
@click.option("--minutes", type=float, help="Begin no further run after so long.")
@click.option("--runs", type=click.IntRange(min=1), help="How many.  [as many as fit, or 1]")
@seed_option
@nodes_option
@seconds_option
@click.option("--faults", callback=fault_names, help=f"Of {', '.join(KINDS)}.  [what fits]")
@audit_option
@keep_option
def run_command(
    minutes: float | None,
    runs: int | None,
    seed: int | None,
    nodes: int,
    seconds: float,
    faults: tuple[str, ...],
    audit: bool,
    keep: bool,
) -> None:
    """Faults under load, then healing and the final check; shapes and faults follow the seed."""
    seed = random.randrange(1_000_000) if seed is None else seed
    until = time.monotonic() + (minutes or 0.0) * 60
    runs = runs or (1_000_000 if minutes else 1)
    failed = []
    done = 0
    while done < runs and (not done or minutes is None or time.monotonic() < until):
        options = Options(seed + done, nodes, seconds, faults, keep=keep, audit=audit)
        found = tell(options.command, partial(run, options))
        done += 1
        if not found.is_clean:
            failed.append(found.seed)
    finish(done, failed)


@main.command("scenario")
@click.argument("name", type=click.Choice(list(SCENARIOS)))
@seed_option
@nodes_option
@audit_option
@keep_option
def scenario(name: str, seed: int | None, nodes: int, audit: bool, keep: bool) -> None:
    """One of the plans that have a name."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = Options(seed, nodes, scenario=name, keep=keep, audit=audit)
    found = tell(options.command, partial(run, options))
    finish(1, [] if found.is_clean else [found.seed])


@main.command("stop-and-go")
@click.option("--minutes", type=float, default=1.0, show_default=True)
@seed_option
@nodes_option
@audit_option
@keep_option
def stop_and_go(minutes: float, seed: int | None, nodes: int, audit: bool, keep: bool) -> None:
    """Random nodes stopped with SIGINT and SIGKILL and started again, under load."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = Options(seed, nodes, minutes * 60, ("interrupt", "kill"), keep=keep, audit=audit)
    found = tell(options.command, partial(run, options))
    finish(1, [] if found.is_clean else [found.seed])


@main.command("stress")
@click.option(
    "--threads", type=click.IntRange(min=0), default=8, show_default=True, help="0: none, in turns."
)
@seed_option
@nodes_option
@seconds_option
@audit_option
@keep_option
def stress_command(
    threads: int, seed: int | None, nodes: int, seconds: float, audit: bool, keep: bool
) -> None:
    """Load without faults, with threads or without."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = StressOptions(seed, nodes, seconds, threads, keep=keep, audit=audit)
    found = tell(options.command, partial(stress, options))
    finish(1, [] if found.is_clean else [found.seed])


@main.command("spark-once")
@seed_option
@click.option("--seconds", type=float, default=120.0, show_default=True, help="Of faults.")
@click.option("--drivers", type=int, default=5, show_default=True, help="How many are killed.")
@keep_option
def spark_once_command(seed: int | None, seconds: float, drivers: int, keep: bool) -> None:
    """A Spark stream from topic to topic; its processes and the nodes are killed."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = SparkOptions(seed, seconds, drivers)
    is_clean = tell_outcome(options.command, seed, partial(spark_once, options), keep)
    finish(1, [] if is_clean else [seed])


@main.command("archive-once")
@click.option(
    "--format", "kinds", multiple=True, type=click.Choice(FORMATS), help="Of the tables.  [all]"
)
@seed_option
@click.option("--seconds", type=float, default=120.0, show_default=True, help="Of faults.")
@click.option("--drivers", type=int, default=5, show_default=True, help="How many are killed.")
@keep_option
def archive_once_command(
    kinds: tuple[str, ...], seed: int | None, seconds: float, drivers: int, keep: bool
) -> None:
    """A topic archived into tables at once; Spark's processes and the nodes are killed."""
    from chaos.archive_once import ArchiveOptions, archive_once  # needs the extra `spark`

    seed = random.randrange(1_000_000) if seed is None else seed
    options = ArchiveOptions(seed, seconds, drivers, formats=kinds or FORMATS)
    is_clean = tell_outcome(options.command, seed, partial(archive_once, options), keep)
    finish(1, [] if is_clean else [seed])


@main.group("tree")
def tree_group() -> None:
    """Servers of a tree die, with subscribers at every node and a publisher at work."""


@tree_group.command("six")
@click.option("--order", type=click.Choice(list(SIX)), help="Of the deaths.  [each in turn]")
def tree_six(order: str | None) -> None:
    """Six servers: d and b die, in both orders, and then the root."""
    tell_orphans(partial(six, orders=(order,) if order else tuple(SIX)), 0)


@tree_group.command("cases")
@click.option("--case", type=click.Choice(list(CASES)), help="One of them.  [each in turn]")
def tree_cases(case: str | None) -> None:
    """The three cases in which the original failed, also with the supervisor's leader stopped."""
    tell_orphans(partial(cases, names=(case,) if case else tuple(CASES)), 0)


@tree_group.command("storm")
@seed_option
@click.option("--seconds", type=float, default=120.0, show_default=True, help="Of deaths.")
@click.option("--edges", type=click.IntRange(min=1), default=15, show_default=True)
@click.option("--subscribers", type=click.IntRange(min=1), default=60, show_default=True)
def tree_storm(seed: int | None, seconds: float, edges: int, subscribers: int) -> None:
    """A random edge or core node dies every 2 s, and comes back; everybody gets everything."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = Storm(seed, seconds, edges, subscribers)
    click.echo(options.command, err=True)
    tell_orphans(partial(storm, options), seed)


@main.command("cut-off")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Of being cut off.")
@click.option("--kill", is_flag=True, help="Kill the edge meanwhile, and start it again.")
@keep_option
def cut_off_command(seconds: float, kill: bool, keep: bool) -> None:
    """An edge with an outbox is cut off from the core while its clients publish."""
    options = CutOffOptions(seconds, kill)

    def work(directory: Path, say: Say) -> CutOffOutcome:
        return cut_off(options, directory, say)

    is_clean = tell_outcome(options.command, 0, work, keep)
    finish(1, [] if is_clean else [0])


@main.command("check")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def check(directory: Path) -> None:
    """Judge a recorded run again."""
    found = report(History.load(directory), directory=directory)
    click.echo(str(found))
    sys.exit(0 if found.is_clean else 1)


def tell_outcome(
    command: str,
    seed: int,
    work: Callable[[Path, Say], Outcome | CutOffOutcome],
    keep: bool,
) -> bool:
    """Whether it was clean."""
    click.echo(command, err=True)
    progress = Progress()
    with run_directory(ROOT, seed) as directory:
        found = work(directory, progress)
        progress.end()
        click.echo(str(found))
        if found.is_clean and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            click.echo(f"data and logs are in {directory}")
    return found.is_clean


def tell_orphans(work: Callable[[Path, Say], Iterable[Orphans]], seed: int) -> None:
    progress = Progress()
    done, failed, healing_ms = 0, [], list[int]()
    with run_directory(ROOT, seed) as directory:
        for found in work(directory, progress):
            progress.end()
            click.echo(str(found))
            done += 1
            healing_ms += found.healing_ms
            if not found.is_clean:
                failed.append(seed)
        for problem in too_slow(healing_ms):
            click.echo(problem)
            failed.append(seed)
        if failed:
            click.echo(f"data and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    finish(done, failed)


def tell(command: str, work: Callable[[Say], Report]) -> Report:
    progress = Progress()
    click.echo(command, err=True)
    try:
        found = work(progress)
    except BaseException:
        progress.end()
        click.echo(f"{command} broke off; what there is lies in {ROOT}", err=True)
        raise
    progress.end()
    click.echo(str(found))
    return found


def finish(done: int, failed: list[int]) -> None:
    click.echo(f"{done} runs, {len(failed)} failed" + (f": seeds {failed}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
