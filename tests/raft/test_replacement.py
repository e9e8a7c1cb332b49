"""Why a voter that comes back anew is removed before it is added.

The story is `scripts/a_dead_voters_vote_arrives_late.txt`. Here it is told once more with a leader
that lets the new one take the old one's place in one step, which looks safe, since the old one
never acts again. But what it said before may still arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from sapwood.raft import Elected, Voter, Voters
from sapwood.raft import group as group_module
from sim.consensus.memory import Broken
from tests.raft.stage import Stage

STORY = [
    "start 0 1 2",
    "elect 0 1 2",
    "lost 1 2",
    "wait 0.05 without 0",
    "deliver 1 2",
    "deliver 2 1",
    "deliver 1 2",
    "wipe 2",
    "start 2",
    "hear 0 2",
    "fetch 2",
    "sync 2",
    "fetch 2",
    "target 0 1 2",
    "append 0 1",
    "sync 0",
    "fetch 2",
    "sync 2",
    "fetch 2",
]


@contextmanager
def replacement_in_one_step() -> Iterator[None]:
    def next_voters(voters: Voters, ready: Sequence[Voter], target: Sequence[int]) -> Voters:
        anew = {it.node: it for it in ready if it not in voters}
        return tuple(anew.get(it.node, it) for it in voters)

    def one_step(old: Voters, new: Voters) -> bool:
        return len(set(old) ^ set(new)) == 2

    with (
        patch.object(group_module, "next_voters", next_voters),
        patch.object(group_module, "one_step", one_step),
    ):
        yield


def played() -> Stage:
    stage = Stage([0, 1, 2], 3)
    for direction in STORY:
        stage.play(direction)
    return stage


def test_replaced_in_one_step_a_dead_voters_vote_elects_a_leader_without_what_is_committed() -> (
    None
):
    with replacement_in_one_step():
        stage = played()
        assert len(stage.invariants.history) == 2, "the record of voters and what came after it"
        with pytest.raises(Broken, match="leads in epoch 2 without the committed"):
            stage.play("deliver 2 1")


def test_removed_before_it_is_added_nothing_is_committed_that_the_late_leader_lacks() -> None:
    stage = played()
    assert stage.invariants.history == []
    stage.play("deliver 2 1")
    assert isinstance(stage.members[1].group.role, Elected)
