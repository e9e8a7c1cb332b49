"""A group is of one protocol at a time, and changes it when nobody is in it."""

import pytest

from sapwood.coordinator.consumer_heartbeat import checked_heartbeat
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.coordinator.consumers import request
from tests.coordinator.driving import Driven


@pytest.fixture
def driven() -> Driven:
    return Driven()


def refused(code: ErrorCode) -> "pytest.RaisesExc[KafkaError]":
    return pytest.raises(KafkaError, check=lambda error: error.code is code)


def beat(driven: Driven, epoch: int = 0, group: str = "g") -> Struct:
    """A heartbeat of the newer protocol; epoch 0 joins."""
    asked = request("newer", epoch)
    if epoch == 0:
        asked.rebalance_timeout, asked.topic_partitions = 1000, []
        asked.subscribed_topic_names = ["orders"]
    checked = checked_heartbeat(asked, "client", "host")
    token = driven.token()
    driven.carry_out(driven.groups.consumer_heartbeat(token, group, checked, driven.now_ms))
    return driven.answers[token]


def type_of(driven: Driven) -> str:
    found = driven.groups.find("g")
    return "none" if found is None else found.type


def test_positions_outlive_changes_of_the_protocol_and_of_the_node(driven: Driven) -> None:
    driven.commit(7)
    assert type_of(driven) == "classic"
    assert beat(driven).member_epoch == 1
    for _ in range(2):
        assert (type_of(driven), driven.state_of()) == ("consumer", "Stable")
        assert driven.fetch() == 7
        driven.fail_over()
    beat(driven, epoch=-1)

    (member,), _ = driven.formed(1)
    for _ in range(2):
        assert (type_of(driven), driven.state_of()) == ("classic", "Stable")
        assert driven.fetch() == 7
        driven.fail_over()
    driven.leave((member, None))

    assert beat(driven).member_epoch == 1
    driven.fail_over()
    assert (type_of(driven), driven.state_of()) == ("consumer", "Stable")
    assert driven.fetch() == 7


def test_classic_members_keep_the_newer_protocol_out(driven: Driven) -> None:
    driven.formed(1)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        beat(driven)


def test_members_of_the_newer_protocol_keep_classic_ones_out(driven: Driven) -> None:
    beat(driven)
    code = driven.asked(driven.join()).error_code
    assert code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_of_a_group_that_is_gone_is_told_to_join(driven: Driven) -> None:
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        beat(driven, epoch=5)
    assert driven.listed() == []


def test_commits_of_members_are_held_against_their_epoch(driven: Driven) -> None:
    beat(driven)
    assert driven.commit(3, "newer", 1) is ErrorCode.NONE
    assert driven.commit(4, "newer", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert driven.commit(4, "other", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.commit(4, "newer", 0, producer_id=9) is ErrorCode.ILLEGAL_GENERATION
    assert driven.commit(4) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.fetch() == 3


def test_a_deleted_group_leaves_nothing(driven: Driven) -> None:
    beat(driven)
    with refused(ErrorCode.NON_EMPTY_GROUP):
        driven.groups.delete("token", "g")
    beat(driven, epoch=-1)
    driven.carry_out(driven.groups.delete("token", "g"))
    driven.fail_over()
    assert driven.listed() == []
    assert set({key: value for key, value, _ in driven.log}.values()) == {None}


def test_a_member_that_fell_silent_before_the_coordinator_moved_is_removed_after(
    driven: Driven,
) -> None:
    beat(driven)
    driven.fail_over()
    driven.pass_time(driven.settings.consumer_session_timeout_ms)
    assert (type_of(driven), driven.state_of()) == ("consumer", "Empty")


def test_a_durable_subscription_that_ends_while_it_is_used_leaves_nothing_in_the_log(
    driven: Driven,
) -> None:
    driven.commit(5, group="orders␟alice")
    beat(driven, group="orders␟alice")
    driven.carry_out(driven.groups.delete(driven.token(), "orders␟alice"))
    # As compaction leaves it: the last of each key, and of those that are gone nothing.
    last = {key: (key, value, None) for key, value, _ in driven.log}
    driven.log = [it for it in last.values() if it[1] is not None]
    driven.fail_over()
    assert driven.listed() == []
    assert driven.log == []


def test_a_process_that_has_not_heard_of_the_end_of_its_subscription_leaves_nothing_for_ever(
    driven: Driven,
) -> None:
    driven.commit(5, group="orders␟alice")
    beat(driven, group="orders␟alice")
    driven.carry_out(driven.groups.delete(driven.token(), "orders␟alice"))
    beat(driven, group="orders␟alice")
    driven.pass_time(driven.settings.offsets_retention_ms + 1_000_000)
    assert driven.listed() == []


def test_a_durable_subscription_can_begin_while_a_process_of_its_id_is_there(
    driven: Driven,
) -> None:
    """One that has not heard of the end of the subscription before, say."""
    for group in ("g", "orders␟alice"):
        beat(driven, group=group)
    assert driven.commit(5, group="g", metadata="subscribed") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.commit(5, group="orders␟alice") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.commit(5, group="orders␟alice", metadata="subscribed") is ErrorCode.NONE
    assert driven.commit(9, group="orders␟alice", metadata="subscribed") is ErrorCode.NONE
    assert driven.fetch("orders␟alice") == 5


def test_only_a_durable_subscription_begins_with_a_position_that_gives_way(driven: Driven) -> None:
    for group, kept in (("g", 9), ("orders␟alice", 5)):
        driven.commit(5, group=group, metadata="subscribed")
        driven.commit(9, group=group, metadata="subscribed")
        assert driven.fetch(group) == kept
