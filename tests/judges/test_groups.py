"""Groups of consumers: partitions are shared, handed over and read on from where others were."""

import subprocess
import time

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place

from tests.helpers import eventually, unique
from tests.judges.confluent import TIMEOUT_S, Confluent, result
from tests.judges.judge import Message, RefusedError
from tests.judges.member import KINDS
from tests.judges.membership import members

PARTITIONS = 6


@pytest.fixture
def six(confluent: Confluent) -> str:
    name = unique("shared")
    confluent.create_topic(name, partitions=PARTITIONS)
    return name


def fill(confluent: Confluent, topic: str, count: int, first: int = 0) -> set[tuple[int, int]]:
    """The places of so many more messages in every partition."""
    for partition in range(PARTITIONS):
        messages = [Message(b"%d" % number) for number in range(count)]
        confluent.produce(topic, messages, partition=partition)
    return {(it, first + number) for it in range(PARTITIONS) for number in range(count)}


def committed(confluent: Confluent, group: str, topic: str) -> dict[int, int]:
    wanted = ConsumerGroupTopicPartitions(group, [Place(topic, it) for it in range(PARTITIONS)])
    found = result(confluent.admin.list_consumer_group_offsets([wanted]))
    return {it.partition: it.offset for it in found.topic_partitions}


@pytest.mark.parametrize("kind", KINDS)
def test_members_share_partitions_and_take_over_from_those_who_leave_or_die(
    confluent: Confluent, six: str, kind: str
) -> None:
    group = unique("group")
    places = fill(confluent, six, 50)
    with members(kind, confluent.bootstrap, group, six) as group_members:
        one, two, three = group_members.start(3)
        eventually(lambda: group_members.share(PARTITIONS), 60)
        assert [len(it.owned) for it in (one, two, three)] == [2, 2, 2]
        eventually(lambda: set(group_members.processed) == places, 30)

        group_members.leave(one)
        eventually(lambda: group_members.share(PARTITIONS), 30)
        group_members.kill(two)
        eventually(lambda: group_members.share(PARTITIONS), 30)
        places |= fill(confluent, six, 20, first=50)
        eventually(lambda: set(group_members.processed) == places, 30)
        eventually(lambda: set(committed(confluent, group, six).values()) == {70}, 30)
        group_members.leave(three)

    with members(kind, confluent.bootstrap, group, six) as group_members:
        group_members.start(1)
        new = fill(confluent, six, 5, first=70)
        eventually(lambda: set(group_members.processed) >= new, 60)
        assert set(group_members.processed) == new


def test_kcat_reads_as_a_member_of_a_group(confluent: Confluent, six: str) -> None:
    group = unique("group")
    fill(confluent, six, 10)

    options = ["-q", "-X", "auto.offset.reset=earliest"]

    def read(count: int) -> list[str]:
        done = subprocess.run(
            ["kcat", "-b", confluent.bootstrap, *options, "-c", str(count), "-G", group, six],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return done.stdout.decode().split()

    assert len(read(60)) == 60
    fill(confluent, six, 3)
    assert sorted(read(18)) == sorted(["0", "1", "2"] * PARTITIONS)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_every_assignor_divides_all_partitions(
    confluent: Confluent, six: str, strategy: str
) -> None:
    setting = {"partition_assignment_strategy": strategy}
    with members("confluent-kafka", confluent.bootstrap, unique("group"), six) as group_members:
        group_members.start(2, **setting)
        eventually(lambda: group_members.share(PARTITIONS), 60)
        first = group_members.alive[0]
        kept = set(first.owned)
        group_members.start(1, **setting)
        eventually(lambda: len(group_members.alive[2].owned) == 2, 60)
        eventually(lambda: group_members.share(PARTITIONS), 60)
        if strategy == "cooperative-sticky":
            assert first.owned <= kept


def test_a_static_member_that_is_restarted_keeps_its_partitions_and_disturbs_nobody(
    confluent: Confluent, six: str
) -> None:
    # Its place is kept for as long as a new process may take to start on a busy machine.
    patient = {"session_timeout_ms": "60000"}
    with members("confluent-kafka", confluent.bootstrap, unique("group"), six) as group_members:
        (one,) = group_members.start(1, group_instance_id="one", **patient)
        (two,) = group_members.start(1, group_instance_id="two", **patient)
        eventually(lambda: group_members.share(PARTITIONS), 60)
        kept, calm = set(one.owned), len(two.assignments)
        group_members.kill(one)
        (again,) = group_members.start(1, group_instance_id="one", **patient)
        eventually(lambda: again.owned == kept, 30)
        assert len(two.assignments) == calm
        assert set(two.owned) == set(range(PARTITIONS)) - kept


def test_an_administrator_lists_describes_moves_and_deletes_a_group(
    confluent: Confluent, six: str
) -> None:
    group = unique("group")
    admin = confluent.admin
    fill(confluent, six, 10)
    with members("confluent-kafka", confluent.bootstrap, group, six) as group_members:
        (one,) = group_members.start(1)
        eventually(lambda: len(group_members.processed) == 60, 60)
        listed = {it.group_id: it.state for it in admin.list_consumer_groups().result().valid}
        assert listed[group] == ConsumerGroupState.STABLE
        described = result(admin.describe_consumer_groups([group]))
        (member,) = described.members
        assert member.client_id == "rdkafka"
        assert {it.partition for it in member.assignment.topic_partitions} == set(range(6))
        with pytest.raises(RefusedError):
            result(admin.delete_consumer_groups([group]))
        # It commits what it has said a moment before, unless it is told to leave in between.
        eventually(lambda: set(committed(confluent, group, six).values()) == {10})
        group_members.leave(one)
    back = ConsumerGroupTopicPartitions(group, [Place(six, 0, 4), Place(six, 1, 7)])
    result(admin.alter_consumer_group_offsets([back]))
    assert committed(confluent, group, six) == {0: 4, 1: 7, 2: 10, 3: 10, 4: 10, 5: 10}
    with members("confluent-kafka", confluent.bootstrap, group, six) as group_members:
        group_members.start(1)
        eventually(lambda: len(group_members.processed) == 9, 60)
        assert {it[0] for it in group_members.processed} == {0, 1}
    eventually(lambda: result(admin.describe_consumer_groups([group])).state.name == "EMPTY", 30)
    result(admin.delete_consumer_groups([group]))
    assert group not in {it.group_id for it in admin.list_consumer_groups().result().valid}


def test_a_commit_keeps_what_it_says_about_itself(confluent: Confluent, six: str) -> None:
    consumer = Consumer({"bootstrap.servers": confluent.bootstrap, "group.id": unique("group")})
    place = Place(six, 0, 3, metadata=f"at {time.time()}")
    consumer.commit(offsets=[place], asynchronous=False)
    (found,) = consumer.committed([Place(six, 0)], TIMEOUT_S)
    assert (found.offset, found.metadata) == (3, place.metadata)
    consumer.close()
