"""`python -m sim`: run seeds, say what failed, and how to see it again."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sim.campaign import HEADINGS, TIERS, TRACES, Campaign, run_all, run_one
from sim.plan import CONSENSUS, TREE, NoSuchFault, Plan, trace_path

MOST_FAILURES = 10
PLANTED_SEEDS = 500
PLANTS = list(dict.fromkeys(name for tier in TIERS.values() for name in tier.plants))
SEEDS = ", ".join(f"tier {number}: {tier.seeds}" for number, tier in TIERS.items())
MINUTES = ", ".join(f"tier {number}: {tier.minutes:.3g}" for number, tier in TIERS.items())


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), help=f"How many.  [{SEEDS}]")
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="This one only; its trace is always written.")
@click.option("--minutes", type=float, help=f"Of faults, virtual.  [{MINUTES}]")
@click.option(
    "--tier",
    "number",
    type=click.Choice([str(number) for number in TIERS]),
    default="2",
    show_default=True,
    help="1: the rules alone. 2: whole nodes and their clients.",
)
@click.option(
    "--rules",
    type=click.Choice([CONSENSUS, TREE]),
    default=CONSENSUS,
    show_default=True,
    help="Of tier 1: which.",
)
@click.option("--nodes", type=click.IntRange(min=1), help="So many.  [each seed's own number]")
@click.option("--without-hints", is_flag=True, help="Don't tell nodes where others may be.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1)
@click.option("--faults", default="", help="These kinds, separated by commas.  [each seed's own]")
@click.option(
    "--plant",
    type=click.Choice([*PLANTS, "all"]),
    help=f"Plant a bug of the tier; a violation must be found, within {PLANTED_SEEDS} seeds.",
)
def main(
    seeds: int | None,
    first: int,
    seed: int | None,
    minutes: float | None,
    number: str,
    rules: str,
    nodes: int | None,
    without_hints: bool,
    jobs: int,
    faults: str,
    plant: str | None,
) -> None:
    """Run the shipped code through faults, and judge what clients and nodes saw."""
    console = Console(highlight=False, soft_wrap=True)
    tier = TIERS[int(number)]
    if plant is not None and plant not in (*tier.plants, "all"):
        raise click.UsageError(f"tier {number} has these plants: {', '.join(tier.plants)}")
    if rules != CONSENSUS and int(number) != 1:
        raise click.UsageError("only tier 1 has rules to choose from")
    if without_hints and int(number) == 1:
        raise click.UsageError("the replicas of tier 1 know where the others are")
    plan = Plan(
        tier.minutes if minutes is None else minutes,
        nodes,
        not without_hints,
        None if plant == "all" else plant,
        tuple(kind.strip() for kind in faults.split(",") if kind.strip()),
        TRACES / (f"tier-{number}" if rules == CONSENSUS else f"tier-{number}-{rules}"),
        rules=rules,
    )
    try:
        if seed is not None:
            sys.exit(replay(console, int(number), seed, plan))
        if plant is not None:
            names = list(tier.plants) if plant == "all" else [plant]
            plans = [replace(plan, plant=name) for name in names]
            found = [find(console, int(number), it, first, jobs) for it in plans]
            sys.exit(0 if all(found) else 1)
        last = first + (tier.seeds if seeds is None else seeds)
        sys.exit(campaign(console, int(number), range(first, last), plan, jobs))
    except NoSuchFault as error:
        raise click.UsageError(str(error)) from error


def replay(console: Console, tier: int, seed: int, plan: Plan) -> int:
    outcome = run_one(tier, seed, replace(plan, always_trace=True))
    console.print(
        f"seed {seed}: {outcome.simulated_s:.1f} s simulated in {outcome.wall_s:.1f} s, "
        f"{outcome.events} events, {outcome.acknowledged} acknowledged, trace {outcome.digest}"
    )
    console.print(", ".join(f"{kind} × {count}" for kind, count in outcome.faults.items()))
    console.print(f"trace: {trace_of(plan, seed)}")
    if outcome.failure:
        console.print(outcome.failure, style="red", markup=False)
    return 1 if outcome.failure else 0


def campaign(console: Console, tier: int, seeds: range, plan: Plan, jobs: int) -> int:
    result = Campaign(tier, plan)
    began = time.perf_counter()
    with progress(console) as bar:
        task = bar.add_task("seeds", total=len(seeds), failed=0)
        with contextlib.closing(run_all(tier, seeds, plan, jobs)) as outcomes:
            for outcome in outcomes:
                result.add(outcome)
                bar.update(task, advance=1, failed=len(result.failed))
                if outcome.failure:
                    bar.console.print(f"seed {outcome.seed}: {outcome.failure}", markup=False)
                    bar.console.print(f"  again: {result.command(outcome.seed)}", markup=False)
                    bar.console.print(f"  trace: {trace_of(plan, outcome.seed)}", markup=False)
                if len(result.failed) >= MOST_FAILURES:
                    bar.console.print(f"{MOST_FAILURES} seeds have failed: that will do")
                    break
    result.wall_s = time.perf_counter() - began
    console.print(HEADINGS)
    console.print(result.row())
    return 1 if result.failed else 0


def find(console: Console, tier: int, plan: Plan, first: int, jobs: int) -> bool:
    """Whether a planted bug is noticed: a seed fails with it, and doesn't without it."""
    tried = 0
    healthy = replace(plan, plant=None)
    seeds = range(first, first + PLANTED_SEEDS)
    with progress(console) as bar:
        task = bar.add_task(plan.plant or "", total=len(seeds), failed=0)
        with contextlib.closing(run_all(tier, seeds, plan, jobs)) as outcomes:
            for outcome in outcomes:
                tried += 1
                bar.update(task, advance=1)
                if outcome.failure and not run_one(tier, outcome.seed, healthy).failure:
                    command = Campaign(tier, plan).command(outcome.seed)
                    what = f"{plan.plant}: found after {counted(tried)}: {outcome.failure}"
                    bar.console.print(f"{what}\n  {command}", markup=False)
                    return True
    console.print(f"{plan.plant}: not found in {counted(tried)}", style="red")
    return False


def progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[red]{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def counted(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def trace_of(plan: Plan, seed: int) -> str:
    path = trace_path(plan.traces or TRACES, seed)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    main()
