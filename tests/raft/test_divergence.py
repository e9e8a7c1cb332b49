"""Two logs that grew apart meet again, and nothing that both hold is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sapwood.raft import Behind, Diverging, InStep
from sapwood.raft.divergence import compare, meeting_point
from sim.consensus.memory import Entry, MemoryLog, Tree

growth = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=5)
"""By how much the epoch rises, and how many records it has."""


def grown(log: MemoryLog, epoch: int, steps: list[tuple[int, int]], *, even: bool) -> None:
    """Epochs of the leader's are even, of the follower's odd: each has one leader."""
    for rise, count in steps:
        epoch += 2 * rise
        log.append_marker(epoch + (0 if even else 1))
        for _ in range(count):
            log.grow(epoch + (0 if even else 1))


def shared(one: MemoryLog, other: MemoryLog) -> list[Entry]:
    return [a for a, b in zip(one.entries, other.entries, strict=False) if a is b]


@given(growth, growth, growth)
def test_a_follower_cuts_back_to_just_what_it_shares_with_its_leader(
    before: list[tuple[int, int]],
    leaders: list[tuple[int, int]],
    followers: list[tuple[int, int]],
) -> None:
    leader = MemoryLog(Tree())
    grown(leader, 0, before, even=True)
    follower = leader.copy()
    epoch = leader.position.epoch
    grown(leader, epoch, leaders, even=True)
    grown(follower, epoch, followers, even=False)
    common = shared(leader, follower)

    rounds = 0
    while isinstance(verdict := compare(leader, follower.position), Diverging):
        follower.truncate(meeting_point(follower, *verdict))
        assert shared(leader, follower) == common
        rounds += 1
        assert rounds <= 12, "they never meet"
    assert verdict == InStep()
    assert follower.entries == common


@given(growth, st.data())
def test_a_follower_is_in_step_wherever_it_stopped_and_behind_where_the_log_no_longer_reaches(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    leader = MemoryLog(Tree())
    grown(leader, 0, [(1, 1), *steps], even=True)
    follower = leader.copy()
    for _ in range(data.draw(st.integers(0, len(follower.entries)))):
        follower.truncate(
            follower.entries[-2].position
            if len(follower.entries) > 1
            else leader.entries[0].position
        )
    leader.start_offset = data.draw(st.integers(0, leader.position.offset))
    behind = follower.position.offset < leader.start_offset
    assert compare(leader, follower.position) == (Behind() if behind else InStep())
