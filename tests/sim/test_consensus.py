"""The short form of the simulation; `python -m sim.consensus.run --seeds N` is the long one."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from sim.consensus.member import Member
from sim.consensus.planted import MEMBERS, PATCHES
from sim.consensus.run import Run, failure

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_breaks_under_faults_and_all_settles_when_they_are_over() -> None:
    failures = {seed: found for seed in range(150) if (found := failure(seed))}
    assert failures == {}


@pytest.mark.parametrize("bug", [*MEMBERS, *PATCHES])
def test_a_planted_bug_is_found_within_five_hundred_seeds(bug: str) -> None:
    member = MEMBERS.get(bug, Member)
    planted = PATCHES.get(bug, nullcontext)
    with planted():
        found = next((seed for seed in range(500) if failure(seed, member=member)), None)
    assert found is not None, f"{bug} is not noticed"


def test_a_seed_is_the_same_run_whatever_python_hashes() -> None:
    def trace(hash_seed: str) -> str:
        command = [sys.executable, "-m", "sim.consensus.run", "--first", "3", "--trace"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert trace("1") == trace("2")
    assert len(trace("1").splitlines()) > 500


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
