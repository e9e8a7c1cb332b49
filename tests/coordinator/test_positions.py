"""Committed positions: who may set them, how long they last, and what transactions do to them."""

import pytest

from sapwood.coordinator.group import GroupSettings
from sapwood.coordinator.group_records import group_key, offset_key, offset_value
from sapwood.coordinator.stored import version_of
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.coordinator.driving import TOPIC_ID, Driven

DAY_MS = 24 * 60 * 60_000


def test_a_position_is_what_was_committed_last_and_survives_the_coordinator() -> None:
    driven = Driven()
    assert driven.fetch() == -1
    assert driven.commit(5, metadata="half-way") == ErrorCode.NONE
    driven.commit(7, metadata="further")
    driven.fail_over()
    assert driven.fetch() == 7
    assert driven.groups.offsets.of("g")["orders", 0].metadata == "further"
    assert driven.listed("Empty") == ["g"]


def test_only_members_of_this_generation_commit_for_a_group_that_has_members() -> None:
    driven = Driven()
    (member,), generation = driven.formed(1)
    assert driven.commit(5, member, generation) == ErrorCode.NONE
    assert driven.commit(6, member, generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert driven.commit(6, "stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.commit(6) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.commit(6, member, 3, group="nobody") == ErrorCode.ILLEGAL_GENERATION
    assert driven.fetch() == 5


def test_a_member_may_still_commit_while_others_are_waited_for_but_not_before_it_has_asked() -> (
    None
):
    driven = Driven()
    (member,), generation = driven.formed(1)
    driven.join()
    assert driven.commit(5, member, generation) == ErrorCode.NONE
    again = driven.asked(driven.join(member))
    assert driven.commit(6, member, again.generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert driven.commit(6, member, generation) == ErrorCode.ILLEGAL_GENERATION


def test_a_commit_is_a_sign_of_life() -> None:
    driven = Driven()
    (member,), generation = driven.formed(1)
    for offset in range(3):
        driven.pass_time(9_000)
        assert driven.commit(offset, member, generation) == ErrorCode.NONE


def test_a_position_in_a_transaction_counts_when_the_transaction_commits() -> None:
    driven = Driven()
    driven.commit(5)
    driven.commit(9, producer_id=4)
    assert driven.fetch() == 5
    assert driven.fetch(stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    driven.fail_over()
    assert driven.fetch(stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    driven.settle(4, committed=True)
    assert driven.fetch() == driven.fetch(stable=True) == 9
    driven.fail_over()
    assert driven.fetch(stable=True) == 9


def test_a_position_in_a_transaction_that_aborts_never_was() -> None:
    driven = Driven()
    driven.commit(9, producer_id=4)
    driven.settle(4, committed=False)
    assert driven.fetch(stable=True) == -1
    driven.fail_over()
    assert driven.fetch(stable=True) == -1


def test_an_ordinary_commit_after_one_in_a_transaction_is_newer_whenever_that_ends() -> None:
    driven = Driven()
    driven.commit(9, producer_id=4)
    driven.commit(12)
    driven.settle(4, committed=True)
    assert driven.fetch() == 12
    driven.fail_over()
    assert driven.fetch() == 12


def test_positions_of_a_group_without_members_are_forgotten_after_their_retention() -> None:
    driven = Driven(GroupSettings(offsets_retention_ms=DAY_MS))
    driven.commit(5)
    driven.commit(6, group="orders\u241falice")
    driven.pass_time(DAY_MS // 2)
    driven.commit(7, group="younger")
    driven.pass_time(DAY_MS // 2 + 600_000)
    assert driven.listed() == ["orders\u241falice", "younger"]
    driven.fail_over()
    assert driven.listed() == ["orders\u241falice", "younger"]
    driven.pass_time(100 * DAY_MS)
    assert driven.listed() == ["orders\u241falice"]


def test_positions_of_a_group_with_members_are_kept_and_the_clock_starts_when_it_is_empty() -> None:
    driven = Driven(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    (member,), generation = driven.formed(1, session_timeout_ms=1_800_000)
    driven.commit(5, member, generation)
    for _ in range(2 * 48):
        driven.pass_time(1_700_000)
        driven.heartbeat(member, generation)
    assert driven.fetch() == 5
    driven.leave((member, None))
    driven.pass_time(DAY_MS // 2)
    assert driven.fetch() == 5
    driven.pass_time(DAY_MS)
    assert driven.listed() == []
    driven.fail_over()
    assert driven.listed() == []


def test_positions_go_with_their_topic_and_only_if_it_is_known_to_be_deleted() -> None:
    driven = Driven()
    driven.commit(5)
    del driven.topics.known["orders"]
    driven.carry_out(driven.groups.topics_changed(driven.now_ms))
    assert driven.fetch() == 5
    driven.topics.deleted.add(TOPIC_ID)
    driven.carry_out(driven.groups.topics_changed(driven.now_ms))
    assert driven.fetch() == -1
    driven.fail_over()
    assert driven.fetch() == -1


def test_a_group_is_deleted_with_its_positions_unless_it_has_members() -> None:
    driven = Driven()
    (member,), generation = driven.formed(1)
    driven.commit(5, member, generation)
    with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
        driven.groups.delete(driven.token(), "g")
    driven.leave((member, None))
    driven.carry_out(driven.groups.delete(driven.token(), "g"))
    assert driven.listed() == []
    driven.fail_over()
    assert driven.listed() == []
    assert driven.fetch() == -1


def test_a_position_is_deleted_unless_a_member_is_subscribed_to_its_topic() -> None:
    driven = Driven()
    (member,), generation = driven.formed(1)
    driven.commit(5, member, generation)
    driven.commit(6, member, generation, place=("other", 0))
    token = driven.token()
    places = [("orders", 0), ("other", 0)]
    driven.carry_out(driven.groups.delete_offsets(token, "g", places))
    assert driven.answers[token].errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    driven.fail_over()
    assert driven.fetch() == 5
    assert driven.fetch(place=("other", 0)) == -1


def test_records_are_in_the_formats_that_kafkas_tools_read() -> None:
    driven = Driven()
    driven.formed(1)
    driven.commit(5, group="h", metadata="m")
    kinds = [(version_of(key), version_of(value or b"")) for key, value, _ in driven.log]
    assert kinds == [(2, 3), (2, 3), (1, 4)]
    assert group_key.decode(driven.log[0][0]).group == "g"
    key, value = offset_key.decode(driven.log[-1][0]), offset_value.decode(driven.log[-1][1] or b"")
    assert (key.group, key.topic, key.partition) == ("h", "orders", 0)
    assert (value.offset, value.metadata, value.topic_id) == (5, "m", TOPIC_ID)
    assert driven.log[-1][0] == b"\0\1" + b"\0\1h" + b"\0\6orders" + b"\0\0\0\0"
