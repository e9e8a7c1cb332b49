"""What named scenarios promise: a run that keeps it is clean, and each way to break it is found."""

from typing import Any

import pytest

from chaos.history import Fault, History, Line, Mended, Start
from chaos.promises import overlaps, promised
from tests.chaos.histories import fault, send


def history(scenario: str, *lines: Line, plan: tuple[str, ...] = (), replicas: int = 3) -> History:
    about = {"scenario": scenario, "plan": [{"name": name} for name in plan]}
    return History(
        [Start(version=1, seed=1, nodes=3, replicas=replicas, began="", about=about), *lines]
    )


def found(it: History) -> dict[str, list[str]]:
    return {name: [str(each) for each in some] for name, some in promised(it).items() if some}


def silences(*seconds: float) -> list[Line]:
    """A leader killed each time, and nothing acknowledged for so long."""
    lines: list[Line] = [send(0, at=0.0, done=0.0)]
    at = 0.0
    for number, each in enumerate(seconds):
        lines += [
            fault("kill", at, at + 0.1, 0),
            send(number + 1, at=at, done=at + each),
        ]
        at += each
    return lines


def test_short_silences_keep_the_promise() -> None:
    assert found(history("leader-kills", *silences(0.4, 1.4, 3.0), plan=("kill",) * 3)) == {}


@pytest.mark.parametrize(
    ("seconds", "what"),
    [((0.4, 1.6, 1.7), "median silence 1.60 s"), ((0.4, 0.5, 5.5), "longest silence 5.50 s")],
)
@pytest.mark.parametrize("scenario", ["leader-kills", "leader-pauses"])
def test_long_silences_are_found(scenario: str, seconds: tuple[float, ...], what: str) -> None:
    (problem,) = found(history(scenario, *silences(*seconds), plan=("kill",) * 3))["slow"]
    assert what in problem


def test_a_run_without_a_name_promises_nothing_about_silences_and_plans() -> None:
    assert found(history("", *silences(9.0), plan=("kill", "pause"))) == {}


def test_a_fault_that_never_came_is_found() -> None:
    (problem,) = found(history("power", fault("power", 1.0, 2.0, 0), plan=("power",) * 3))[
        "left out"
    ]
    assert "2 of 3 never came" in problem


def joined(**about: Any) -> Fault:
    return Fault(name="join", nodes=[3], at=1.0, done=2.0, about=about)


def emptied(**about: Any) -> Fault:
    return Fault(name="empty", nodes=[0], at=3.0, done=4.0, about=about)


def test_even_shares_and_an_empty_node_keep_the_promise() -> None:
    good = (joined(shares={"0": 45, "1": 45, "2": 46, "3": 45}), emptied(left=0))
    assert found(history("grow", *good, plan=("join", "empty"))) == {}


@pytest.mark.parametrize(
    "bad",
    [joined(shares={"0": 47, "1": 45}), joined(shares={}), joined(), emptied(left=3), emptied()],
)
def test_uneven_shares_and_what_is_left_on_a_drained_node_are_found(bad: Fault) -> None:
    assert len(found(history("grow", bad))["uneven"]) == 1


FLIPPED = fault("flip", 1.0, 2.0, 1, topic="t", partition=0)


def test_damage_that_was_noticed_is_no_problem() -> None:
    assert found(history("damage", FLIPPED, Mended(node=1, topic="t", partition=0))) == {}


@pytest.mark.parametrize(
    "lines",
    [(FLIPPED,), (FLIPPED, Mended(node=2, topic="t", partition=0)), (fault("flip", 1.0, 2.0, 1),)],
)
def test_damage_that_nobody_noticed_and_damage_that_was_never_done_are_found(
    lines: tuple[Line, ...],
) -> None:
    assert len(found(history("damage", *lines))["unnoticed"]) == 1


def test_where_copies_are_wiped_as_well_or_there_is_only_one_damage_may_go_unnoticed() -> None:
    wiped = fault("wipe", 3.0, 4.0, 1)
    assert found(history("", FLIPPED, wiped)) == {}
    assert found(history("", FLIPPED, replicas=1)) == {}


def test_whether_leaders_died_during_a_refill_is_told() -> None:
    hit, missed = (fault("refill", 1.0, 2.0, 0, missing=count) for count in (70, 0))
    assert overlaps(history("refill", missed, missed)) == [
        "NOT HIT: no leader died while a wiped node was filled again (2)"
    ]
    (remark,) = overlaps(history("refill", hit, missed))
    assert "1 of 2, with 70 records to come" in remark
    assert overlaps(history("power")) == []
