"""The arithmetic of majorities, against twins that try out every set of voters there is.

`one_step` is what changes of voters rest on. That is enough because of three rules of `Group`:

- Voters are in force as soon as they are appended, and are changed again only when that change is
  committed. So of two sets of voters of which neither is committed, both follow from the same one,
  and a leader of an epoch counts votes and acknowledgements by sets that are one step apart from
  those of any leader whose commits it may not know.
- A leader changes them only after a commit in its own epoch. Let 0 add a voter and get nowhere, 1
  be elected by the old ones and, without a commit, remove one: those two sets are two steps apart.
  But the commit of 1's marker puts a majority of the old voters beyond 0's epoch: it can't win.
- A voter is a replica that remembers. One that has forgotten its votes or its log is another one,
  so a message of the old one that arrives late is what a dead voter promised, and was kept to its
  death; and the new one counts only by voters that name it, of which no earlier leader knows.
"""

from __future__ import annotations

from itertools import chain, combinations, product

from hypothesis import given
from hypothesis import strategies as st

from sapwood.raft import Position, Voter, Voters, acknowledged, committed, majority
from sapwood.raft.change import next_voters
from sapwood.raft.quorum import one_step

EVERYBODY = [Voter(node, incarnation) for node in range(4) for incarnation in range(2)]

voters_of_some_nodes = st.permutations(range(6)).flatmap(
    lambda nodes: st.integers(1, 6).map(lambda n: tuple(Voter(it, 0) for it in nodes[:n]))
)
positions = st.builds(Position, st.integers(0, 3), st.integers(0, 5))


def subsets(of: Voters) -> list[set[Voter]]:
    sizes = range(len(of) + 1)
    return [set(it) for it in chain.from_iterable(combinations(of, size) for size in sizes)]


def majorities(voters: Voters) -> list[set[Voter]]:
    """All sets of voters that outnumber the others."""
    return [it for it in subsets(voters) if len(it) > len(voters) - len(it)]


@given(voters_of_some_nodes)
def test_a_majority_is_the_smallest_number_of_voters_that_outnumbers_the_others(
    voters: Voters,
) -> None:
    assert majority(len(voters)) == min(map(len, majorities(voters)))


@given(
    voters_of_some_nodes,
    st.dictionaries(st.builds(Voter, st.integers(0, 7), st.integers(0, 1)), positions),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_as_much_is_acknowledged_as_some_set_of_voters_of_that_size_holds_in_the_leaders_epoch(
    voters: Voters, durable: dict[Voter, Position], epoch: int, needed: int
) -> None:
    held = [
        min(durable[it].offset for it in some)
        for some in subsets(voters)
        if len(some) == needed and all(it in durable and durable[it].epoch == epoch for it in some)
    ]
    assert acknowledged(voters, durable, epoch, needed) == max(held, default=None)


@given(voters_of_some_nodes, st.data())
def test_what_is_committed_is_held_by_some_majority_and_nothing_more_is(
    voters: Voters, data: st.DataObject
) -> None:
    durable = {it: data.draw(positions) for it in voters}
    offset = committed(voters, durable, epoch=2)

    def held(least: int) -> bool:
        return any(
            all(durable[it].epoch == 2 and durable[it].offset >= least for it in some)
            for some in majorities(voters)
        )

    assert held(offset) and not held(offset + 1) if offset is not None else not held(0)


def all_voters() -> list[Voters]:
    """Every set of voters with at most one replica of each of four nodes."""
    choices = [(None, Voter(node, 0), Voter(node, 1)) for node in range(4)]
    found = [tuple(it for it in some if it is not None) for some in product(*choices)]
    return [it for it in found if it]


def test_majorities_before_and_after_one_step_always_have_a_voter_in_common() -> None:
    sets = all_voters()
    by_majorities = {it: majorities(it) for it in sets}
    steps = [(old, new) for old, new in product(sets, sets) if one_step(old, new)]
    assert len(steps) > 200
    for old, new in steps:
        for before, after in product(by_majorities[old], by_majorities[new]):
            assert before & after, (old, new)


def test_no_other_change_is_one_step_if_majorities_can_miss_each_other() -> None:
    sets = all_voters()
    for old, new in product(sets, sets):
        apart = any(not before & after for before in majorities(old) for after in majorities(new))
        assert not (apart and one_step(old, new)), (old, new)


def test_a_voter_that_came_back_anew_does_not_take_its_own_place_in_one_step() -> None:
    zero, one, two, two_again = Voter(0, 0), Voter(1, 0), Voter(2, 0), Voter(2, 7)
    assert not one_step((zero, one, two), (zero, one, two_again))
    assert one_step((zero, one, two), (zero, one))
    assert one_step((zero, one), (zero, one, two_again))


def test_there_is_no_step_to_nobody_to_the_same_or_to_two_replicas_of_a_node() -> None:
    zero, one = Voter(0, 0), Voter(1, 0)
    assert not one_step((zero,), ())
    assert not one_step((zero, one), (one, zero))
    assert not one_step((zero, one), (zero, one, Voter(1, 7)))


@given(
    st.sampled_from(all_voters()),
    st.sets(st.sampled_from(EVERYBODY)),
    st.lists(st.integers(0, 3), min_size=1, unique=True),
    st.data(),
)
def test_steps_lead_to_the_target_and_every_one_is_safe(
    voters: Voters, alive: set[Voter], target: list[int], data: st.DataObject
) -> None:
    leader = data.draw(st.sampled_from(voters))
    ready = [leader, *sorted(it for it in alive if it.node != leader.node)]
    ready = list({it.node: it for it in ready}.values())
    seen = [voters]
    while (new := next_voters(seen[-1], ready, target)) is not None:
        assert one_step(seen[-1], new)
        assert leader in new
        if len(new) < len(seen[-1]):
            assert len(set(new).intersection(ready)) >= majority(len(new))
        else:
            assert set(new) - set(seen[-1]) <= set(ready)
        seen.append(new)
        assert len(seen) < 12, "steps go in a circle"
    last = seen[-1]
    able = len(set(voters).intersection(ready)) >= majority(len(voters))
    if able and {it.node for it in ready} >= {*target, *(it.node for it in voters)}:
        assert {it.node for it in last} == {*target, leader.node}
        assert set(last) <= set(ready)
