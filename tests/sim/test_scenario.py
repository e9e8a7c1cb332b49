"""Whole nodes through faults: a few short seeds, the same way twice, and bugs that must show."""

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sim import invariants, seams
from sim.campaign import TIERS, Campaign, run_all, run_one
from sim.node import SimNode
from sim.plan import NoSuchFault, Plan
from sim.planting import NoSuchPlant, NoSuchSeam, patched, planted
from sim.scenario import run_seed
from sim.world import World

ROOT = Path(__file__).resolve().parent.parent.parent
INVARIANTS = {name for name, it in vars(invariants).items() if isinstance(it, type)}


@pytest.mark.parametrize(("seed", "nodes"), [(2, 1), (4, 1), (4, 3)])
def test_nodes_keep_their_promises_through_faults(seed: int, nodes: int) -> None:
    outcome = run_one(2, seed, Plan(minutes=0.1, nodes=nodes))
    assert outcome.failure == ""
    assert outcome.acknowledged > 0
    assert sum(outcome.faults.values()) > 0
    gc.collect()  # nothing that was cut off may complain now


DIGEST = """
from sim.plan import Plan
from sim.scenario import run_seed
outcome = run_seed(2, Plan(minutes=0.05, nodes=3))
print(outcome.digest, outcome.events, outcome.acknowledged, outcome.failure)
"""


def test_a_seed_takes_the_same_way_under_every_hash_seed() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", DIGEST],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "4242")
    ]
    first, second = (run.communicate()[0] for run in runs)
    assert first == second
    assert len(first.split()) == 3
    here = run_seed(2, Plan(minutes=0.05, nodes=3))
    assert first.split()[:2] == [here.digest, str(here.events)]
    assert run_seed(3, Plan(minutes=0.05, nodes=3)).digest != here.digest


def test_an_acknowledgement_before_the_sync_is_caught(tmp_path: Path) -> None:
    faults = ("slow disk", "power cut")
    plan = Plan(0.1, 1, True, "ack-before-sync", faults, tmp_path)
    failed = next((it for it in (run_seed(n, plan) for n in range(4, 24)) if it.failure), None)
    assert failed is not None
    assert failed.failure.partition(":")[0] in INVARIANTS
    assert run_seed(failed.seed, replace(plan, plant=None)).failure == ""
    trace = (tmp_path / f"seed-{failed.seed}.txt").read_text()
    assert failed.failure in trace
    assert "loses its power" in trace
    command = Campaign(2, plan).command(failed.seed)
    assert command == (
        f"python -m sim --tier 2 --seed {failed.seed} --minutes 0.1 --nodes 1 "
        '--plant ack-before-sync --faults "slow disk,power cut"'
    )


def test_a_link_that_vouches_for_an_offline_leader_is_caught_by_the_missing_election() -> None:
    plan = Plan(0.1, 3, True, "link-vouches-for-offline-replica", ("failing sync", "slow disk"))
    failed = next((it for it in (run_seed(n, plan) for n in range(64, 84)) if it.failure), None)
    assert failed is not None
    assert failed.failure.startswith("Liveness: not so after 10 s: every partition has a leader")
    assert run_seed(failed.seed, replace(plan, plant=None)).failure == ""


POWER_AND_LINKS = ("power cut of all", "slow disk", "cut links")


# Seeds that show it within seconds; another seed may after a change to what seeds mean, found with
# `python -m sim --nodes 3 --minutes … --faults … --plant …`.
@pytest.mark.parametrize(
    ("plant", "seed", "minutes", "faults", "violation"),
    [
        ("dedup-window-of-one", 59, 0.03, ("resets", "cut links"), "NoDuplicates"),
        ("coordinator-answers-early", 55, 0.15, POWER_AND_LINKS, "GroupsKeepTheirPlace"),
        ("positions-told-early", 55, 0.15, POWER_AND_LINKS, "GroupsKeepTheirPlace"),
    ],
)
def test_what_is_remembered_too_briefly_or_told_too_early_is_caught(
    plant: str, seed: int, minutes: float, faults: tuple[str, ...], violation: str
) -> None:
    plan = Plan(minutes, 3, True, plant, faults)
    assert run_seed(seed, plan).failure.partition(":")[0] == violation
    assert run_seed(seed, replace(plan, plant=None)).failure == ""


@pytest.mark.parametrize(
    ("tier", "name"), [(number, name) for number, tier in TIERS.items() for name in tier.plants]
)
def test_every_planted_bug_finds_what_it_patches_and_takes_itself_out_again(
    tier: int, name: str
) -> None:
    with planted(TIERS[tier].plants, name):
        pass
    with pytest.raises(NoSuchSeam), patched(SimNode, "no_such_method", None):
        pass
    with pytest.raises(NoSuchPlant), planted(TIERS[tier].plants, "no such bug"):
        pass


def test_nodes_are_drained_while_others_crash_and_nothing_is_lost(tmp_path: Path) -> None:
    plan = Plan(0.2, 5, faults=("drain", "crash"), traces=tmp_path, always_trace=True)
    outcome = run_seed(2, plan)
    assert outcome.failure == ""
    assert outcome.faults["drain"] > 0
    trace = (tmp_path / "seed-2.txt").read_text()
    assert "is drained" in trace
    assert "votes on 0 partitions by now" in trace, "replicas have moved"


def test_an_unknown_fault_is_named_with_those_there_are() -> None:
    outcome = run_seed(1, Plan(0.1, nodes=1, faults=("earthquake",)))
    assert NoSuchFault.__name__ in outcome.failure
    assert "power cut" in outcome.failure


def test_seeds_run_in_processes_of_their_own() -> None:
    outcomes = sorted(
        run_all(2, range(1, 3), Plan(minutes=0.05, nodes=1), jobs=2), key=lambda it: it.seed
    )
    campaign = Campaign(2, Plan(minutes=0.05, nodes=1), wall_s=1.0)
    for outcome in outcomes:
        campaign.add(outcome)
    assert [it.seed for it in outcomes] == [1, 2]
    assert "| 2 | 2 | 0.05 min |" in campaign.row()
    assert "clean" in campaign.row()


def test_entropy_and_sockets_come_from_the_world_while_it_runs() -> None:
    def drawn() -> list[bytes]:
        world = World(5)
        process = world.machine("m").begin()
        with seams.installed(world):
            return [process.context.run(os.urandom, 8) for _ in range(2)]

    before = os.urandom
    assert drawn() == drawn()
    assert os.urandom is before
