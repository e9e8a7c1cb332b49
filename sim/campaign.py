"""Many seeds on all cores, and what came of them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

from sim import planted, scenario
from sim.consensus import planted as consensus_planted
from sim.consensus import run as consensus
from sim.loop import SimulationFailed
from sim.plan import CONSENSUS, TREE, Outcome, Plan
from sim.planting import Plant
from sim.tree import planted as tree_planted
from sim.tree import run as tree

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / ".cache" / "sim"
MOST_CPU_S = 600
"""For one seed: more than that is a loop within one callback. A busy machine doesn't count."""


@dataclass(frozen=True, slots=True)
class Tier:
    run_seed: Callable[[int, Plan], Outcome]
    plants: Mapping[str, Plant]
    seeds: int
    """So many, and so many minutes of faults for each, if nothing else is said."""
    minutes: float


def run_rules(seed: int, plan: Plan) -> Outcome:
    """Of tier 1: those that the plan names, or that have its bug."""
    is_tree = plan.rules == TREE or plan.plant in tree_planted.PLANTS
    return tree.run_seed(seed, plan) if is_tree else consensus.run_seed(seed, plan)


RULES_PLANTS = {**consensus_planted.PLANTS, **tree_planted.PLANTS}
TIERS = {
    1: Tier(run_rules, RULES_PLANTS, 1000, consensus.FAULTS_S / 60),
    2: Tier(scenario.run_seed, planted.PLANTS, 20, 2.0),
}


class Hung(SimulationFailed):
    """A seed took far too much of a core's time."""


def current_commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout.strip() or "unknown"


@dataclass(slots=True)
class Campaign:
    tier: int
    plan: Plan
    began: float = field(default_factory=time.time)
    commit: str = field(default_factory=current_commit)
    """Before it begins: somebody may commit while it runs."""
    seeds: int = 0
    events: int = 0
    acknowledged: int = 0
    faults: int = 0
    simulated_s: float = 0.0
    wall_s: float = 0.0
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += outcome.events
        self.acknowledged += outcome.acknowledged
        self.faults += sum(outcome.faults.values())
        self.simulated_s += outcome.simulated_s
        if outcome.failure:
            self.failed.append(outcome)

    def command(self, seed: int) -> str:
        """What repeats a seed exactly."""
        words = [f"python -m sim --tier {self.tier} --seed {seed}"]
        if self.plan.rules != CONSENSUS:
            words.append(f"--rules {self.plan.rules}")
        if self.plan.minutes != TIERS[self.tier].minutes:
            words.append(f"--minutes {self.plan.minutes!r}")
        if self.plan.nodes is not None:
            words.append(f"--nodes {self.plan.nodes}")
        if not self.plan.hints:
            words.append("--without-hints")
        if self.plan.plant is not None:
            words.append(f"--plant {self.plan.plant}")
        if self.plan.faults:
            words.append(f'--faults "{",".join(self.plan.faults)}"')
        return " ".join(words)

    def row(self) -> str:
        """For the table in docs/reliability.md."""
        hours = self.wall_s / 3600
        date = time.strftime("%Y-%m-%d", time.gmtime(self.began))
        rules = "" if self.plan.rules == CONSENSUS else f", {self.plan.rules}"
        result = f"{len(self.failed)} failed" if self.failed else "clean"
        return (
            f"| {date} | {self.commit} | {self.tier}{rules} | {self.seeds} | "
            f"{self.plan.minutes:.3g} min | {self.simulated_s / 3600:.1f} h | "
            f"{self.wall_s / 60:.1f} min | {self.seeds / hours:.0f} | "
            f"{self.faults} | {self.acknowledged} | {result} |"
        )


HEADINGS = (
    "| date | commit | tier | seeds | faults for | simulated | wall | seeds per hour | faults | "
    "acknowledged | result |"
)


def run_one(tier: int, seed: int, plan: Plan) -> Outcome:
    """In a process that has nothing else to do."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise Hung(f"after {MOST_CPU_S} s of a core")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    try:
        return TIERS[tier].run_seed(seed, plan)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_all(tier: int, seeds: range, plan: Plan, jobs: int) -> Generator[Outcome, None, None]:
    """Outcomes as they come in; closing the iterator ends the rest."""
    ignore_interrupts = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(
        jobs, get_context("spawn"), initializer=signal.signal, initargs=ignore_interrupts
    ) as pool:
        waiting = iter(seeds)
        running: set[Future[Outcome]] = set()
        try:
            while True:
                for seed in waiting:
                    running.add(pool.submit(run_one, tier, seed, plan))
                    if len(running) >= 2 * jobs:
                        break
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    yield each.result()
        finally:
            for each in running:
                each.cancel()
            with contextlib.suppress(AttributeError):
                for process in list(pool._processes.values()):
                    process.terminate()
