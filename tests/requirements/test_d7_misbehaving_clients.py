"""D7: clients that misbehave at random, so that anybody can watch the guarantees hold."""

import json

import pytest

from tests.cli.command import said, sapwood

SMALL = ("--nodes", "1", "--topics", "3", "--publishers", "2", "--subscribers", "3")


def verdict(*arguments: str, fails: int = 0) -> dict[str, int]:
    out, _ = sapwood("chaos", "clients", *SMALL, *arguments, "-o", "json", fails=fails)
    found: dict[str, int] = json.loads(out)
    return found


@pytest.mark.timeout(600)
def test_d7_clients_that_crash_stall_and_come_and_go_lose_and_double_nothing() -> None:
    found = verdict("--seconds", "10", "--messages", "100", "--seed", "7")
    wrong = ("lost", "doubled", "out_of_order", "undelivered")
    assert [found[each] for each in wrong] == [0, 0, 0, 0]
    assert found["stored"] > 0
    assert found["got"] >= 100
    assert found["crashes"] > 0
    assert found["in_the_window"] <= found["crashes"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "wrong"),
    [
        ("keep-late", "lost"),
        ("acknowledge-late", "doubled"),
        ("forget-ids", "doubled"),
        ("overtake", "out_of_order"),
        ("stale-owner", "doubled"),
    ],
)
def test_d7_a_bug_that_is_planted_in_the_clients_is_found(plant: str, wrong: str) -> None:
    found = verdict("--seconds", "1", "--messages", "60", "--plant", plant, fails=1)
    assert found[wrong] > 0


def test_d7_only_nodes_of_a_cluster_of_its_own_are_killed() -> None:
    line = said("chaos", "clients", "--kill-nodes", bootstrap="127.0.0.1:1", fails=2)
    assert "leave -b out" in line
