import random

import pytest

from chaos.faults import KINDS, usual
from chaos.nemesis import plan


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
