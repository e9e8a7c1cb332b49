import random

import pytest

from chaos.faults import KINDS
from chaos.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_a_plan_of_known_faults_and_the_same_for_the_same_seed(name: str) -> None:
    shape, steps = SCENARIOS[name](random.Random(1))
    assert {step.name for step in steps} <= KINDS.keys()
    assert (shape, steps) == SCENARIOS[name](random.Random(1))
    assert steps != SCENARIOS[name](random.Random(2))[1]
