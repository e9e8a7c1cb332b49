import random
from pathlib import Path
from typing import cast

import pytest

from chaos.faults import KINDS, usual
from chaos.history import Recorder
from chaos.nemesis import Nemesis, Step, plan
from chaos.target import Target
from tests.helpers import eventually


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_plans_the_same_faults(seed: int) -> None:
    first = plan(random.Random(seed), 60, usual(3))
    assert first == plan(random.Random(seed), 60, usual(3))
    assert first != plan(random.Random(seed + 1), 60, usual(3))


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_begins_and_ends_within_the_time_of_faults(seed: int) -> None:
    steps = plan(random.Random(seed), 60, usual(3))
    assert all(it.at_s > 0 and it.at_s + it.hold_s <= 60 for it in steps)
    assert [it.at_s for it in steps] == sorted(it.at_s for it in steps)


def test_every_kind_of_fault_has_its_turn() -> None:
    planned = {
        step.name for seed in range(50) for step in plan(random.Random(seed), 60, list(KINDS))
    }
    assert planned == set(KINDS)


def test_a_lone_node_is_not_asked_to_bear_the_loss_of_its_only_copy() -> None:
    assert {name for name in usual(1) if KINDS[name].harms_disk} == set()
    assert "wipe" in usual(3)


class Standing:
    """A lone node that can stand still, and says how it did."""

    nodes = up = [0]

    def __init__(self) -> None:
        self.seen: list[str] = []

    def pause(self, node: int) -> None:
        self.seen.append("stands")

    def resume(self, node: int) -> None:
        self.seen.append("goes on")


def test_a_fault_that_wants_the_cluster_whole_waits_for_the_end_of_one_that_is_late(
    tmp_path: Path,
) -> None:
    target = Standing()
    steps = [Step(at_s, "pause", 0.3, "any", 1, when_whole=True) for at_s in (0.0, 0.1)]
    with Recorder(tmp_path, seed=1, nodes=1, replicas=1, about={}) as recorder:
        nemesis = Nemesis(cast(Target, target), recorder, steps, [("t", 0)])
        nemesis.start()
        eventually(lambda: not nemesis.is_alive())
        nemesis.finish()
    assert target.seen == ["stands", "goes on"] * 2
    assert (nemesis.done, nemesis.left_out) == (2, 0)
