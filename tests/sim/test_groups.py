"""Groups in the simulator: orderly through faults, and bugs in them that must show."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from sapwood.client.groups import Membership
from sim.groups import EndsNeverGoBack, GroupsKeepTheirPlace
from sim.invariants import Sent, Violation
from sim.plan import Plan
from sim.scenario import Grouped, kind_of, run_seed
from sim.world import World

PLAN = Plan(minutes=0.1, nodes=3, faults=("crash", "cut links"))
KEY = ("t", 0)
PLACE = ("g", KEY)


def grouped(seeds: Iterable[int], plan: Plan) -> Iterator[int]:
    """Those that have groups."""
    for seed in seeds:
        world = World(seed)
        if kind_of(world, plan) is Grouped:
            yield seed
        world.close()


def test_groups_keep_their_place_through_faults_and_the_same_way_twice() -> None:
    seed = next(grouped(range(1, 100), PLAN))
    outcome = run_seed(seed, PLAN)
    assert outcome.failure == ""
    assert outcome.acknowledged > 0
    assert run_seed(seed, PLAN).digest == outcome.digest


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "first", "judges", "plan"),
    [
        (
            "fenced-commit-accepted",
            26,
            ("GroupsKeepTheirPlace",),
            Plan(0.2, 3, faults=("paused client",)),
        ),
        (
            "unconfirmed-reads",
            31,
            ("EndsNeverGoBack", "GroupsKeepTheirPlace"),  # positions are read, too
            Plan(0.1, 3, faults=("power cut of all", "slow disk")),
        ),
    ],
)
def test_a_bug_of_groups_or_of_reads_is_caught(
    plant: str, first: int, judges: tuple[str, ...], plan: Plan
) -> None:
    seeds = grouped(range(first, 100), plan)  # which is rough enough, or nearly
    outcomes = (run_seed(seed, replace(plan, plant=plant)) for seed in seeds)
    failed = next(it for it in outcomes if it.failure)
    assert failed.failure.startswith(judges)
    assert run_seed(failed.seed, plan).failure == ""


@pytest.fixture
def world() -> Iterator[World]:
    world = World(1)
    yield world
    world.close()


def test_a_partition_has_one_owner_in_one_generation(world: World) -> None:
    judge = GroupsKeepTheirPlace(world.loop)
    judge.processed(PLACE, Membership("a", 1), 0, 5)
    judge.processed(PLACE, Membership("b", 2), 3, 7)
    judge.processed(PLACE, Membership("a", 1), 5, 6)  # hasn't heard of it yet
    with pytest.raises(Violation, match="a and b both own"):
        judge.processed(PLACE, Membership("b", 1), 5, 6)


def test_a_position_never_goes_back_and_is_never_ahead_of_what_was_processed(world: World) -> None:
    judge = GroupsKeepTheirPlace(world.loop)
    before = judge.known()
    judge.told("w", PLACE, -1, before)
    with pytest.raises(Violation, match="nobody has processed"):
        judge.processed(PLACE, Membership("a", 1), 3, 5)
    judge.processed(PLACE, Membership("a", 1), 0, 5)
    judge.told("a", PLACE, 5, {})
    judge.told("w", PLACE, 3, before)  # asked before that
    with pytest.raises(Violation, match="at 4, it was at 5"):
        judge.told("w", PLACE, 4, judge.known())
    with pytest.raises(Violation, match="only 5 are processed"):
        judge.told("w", PLACE, 6, judge.known())
    assert judge.has_come_to(PLACE, 5)
    assert not judge.has_come_to(PLACE, 6)


def test_an_end_is_behind_all_that_was_acknowledged_before_the_question(world: World) -> None:
    judge = EndsNeverGoBack(world.loop)
    before = judge.known()
    judge.acknowledged(Sent("p", 1, KEY, b"", offset=7))
    judge.told("w", KEY, 7, before)
    with pytest.raises(Violation, match="ends at 7, not at 8"):
        judge.told("w", KEY, 7, judge.known())
