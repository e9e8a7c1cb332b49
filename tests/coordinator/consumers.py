"""Consumers of the newer protocol as clients are, without a network: for tests of a group."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sapwood.coordinator.assignors import Assignment
from sapwood.coordinator.consumer_group import ConsumerGroup
from sapwood.coordinator.consumer_heartbeat import checked_heartbeat
from sapwood.coordinator.consumer_member import JOINING, LEAVING, LEAVING_FOR_A_WHILE
from sapwood.coordinator.consumer_records import assignment_of, topic_partitions
from sapwood.coordinator.effects import Answer, Append, Effect, TopicFacts
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

REBALANCE_MS = 30_000

Record = tuple[bytes, bytes | None]


class TopicTable:
    """Topics as a test likes them; ids follow from names and from how often they were made."""

    def __init__(self, **counts: int) -> None:
        self.facts: dict[str, TopicFacts] = {}
        self.made = 0
        for name, count in counts.items():
            self.make(name, count)

    def make(self, name: str, count: int) -> None:
        self.made += 1
        topic_id = self.facts[name].topic_id if name in self.facts else self._id(name)
        self.facts[name] = TopicFacts(name, topic_id, count)

    def _id(self, name: str) -> bytes:
        return f"{name}-{self.made}".encode().ljust(16, b".")

    def __iter__(self) -> Iterator[TopicFacts]:
        return iter(self.facts.values())

    def find(self, name: str) -> TopicFacts | None:
        return self.facts.get(name)

    def find_by_id(self, topic_id: bytes) -> TopicFacts | None:
        return next((it for it in self if it.topic_id == topic_id), None)

    def was_deleted(self, topic_id: bytes) -> bool:
        return self.find_by_id(topic_id) is None


def appended(effects: list[Effect]) -> list[Record]:
    return [record for it in effects if isinstance(it, Append) for record in it.records]


def request(member_id: str, member_epoch: int, **said: object) -> Struct:
    """A heartbeat that says nothing but what is given."""
    unsaid = {
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    return Struct(member_id=member_id, member_epoch=member_epoch, **{**unsaid, **said})


@dataclass
class Consumer:
    """Does what a client does; `owned` is what it may be reading."""

    group: ConsumerGroup
    member_id: str
    names: list[str] | None = field(default_factory=lambda: ["orders"])
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = JOINING
    owned: Assignment = frozenset()
    target: Assignment = frozenset()
    interval_ms: int = 0
    log: list[Record] = field(default_factory=list)

    def beat(self, now_ms: int = 0, *, full: bool = False, answer_is_lost: bool = False) -> None:
        """One heartbeat; what has to be given up is given up before the next."""
        said: dict[str, Any] = {"instance_id": self.instance_id}
        if self.epoch == JOINING or full:
            said |= {
                "rebalance_timeout": REBALANCE_MS,
                "subscribed_topic_names": self.names,
                "subscribed_topic_regex": self.regex,
                "server_assignor": self.assignor,
            }
        # To say that one doesn't have a partition is to let go of it, whatever one was told before.
        if full or self.owned == self.target:
            self.target = self.owned
            said["topic_partitions"] = topic_partitions(self.owned)
        try:
            answer = self.send(now_ms, **said)
        except KafkaError as error:
            if error.code not in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
                raise
            self.lose()
            return
        if answer_is_lost:
            return
        self.epoch = answer.member_epoch
        self.interval_ms = answer.heartbeat_interval
        if answer.assignment is not None:
            self.target = assignment_of(answer.assignment.topic_partitions)
            self.owned &= self.target

    def take(self) -> None:
        """Begin to read what was assigned."""
        self.owned = self.target

    def send(self, now_ms: int = 0, **said: Any) -> Struct:
        """Whatever a test wants said."""
        asked = request(self.member_id, self.epoch, **said)
        beat = checked_heartbeat(asked, "client", "host")
        effects = self.group.heartbeat("token", beat, now_ms)
        self.log += appended(effects)
        (answer,) = (it for it in effects if isinstance(it, Answer))
        return answer.message

    def leave(self, *, for_a_while: bool = False) -> None:
        self.epoch = LEAVING_FOR_A_WHILE if for_a_while else LEAVING
        self.send(instance_id=self.instance_id)
        self.lose()

    def lose(self) -> None:
        self.epoch = JOINING
        self.owned = self.target = frozenset()


def settle(*consumers: Consumer, rounds: int = 4) -> None:
    for _ in range(rounds):
        for consumer in consumers:
            consumer.beat()
            consumer.take()
