"""The short form of tier 1; `python -m sim --tier 1` is the long one."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sim.campaign import TIERS, Campaign, run_one
from sim.consensus.planted import PLANTS
from sim.consensus.run import FAULTS_S, Run, failure_of, run_seed
from sim.plan import NoSuchFault, Plan
from sim.planting import planted

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = Plan(TIERS[1].minutes)


def test_nothing_breaks_under_faults_and_all_settles_when_they_are_over() -> None:
    failures = {seed: found for seed in range(80) if (found := failure_of(Run(seed)))}
    assert failures == {}


@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_is_found_within_five_hundred_seeds(bug: str) -> None:
    with planted(PLANTS, bug):
        found = next((seed for seed in range(500) if failure_of(Run(seed))), None)
    assert found is not None, f"{bug} is not noticed"


DIGEST = """
from sim.consensus.run import FAULTS_S, run_seed
from sim.plan import Plan
outcome = run_seed(3, Plan(FAULTS_S / 60))
print(outcome.digest, outcome.events, outcome.acknowledged, outcome.failure)
"""


def test_a_seed_is_the_same_run_whatever_python_hashes() -> None:
    def told(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout

    here, first = run_seed(3, PLAN), told("1")
    assert first == told("4242")
    assert first.split() == [here.digest, str(here.events), str(here.acknowledged)]
    assert run_seed(4, PLAN).digest != here.digest


def test_an_outcome_tells_what_was_done_to_the_replicas_and_what_came_of_it(tmp_path: Path) -> None:
    outcome = run_one(1, 3, replace(PLAN, traces=tmp_path, always_trace=True))
    assert outcome.failure == ""
    assert outcome.simulated_s > FAULTS_S
    assert outcome.acknowledged > 50
    assert sum(outcome.faults.values()) > 10
    lines = (tmp_path / "seed-3.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 500
    assert sum("fault: " in line for line in lines) == sum(outcome.faults.values())


def test_a_seed_that_fails_leaves_a_trace_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    plan = replace(PLAN, plant="ack-before-sync", faults=("power cut", "kill"), traces=tmp_path)
    failed = next(it for it in (run_seed(seed, plan) for seed in range(1, 100)) if it.failure)
    trace = (tmp_path / f"seed-{failed.seed}.txt").read_text(encoding="utf-8")
    assert trace.startswith(failed.failure)
    assert "loses power" in trace
    assert set(failed.faults) <= {"power cut", "kill"}
    again = run_seed(failed.seed, plan)
    assert replace(again, wall_s=failed.wall_s) == failed
    assert Campaign(1, plan).command(failed.seed) == (
        f"python -m sim --tier 1 --seed {failed.seed} --plant ack-before-sync "
        '--faults "power cut,kill"'
    )


def test_the_number_of_replicas_and_the_time_of_faults_can_be_chosen() -> None:
    run = Run(3, nodes=5, faults_s=2.0)
    assert len(run.cluster.first_voters) == 5
    assert failure_of(run) == ""
    assert FAULTS_S > run.cluster.now > 2.0
    with pytest.raises(NoSuchFault, match="duel"):
        Run(3, only=("earthquake",))


def test_runs_see_elections_changes_of_voters_and_logs_that_diverge() -> None:
    leaders = configurations = truncations = identities = 0
    for seed in range(20):
        run = Run(seed)
        run.go()
        leaders += len(run.cluster.invariants.leaders)
        configurations += len({it.config for it in run.cluster.invariants.history})
        truncations += sum(it.log.truncations for it in run.cluster.members.values())
        identities += run.cluster.incarnations
    assert leaders > 60
    assert configurations > 40
    assert truncations > 5
    assert identities > 5
