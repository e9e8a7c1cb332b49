"""A group of the newer protocol: who joins, leaves, dies, is told what, and is refused."""

from typing import Any

import pytest

from sapwood.coordinator.consumer_group import WAITING_INTERVAL_MS, ConsumerGroup
from sapwood.coordinator.consumer_member import MemberState
from sapwood.coordinator.consumer_subscriptions import MAX_PATTERNS
from sapwood.coordinator.group import GroupSettings
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.coordinator.consumers import REBALANCE_MS, Consumer, TopicTable, settle

SETTINGS = GroupSettings(consumer_max_size=3)
SESSION_MS = SETTINGS.consumer_session_timeout_ms


@pytest.fixture
def topics() -> TopicTable:
    return TopicTable(orders=6)


@pytest.fixture
def group(topics: TopicTable) -> ConsumerGroup:
    return ConsumerGroup("readers", topics, SETTINGS)


def refused(code: ErrorCode) -> "pytest.RaisesExc[KafkaError]":
    return pytest.raises(KafkaError, check=lambda error: error.code is code)


def indexes(consumer: Consumer) -> list[int]:
    return sorted(index for _, index in consumer.owned)


def test_the_first_member_gets_everything_at_once(group: ConsumerGroup) -> None:
    assert group.state == "Empty"
    alice = Consumer(group, "alice")
    alice.beat()
    alice.take()
    assert indexes(alice) == [0, 1, 2, 3, 4, 5]
    assert alice.epoch == group.group_epoch == group.assignment_epoch == 1
    assert alice.interval_ms == SETTINGS.consumer_heartbeat_interval_ms
    assert group.state == "Stable"


def test_a_second_member_gets_nothing_before_the_first_has_let_go(group: ConsumerGroup) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob")
    alice.beat()
    alice.take()
    bob.beat()
    bob.take()
    assert indexes(bob) == []
    assert bob.epoch == 2
    assert bob.interval_ms == WAITING_INTERVAL_MS  # it is worth asking again soon
    assert group.state == "Reconciling"

    alice.send()  # a heartbeat that says nothing new: it is told, but has not let go
    assert group.current["alice"].state is MemberState.UNREVOKED
    assert alice.epoch == 1
    bob.beat()
    assert bob.target == frozenset()

    alice.beat(full=True)  # still says that it has everything, and is told again
    assert indexes(alice) == [0, 1, 2]
    alice.beat()
    assert alice.epoch == 2
    bob.beat()
    bob.take()
    assert indexes(bob) == [3, 4, 5]
    assert group.state == "Stable"


def test_what_a_member_leaves_goes_to_the_others(group: ConsumerGroup) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob")
    settle(alice, bob)
    alice.leave()
    settle(bob)
    assert indexes(bob) == [0, 1, 2, 3, 4, 5]
    bob.leave()
    assert group.state == "Empty"
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        bob.leave()


def test_a_member_that_falls_silent_is_removed_when_its_session_ends(group: ConsumerGroup) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob")
    settle(alice, bob)
    assert group.wake_at_ms <= SESSION_MS
    bob.beat(now_ms=1000)
    group.tick(SESSION_MS - 1)
    assert len(group.members) == 2
    group.tick(SESSION_MS)
    assert list(group.members) == ["bob"]
    assert group.wake_at_ms == SESSION_MS + 1000
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        alice.send()


def test_a_member_that_does_not_let_go_in_time_is_removed(group: ConsumerGroup) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob")
    alice.beat()
    alice.take()
    bob.beat()
    alice.send(now_ms=1000)
    bob.beat(now_ms=20_000)
    alice.send(now_ms=20_000)  # alive, but it keeps what it has
    group.tick(1000 + REBALANCE_MS - 1)
    assert "alice" in group.members
    group.tick(1000 + REBALANCE_MS)
    assert list(group.members) == ["bob"]
    bob.beat(now_ms=1000 + REBALANCE_MS)
    bob.take()
    assert len(bob.owned) == 6


def test_a_lost_answer_is_given_again_to_who_has_nothing_more_than_it_was_left(
    group: ConsumerGroup,
) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob")
    settle(alice)
    bob.beat()
    alice.beat()  # told to give up half of it
    alice.beat(answer_is_lost=True)  # says that it has; the new epoch doesn't arrive
    assert alice.epoch < group.current["alice"].member_epoch
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        alice.send()  # it doesn't say what it has
    alice.beat(full=True)
    assert alice.epoch == group.assignment_epoch
    assert indexes(alice) == [0, 1, 2]


@pytest.mark.parametrize("ahead", [-1, 1])
def test_a_member_with_another_epoch_is_fenced(group: ConsumerGroup, ahead: int) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob")
    settle(alice, bob)
    alice.leave()
    settle(alice, bob)
    bob.epoch += 3 * ahead
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        bob.send(topic_partitions=[])


def test_a_fenced_member_that_joins_again_gets_its_partitions_back(group: ConsumerGroup) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob")
    settle(alice, bob)
    had, epoch = alice.owned, group.group_epoch
    alice.lose()
    settle(alice)
    assert alice.owned == had
    assert group.group_epoch == epoch


def test_a_static_member_that_comes_back_under_another_id_finds_all_as_it_was(
    group: ConsumerGroup,
) -> None:
    alice = Consumer(group, "alice", instance_id="desk")
    bob = Consumer(group, "bob")
    settle(alice, bob)
    had, epoch = alice.owned, group.group_epoch
    with refused(ErrorCode.UNRELEASED_INSTANCE_ID):
        Consumer(group, "alice-2", instance_id="desk").beat()
    alice.leave(for_a_while=True)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        group.check_commit("alice", None, epoch, 0, transactional=False)
    settle(bob)
    assert len(bob.owned) == 3

    again = Consumer(group, "alice-2", instance_id="desk")
    again.beat()
    again.take()
    assert again.owned == had
    assert group.group_epoch == epoch
    assert "alice" not in group.members
    alice.epoch = epoch
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        alice.send(instance_id="desk")


def test_a_static_member_that_stays_away_is_removed_when_its_session_ends(
    group: ConsumerGroup,
) -> None:
    alice = Consumer(group, "alice", instance_id="desk")
    settle(alice)
    alice.leave(for_a_while=True)
    group.tick(SESSION_MS)
    assert group.state == "Empty"


def test_new_partitions_and_new_topics_are_handed_out(
    group: ConsumerGroup, topics: TopicTable
) -> None:
    alice = Consumer(group, "alice", names=["orders", "later"])
    settle(alice)
    topics.make("orders", 8)
    group.topics_changed(0)
    settle(alice)
    assert len(alice.owned) == 8
    topics.make("later", 2)
    topics.make("unrelated", 2)
    group.topics_changed(0)
    settle(alice)
    assert len(alice.owned) == 10
    epoch = group.group_epoch
    topics.make("unrelated", 3)
    group.topics_changed(0)
    assert group.group_epoch == epoch


def test_a_topic_that_is_deleted_and_made_again_is_another_one(
    group: ConsumerGroup, topics: TopicTable
) -> None:
    alice = Consumer(group, "alice")
    settle(alice)
    del topics.facts["orders"]
    group.topics_changed(0)
    settle(alice)
    assert alice.owned == frozenset()
    topics.make("orders", 2)
    group.topics_changed(0)
    settle(alice)
    assert indexes(alice) == [0, 1]


def test_a_pattern_follows_the_topics_that_there_are(
    group: ConsumerGroup, topics: TopicTable
) -> None:
    alice = Consumer(group, "alice", names=None, regex="or.*|__.*")
    topics.make("__internal", 1)
    settle(alice)
    assert len(alice.owned) == 6
    topics.make("oranges", 1)
    group.topics_changed(0)
    settle(alice)
    assert len(alice.owned) == 7
    assert group.subscribes_to("oranges")
    assert not group.subscribes_to("__internal")
    with refused(ErrorCode.INVALID_REGULAR_EXPRESSION):
        alice.send(subscribed_topic_regex="(")
    alice.regex, alice.names = "", ["oranges"]
    alice.beat(full=True)
    settle(alice)
    assert len(alice.owned) == 1


def test_a_group_has_a_bounded_number_of_patterns(topics: TopicTable) -> None:
    group = ConsumerGroup("readers", topics, GroupSettings())
    members = [Consumer(group, f"m{it}", None, regex=f"a{it}") for it in range(MAX_PATTERNS)]
    settle(*members)
    more = Consumer(group, "more", None, regex="b")
    with refused(ErrorCode.INVALID_REQUEST):
        more.beat()
    members[0].leave()
    more.beat()


def test_a_group_takes_the_assignor_that_most_members_ask_for(group: ConsumerGroup) -> None:
    names = ["orders"]
    consumers = [
        Consumer(group, "a", names, assignor="range"),
        Consumer(group, "b", names, assignor="range"),
        Consumer(group, "c", names, assignor="uniform"),
    ]
    assert group.assignor == "uniform"
    settle(*consumers)
    assert group.assignor == "range"
    assert [indexes(it) for it in consumers] == [[0, 1], [2, 3], [4, 5]]


def test_a_full_group_takes_nobody_else(group: ConsumerGroup) -> None:
    settle(*(Consumer(group, name) for name in "abc"))
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        Consumer(group, "d").beat()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"rebalance_timeout": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": "x" * 200_000}, ErrorCode.INVALID_REQUEST),
        (
            {"topic_partitions": [Struct(topic_id=bytes(16), partitions=range(200_000))]},
            ErrorCode.INVALID_REQUEST,
        ),
        ({"server_assignor": "fair"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "["}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_a_bad_join_is_refused_and_changes_nothing(
    group: ConsumerGroup, said: dict[str, Any], code: ErrorCode
) -> None:
    good: dict[str, Any] = {
        "rebalance_timeout": 1000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    with refused(code):
        Consumer(group, "alice").send(**{**good, **said})
    assert group.describe().group_epoch == 0
    Consumer(group, "alice").send(**good)


@pytest.mark.parametrize(("member_id", "epoch"), [("", 0), ("alice", -2), ("alice", -3)])
def test_bad_identities_are_refused(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        Consumer(group, member_id, epoch=epoch).beat()


def test_commits_are_held_against_the_member_epoch(group: ConsumerGroup) -> None:
    group.check_commit("", None, -1, 0, transactional=False)  # nobody is there whom it could harm
    alice = Consumer(group, "alice")
    settle(alice)
    group.check_commit("alice", None, alice.epoch, 0, transactional=False)
    group.check_commit("", None, -1, 0, transactional=True)
    group.check_fetch(None, -1)
    group.check_fetch("alice", alice.epoch)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        group.check_commit("alice", None, alice.epoch - 1, 0, transactional=False)
    with refused(ErrorCode.ILLEGAL_GENERATION):
        group.check_commit("alice", None, alice.epoch + 1, 0, transactional=True)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        group.check_fetch("alice", alice.epoch + 1)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.check_commit("bob", None, alice.epoch, 0, transactional=False)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.check_commit("", None, -1, 0, transactional=False)


def test_a_description_tells_who_has_what_and_who_should(group: ConsumerGroup) -> None:
    alice, bob = Consumer(group, "alice"), Consumer(group, "bob", instance_id="desk")
    settle(alice)
    bob.beat()
    described = group.describe()
    assert (described.group_state, described.group_epoch) == ("Reconciling", 2)
    assert described.assignor_name == "uniform"
    first, second = described.members
    assert (first.member_id, first.client_id, first.client_host) == ("alice", "client", "host")
    assert [len(it.partitions) for it in first.assignment.topic_partitions] == [6]
    assert [len(it.partitions) for it in first.target_assignment.topic_partitions] == [3]
    assert second.assignment.topic_partitions == []
    assert second.instance_id == "desk"
    assert second.target_assignment.topic_partitions[0].topic_name == "orders"
