"""The short form of tier 1 for the tree; `python -m sim --tier 1 --rules tree` is the long one."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sim.campaign import TIERS, Campaign
from sim.plan import TREE, NoSuchFault, Plan
from sim.planting import planted
from sim.tree.planted import PLANTS
from sim.tree.run import FAULTS_S, Run, failure_of, run_seed

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = Plan(TIERS[1].minutes, rules=TREE)


def test_no_loop_arises_under_faults_and_everybody_is_attached_when_they_are_over() -> None:
    failures = {seed: found for seed in range(40) if (found := failure_of(Run(seed)))}
    assert failures == {}


@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_of_the_tree_is_found_within_five_hundred_seeds(bug: str) -> None:
    with planted(PLANTS, bug):
        found = next((seed for seed in range(500) if failure_of(Run(seed))), None)
    assert found is not None, f"{bug} is not noticed"


DIGEST = """
from sim.tree.run import run_seed
from sim.plan import Plan
outcome = run_seed(6, Plan(1 / 3))
print(outcome.digest, outcome.events, outcome.acknowledged, outcome.failure)
"""


def test_a_seed_of_the_tree_is_the_same_run_whatever_python_hashes() -> None:
    def told(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout

    here = run_seed(6, PLAN)
    assert told("1") == told("4242") == f"{here.digest} {here.events} {here.acknowledged} \n"


def test_a_seed_of_the_tree_that_fails_leaves_a_trace_and_its_command(tmp_path: Path) -> None:
    plan = replace(PLAN, plant="orphan-accepts-a-child", faults=("kill",), traces=tmp_path)
    failed = next(it for it in (run_seed(seed, plan) for seed in range(50)) if it.failure)
    trace = (tmp_path / f"seed-{failed.seed}.txt").read_text(encoding="utf-8")
    assert trace.startswith(failed.failure)
    assert "dies" in trace
    assert set(failed.faults) == {"kill"}
    assert Campaign(1, plan).command(failed.seed) == (
        f"python -m sim --tier 1 --seed {failed.seed} --rules tree "
        '--plant orphan-accepts-a-child --faults "kill"'
    )


def test_runs_of_the_tree_see_thirty_one_edges_and_much_healing() -> None:
    healed, sizes = 0, set()
    for seed in range(15, 27):
        run = Run(seed)
        run.go()
        healed += len(run.forest.healed)
        sizes.add(len(run.forest.edges))
    assert healed > 100
    assert max(sizes) == 31
    small = Run(3, edges=4, faults_s=2.0)
    assert failure_of(small) == ""
    assert len(small.forest.edges) == 4
    assert small.forest.now < FAULTS_S
    with pytest.raises(NoSuchFault, match="lost supervisor"):
        Run(3, only=("earthquake",))
