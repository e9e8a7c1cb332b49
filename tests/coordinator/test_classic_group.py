"""Groups of the classic protocol: who is in, who leads, who owns what, and who is fenced."""

from typing import Any

import pytest

from sapwood.coordinator.classic_words import MAY_FOLLOW, State
from sapwood.coordinator.group import GroupSettings
from sapwood.wire.errors import ErrorCode
from tests.coordinator.driving import Driven, subscription


def test_a_first_join_only_draws_a_member_id_where_the_version_says_so() -> None:
    driven = Driven()
    first = driven.asked(driven.join(requires_member_id=True))
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert driven.state_of() == "Empty"
    second = driven.asked(driven.join(first.member_id, requires_member_id=True))
    assert (second.error_code, second.member_id) == (0, first.member_id)


def test_a_member_id_that_is_never_used_costs_nothing_after_its_session() -> None:
    driven = Driven()
    driven.join(requires_member_id=True)
    driven.pass_time(10_000)
    assert driven.state_of() == "Dead"
    assert driven.log == []


def test_members_that_join_together_are_one_generation_and_only_its_leader_is_told_of_all() -> None:
    driven = Driven(GroupSettings(initial_rebalance_delay_ms=100))
    tokens = [driven.join() for _ in range(3)]
    assert driven.answers == {}
    driven.pass_time(250)
    joined = [driven.answers[it] for it in tokens]
    assert {it.generation_id for it in joined} == {1}
    assert len({it.leader for it in joined}) == 1
    told = {it.member_id: len(it.members) for it in joined}
    assert sorted(told.values()) == [0, 0, 3]
    assert told[joined[0].leader] == 3


def test_a_new_group_waits_again_as_long_as_more_members_come() -> None:
    driven = Driven(GroupSettings(initial_rebalance_delay_ms=100))
    tokens = [driven.join()]
    for _ in range(5):
        driven.pass_time(60)
        tokens.append(driven.join())
    driven.pass_time(200)
    assert {driven.answers[it].generation_id for it in tokens} == {1}


def test_the_assignor_that_most_prefer_among_those_that_all_know_is_chosen() -> None:
    driven = Driven()
    lists = (("a", "b", "c"), ("b", "a"), ("b", "c", "a"))
    tokens = [driven.join(protocols=tuple((it, b"") for it in names)) for names in lists]
    assert {driven.asked(it).protocol_name for it in tokens} == {"b"}


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": (("other", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_who_has_no_assignor_in_common_with_the_others_stays_out(
    changes: dict[str, Any],
) -> None:
    driven = Driven()
    driven.formed(1)
    answer = driven.asked(driven.join(**changes))
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driven.state_of() == "Stable"


def test_what_the_leader_assigns_is_stored_and_told_to_each() -> None:
    driven = Driven()
    tokens = [driven.join(), driven.join()]
    first, second = (driven.asked(it) for it in tokens)
    assert driven.state_of() == "CompletingRebalance"
    follower = driven.sync(second.member_id, 1)
    assert follower not in driven.answers
    leader = driven.sync(first.member_id, 1, member_1=b"one", member_2=b"two")
    assert driven.asked(leader).assignment == b"one"
    assert driven.asked(follower).assignment == b"two"
    assert driven.state_of() == "Stable"
    driven.fail_over()
    assert driven.state_of() == "Stable"
    assert driven.asked(driven.sync(second.member_id, 1)).assignment == b"two"


def test_a_member_of_an_older_generation_is_told_so() -> None:
    driven = Driven()
    (member,), generation = driven.formed(1)
    assert driven.heartbeat(member, generation) == ErrorCode.NONE
    assert driven.heartbeat(member, generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert driven.asked(driven.sync(member, 0)).error_code == ErrorCode.ILLEGAL_GENERATION
    assert driven.heartbeat("stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.heartbeat(member, generation, group="other") == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_learn_by_their_heartbeats_that_somebody_wants_to_join() -> None:
    driven = Driven()
    (member,), generation = driven.formed(1)
    newcomer = driven.join()
    assert driven.state_of() == "PreparingRebalance"
    assert driven.heartbeat(member, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    again = driven.join(member)
    assert driven.asked(again).generation_id == driven.asked(newcomer).generation_id == 2
    assert driven.asked(newcomer).leader == member


def test_who_does_not_join_again_in_time_is_out() -> None:
    driven = Driven()
    (lazy, eager), generation = driven.formed(2, session_timeout_ms=60_000)
    newcomer, again = driven.join(), driven.join(eager)
    driven.pass_time(30_000)
    assert driven.answers[newcomer].generation_id == driven.answers[again].generation_id == 2
    assert driven.heartbeat(lazy, generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_silent_for_its_session_is_out_and_the_others_divide_anew() -> None:
    driven = Driven()
    (silent, alive), generation = driven.formed(2)
    driven.pass_time(9_000)
    assert driven.heartbeat(alive, generation) == ErrorCode.NONE
    driven.pass_time(1_000)
    assert driven.heartbeat(alive, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = driven.asked(driven.join(alive))
    assert (joined.generation_id, len(joined.members)) == (2, 1)
    assert driven.asked(driven.join(silent)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_have_all_gone_is_empty_and_keeps_its_generation() -> None:
    driven = Driven()
    members, _ = driven.formed(2)
    assert driven.leave(*((it, None) for it in members)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert driven.state_of() == "Empty"
    driven.fail_over()
    assert driven.state_of() == "Empty"
    assert driven.asked(driven.join()).generation_id == 3


def test_who_waits_for_others_is_not_taken_for_dead() -> None:
    driven = Driven()
    (slow, quick), generation = driven.formed(2, session_timeout_ms=5_000)
    waiting = driven.join(quick, protocols=(("range", subscription("orders", "more")),))
    driven.pass_time(4_000)
    assert driven.heartbeat(slow, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    driven.pass_time(4_000)
    assert waiting not in driven.answers
    driven.join(slow)
    assert driven.asked(waiting).generation_id == 2


def test_a_member_that_never_asks_for_its_assignment_is_out() -> None:
    driven = Driven()
    tokens = [driven.join(session_timeout_ms=120_000) for _ in range(2)]
    first, second = (driven.asked(it) for it in tokens)
    driven.sync(first.member_id, 1, member_1=b"all")
    driven.pass_time(30_000)
    assert driven.heartbeat(first.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert driven.heartbeat(second.member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_joins_again_begins_a_new_generation_and_a_follower_does_not() -> None:
    driven = Driven()
    (leader, follower), generation = driven.formed(2)
    again = driven.asked(driven.join(follower))
    assert (again.generation_id, again.leader, again.members) == (generation, leader, [])
    driven.join(leader)
    assert driven.state_of() == "PreparingRebalance"


def test_a_group_has_no_more_members_than_it_may() -> None:
    driven = Driven(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    driven.formed(2)
    assert driven.asked(driven.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("session_timeout_ms", [999, 1_800_001])
def test_a_session_is_neither_too_short_nor_too_long(session_timeout_ms: int) -> None:
    driven = Driven()
    answer = driven.asked(driven.join(session_timeout_ms=session_timeout_ms))
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert driven.state_of() == "Dead"


def test_a_static_member_that_comes_back_goes_on_where_it_was_and_nobody_else_notices() -> None:
    driven = Driven()
    leader = driven.join(instance_id="one")
    other = driven.join(instance_id="two")
    first, second = driven.asked(leader), driven.asked(other)
    driven.sync(first.member_id, 1, member_1=b"one", member_2=b"two")
    driven.sync(second.member_id, 1)
    back = driven.asked(driven.join(instance_id="two"))
    assert (back.error_code, back.generation_id, back.members) == (0, 1, [])
    assert back.member_id != second.member_id
    assert driven.state_of() == "Stable"
    assert driven.asked(driven.sync(back.member_id, 1)).assignment == b"two"
    fenced = driven.heartbeat(second.member_id, 1, instance_id="two")
    assert fenced == ErrorCode.FENCED_INSTANCE_ID
    driven.fail_over()
    assert driven.heartbeat(back.member_id, 1, instance_id="two") == ErrorCode.NONE


def test_a_static_leader_that_comes_back_is_told_not_to_assign_anew() -> None:
    driven = Driven()
    first = driven.asked(driven.join(instance_id="one"))
    driven.sync(first.member_id, 1, member_1=b"one")
    back = driven.asked(driven.join(instance_id="one"))
    assert (back.skip_assignment, back.leader, len(back.members)) == (True, back.member_id, 1)
    older = driven.asked(driven.join(instance_id="one", may_skip_assignment=False))
    assert (older.skip_assignment, older.members) == (False, [])
    assert older.leader != older.member_id


def test_a_static_member_whose_place_is_taken_while_it_waits_is_fenced() -> None:
    driven = Driven()
    driven.formed(1)
    waiting = driven.join(instance_id="one")
    driven.join(instance_id="one")
    assert driven.asked(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_an_administrator_removes_a_static_member_by_its_name() -> None:
    driven = Driven()
    driven.asked(driven.join(instance_id="one"))
    codes = driven.leave(("", "one"), ("", "nobody"), ("wrong", None))
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert driven.state_of() == "Empty"


def test_no_generation_is_given_out_twice_even_if_the_coordinator_dies_before_it_is_assigned() -> (
    None
):
    driven = Driven()
    first = driven.asked(driven.join())
    assert first.generation_id == 1
    driven.fail_over()
    assert driven.state_of() == "CompletingRebalance"
    driven.join()
    assert driven.asked(driven.join(first.member_id)).generation_id == 2


def test_a_group_that_was_loaded_gives_its_members_a_whole_session_to_be_heard_of() -> None:
    driven = Driven()
    (member,), generation = driven.formed(1)
    driven.now_ms += 9_000
    driven.fail_over()
    driven.pass_time(9_000)
    assert driven.heartbeat(member, generation) == ErrorCode.NONE
    driven.pass_time(10_000)
    assert driven.heartbeat(member, generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_is_described_with_its_members_and_found_by_its_state() -> None:
    driven = Driven()
    members, _ = driven.formed(2)
    token = driven.token()
    driven.carry_out(driven.groups.describe(token, "g"))
    described = driven.answers[token]
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert [it.member_id for it in described.members] == members
    assert [it.member_assignment for it in described.members] == [it.encode() for it in members]
    assert described.members[0].member_metadata == subscription("orders")
    assert driven.listed() == driven.listed("stable") == ["g"]
    assert driven.listed("Empty") == []


def test_every_state_can_be_left_and_reached() -> None:
    assert set(MAY_FOLLOW) == set(State)
    assert set().union(*MAY_FOLLOW.values()) == set(State)
    assert all(MAY_FOLLOW.values())
