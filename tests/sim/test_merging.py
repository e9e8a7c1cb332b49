"""One order in the simulator: kept through faults of clocks, and a bug in it that must show."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from sapwood.client.merging import MergePosition
from sim.faults import LOST_CLOCKS
from sim.invariants import Violation
from sim.merging import OneSequence
from sim.plan import Plan
from sim.scenario import Merging, kind_of, run_seed
from sim.world import World

PLAN = Plan(minutes=0.15, nodes=3, faults=(LOST_CLOCKS,))


def merging(seeds: Iterable[int], plan: Plan) -> Iterator[int]:
    """Those that have merged readers."""
    for seed in seeds:
        world = World(seed)
        if issubclass(kind_of(world, plan), Merging):
            yield seed
        world.close()


@pytest.mark.parametrize("first", [20, 43], ids=["through edges", "at nodes"])
def test_all_merged_readers_see_one_sequence_while_clocks_jump_and_leaders_die(first: int) -> None:
    plan = replace(PLAN, faults=("clock", "crash", "cut links"))
    seed = next(merging(range(first, 100), plan))
    outcome = run_seed(seed, plan)
    assert outcome.failure == ""
    assert outcome.acknowledged > 0
    assert run_seed(seed, plan).digest == outcome.digest


def test_a_promise_that_a_restart_forgets_is_caught() -> None:
    plan = replace(PLAN, plant="clock-not-kept")
    seeds = merging(range(50, 200), plan)
    failed = next(it for it in (run_seed(seed, plan) for seed in seeds) if it.failure)
    assert failed.failure.partition(":")[0] in ("OneSequence", "ClosedTimesHold")
    assert run_seed(failed.seed, PLAN).failure == ""


def test_two_readers_who_differ_or_one_who_goes_back_are_a_violation() -> None:
    one = OneSequence()
    places = [MergePosition(time, bytes(16), 0, time) for time in range(3)]
    one.got("a", 0, places[1], b"x")
    one.got("b", 0, places[1], b"x")
    with pytest.raises(Violation, match="was b'x'"):
        one.got("b", 0, places[2], b"y")
    with pytest.raises(Violation, match="after"):
        one.got("a", 1, places[0], b"y")
    with pytest.raises(Violation, match="were merged"):
        one.at_end([])
