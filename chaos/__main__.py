"""`python -m chaos`: run scenarios, judge recorded ones again."""

import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from chaos.faults import KINDS
from chaos.history import History
from chaos.report import Report, report
from chaos.run import ROOT, Options, Say, run
from chaos.scenarios import SCENARIOS
from chaos.stress import Options as StressOptions
from chaos.stress import stress

SAY_EVERY_S = 10.0


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
@keep_option
def run_command(
    minutes: float | None,
    runs: int | None,
    seed: int | None,
    nodes: int,
    seconds: float,
    faults: tuple[str, ...],
    keep: bool,
) -> None:
    """Faults under load, then healing and the final check; shapes and faults follow the seed."""
    seed = random.randrange(1_000_000) if seed is None else seed
    until = time.monotonic() + (minutes or 0.0) * 60
    runs = runs or (1_000_000 if minutes else 1)
    failed = []
    done = 0
    while done < runs and (not done or minutes is None or time.monotonic() < until):
        options = Options(seed + done, nodes, seconds, faults, keep=keep)
        found = tell(options.command, partial(run, options))
        done += 1
        if not found.is_clean:
            failed.append(found.seed)
    finish(done, failed)


@main.command("scenario")
@click.argument("name", type=click.Choice(list(SCENARIOS)))
@seed_option
@nodes_option
@keep_option
def scenario(name: str, seed: int | None, nodes: int, keep: bool) -> None:
    """One of the plans that have a name."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = Options(seed, nodes, scenario=name, keep=keep)
    found = tell(options.command, partial(run, options))
    finish(1, [] if found.is_clean else [found.seed])


@main.command("stop-and-go")
@click.option("--minutes", type=float, default=1.0, show_default=True)
@seed_option
@nodes_option
@keep_option
def stop_and_go(minutes: float, seed: int | None, nodes: int, keep: bool) -> None:
    """Random nodes stopped with SIGINT and SIGKILL and started again, under load."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = Options(seed, nodes, minutes * 60, ("interrupt", "kill"), keep=keep)
    found = tell(options.command, partial(run, options))
    finish(1, [] if found.is_clean else [found.seed])


@main.command("stress")
@click.option(
    "--threads", type=click.IntRange(min=0), default=8, show_default=True, help="0: none, in turns."
)
@seed_option
@nodes_option
@seconds_option
@keep_option
def stress_command(threads: int, seed: int | None, nodes: int, seconds: float, keep: bool) -> None:
    """Load without faults, with threads or without."""
    seed = random.randrange(1_000_000) if seed is None else seed
    options = StressOptions(seed, nodes, seconds, threads, keep=keep)
    found = tell(options.command, partial(stress, options))
    finish(1, [] if found.is_clean else [found.seed])


@main.command("check")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def check(directory: Path) -> None:
    """Judge a recorded run again."""
    found = report(History.load(directory), directory=directory)
    click.echo(str(found))
    sys.exit(0 if found.is_clean else 1)


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
