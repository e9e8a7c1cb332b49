"""K4: consumer groups of the newer protocol: members come, go and die; so does the coordinator."""

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from types import TracebackType

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import sapwood
from sapwood.coordinator.sharding import shard_of
from tests.helpers import eventually, unique

PARTITIONS = 12
SHARDS = 16
SESSION_MS = 8000  # nobody is to be thought dead because the machine is busy
QUICK = {"group.consumer.session.timeout.ms": SESSION_MS}

DOOMED = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer",
    "auto.offset.reset": "earliest", "enable.auto.commit": False,
})
consumer.subscribe([topic], on_assign=lambda _, got: got and print(len(got), flush=True))
while True:
    consumer.poll(0.1)
"""


class Owners:
    """Who has which partition, by what the members themselves have been told."""

    def __init__(self) -> None:
        self.of: dict[int, str] = {}

    def assign(self, name: str, partitions: list[TopicPartition]) -> None:
        for it in partitions:
            if (owner := self.of.get(it.partition, name)) != name:
                raise AssertionError(f"{name} gets {it.partition}, which {owner} has")
            self.of[it.partition] = name

    def revoke(self, name: str, partitions: list[TopicPartition]) -> None:
        for it in partitions:
            if self.of.get(it.partition) == name:
                del self.of[it.partition]


class Member:
    """A consumer that reads and commits; positions that it goes on from are the group's."""

    def __init__(
        self, owners: Owners, bootstrap: str, group: str, topic: str, **more: object
    ) -> None:
        self.name = unique("member")
        self.values: list[bytes] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **more,
            }
        )
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, got: owners.assign(self.name, got),
            on_revoke=lambda _, lost: owners.revoke(self.name, lost),
            on_lost=lambda _, lost: owners.revoke(self.name, lost),
        )

    def __enter__(self) -> "Member":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.consumer.close()

    def poll(self) -> None:
        message = self.consumer.poll(0.01)
        if message is None or message.error():
            return
        self.values.append(message.value() or b"")
        # A commit that is refused is one of a member that no longer owns what it has read.
        with contextlib.suppress(KafkaException):
            self.consumer.commit(message=message, asynchronous=False)

    @property
    def share(self) -> int:
        return len(self.consumer.assignment())


def shares(*members: Member) -> list[int]:
    for member in members:
        member.poll()
    return sorted(member.share for member in members)


def settle(*members: Member) -> None:
    """Until everybody has a fair share."""
    fair = PARTITIONS // len(members)
    eventually(lambda: shares(*members) == [fair] * len(members), 40)


def put(bootstrap: str, topic: str, label: str) -> list[bytes]:
    """A few records into every partition; their values."""
    producer = Producer({"bootstrap.servers": bootstrap})
    values = [
        b"%s %d %d" % (label.encode(), partition, it)
        for partition in range(PARTITIONS)
        for it in range(5)
    ]
    for value in values:
        producer.produce(topic, value, partition=int(value.split()[-2]))
    assert producer.flush(30) == 0
    return values


def got_all(values: list[bytes], *members: Member) -> bool:
    shares(*members)
    return set(values) <= {value for member in members for value in member.values}


@pytest.fixture(scope="module")
def three() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3, config=QUICK) as cluster:
        yield cluster


@pytest.fixture
def topic(three: sapwood.Cluster) -> str:
    three.wait_healthy()
    name = unique("k4")
    three.create_topics({name: PARTITIONS})
    return name


def test_k4_members_share_what_there_is_and_each_record_is_read_once(
    three: sapwood.Cluster, topic: str
) -> None:
    owners = Owners()
    with (
        Member(owners, three.bootstrap, topic, topic) as first,
        Member(owners, three.bootstrap, topic, topic) as second,
    ):
        settle(first, second)
        with Member(owners, three.bootstrap, topic, topic) as third:
            settle(first, second, third)
            values = put(three.bootstrap, topic, "of three")
            eventually(lambda: got_all(values, first, second, third), 40)
            assert max(Counter(first.values + second.values + third.values).values()) == 1
        settle(first, second)
        values = put(three.bootstrap, topic, "of two")
        eventually(lambda: got_all(values, first, second), 40)
        assert max(Counter(first.values + second.values).values()) == 1


def test_k4_a_group_goes_on_from_where_it_was(three: sapwood.Cluster, topic: str) -> None:
    before = put(three.bootstrap, topic, "before")
    with Member(Owners(), three.bootstrap, topic, topic) as first:
        eventually(lambda: got_all(before, first), 40)
    meanwhile = put(three.bootstrap, topic, "meanwhile")
    with Member(Owners(), three.bootstrap, topic, topic) as second:
        eventually(lambda: got_all(meanwhile, second), 40)
        assert sorted(second.values) == sorted(meanwhile)


def test_k4_the_partitions_of_a_member_that_is_killed_go_to_the_others(
    three: sapwood.Cluster, topic: str
) -> None:
    with Member(Owners(), three.bootstrap, topic, topic) as member:
        settle(member)
        command = [sys.executable, "-c", DOOMED, three.bootstrap, topic, topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as doomed:
            try:
                eventually(lambda: shares(member) == [PARTITIONS // 2], 40)
                assert doomed.stdout is not None
                assert doomed.stdout.readline().strip() == b"6"
            finally:
                doomed.kill()
        settle(member)
        values = put(three.bootstrap, topic, "after")
        eventually(lambda: got_all(values, member), 40)


def test_k4_a_static_member_that_restarts_finds_its_partitions(
    three: sapwood.Cluster, topic: str
) -> None:
    owners = Owners()
    with Member(owners, three.bootstrap, topic, topic) as other:
        static = {"group.instance.id": "desk"}
        with Member(owners, three.bootstrap, topic, topic, **static) as member:
            settle(other, member)
            had = {it.partition for it in member.consumer.assignment()}
        owners.of = {it: name for it, name in owners.of.items() if name == other.name}
        with Member(owners, three.bootstrap, topic, topic, **static) as again:
            settle(other, again)
            assert {it.partition for it in again.consumer.assignment()} == had


def test_k4_members_go_on_when_the_coordinator_s_node_is_killed(
    three: sapwood.Cluster, topic: str
) -> None:
    owners = Owners()
    with (
        Member(owners, three.bootstrap, topic, topic) as first,
        Member(owners, three.bootstrap, topic, topic) as second,
    ):
        settle(first, second)
        values = put(three.bootstrap, topic, "before")
        eventually(lambda: got_all(values, first, second), 40)
        node = coordinator(three, topic)
        three.kill(node)
        try:
            values += put(three.bootstrap, topic, "meanwhile")
            eventually(lambda: got_all(values, first, second), 60)
            assert coordinator(three, topic) != node
            with Member(owners, three.bootstrap, topic, topic) as third:
                settle(first, second, third)
                values = put(three.bootstrap, topic, "of three")
                eventually(lambda: got_all(values, first, second, third), 60)
        finally:
            three.restart(node)


def coordinator(cluster: sapwood.Cluster, group: str) -> int:
    """The node that coordinates a group."""
    return cluster.leader("__consumer_offsets", shard_of(group, SHARDS))
