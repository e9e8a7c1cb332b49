"""Any history of a group of the newer protocol: what nobody may ever see, and where it ends."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sapwood.coordinator import consumer_records
from sapwood.coordinator.consumer_group import ConsumerGroup
from sapwood.coordinator.consumer_member import JOINING
from sapwood.coordinator.group import GroupSettings
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.coordinator.consumers import Consumer, Record, TopicTable, appended

NAMES = ["apples", "pears", "plums"]
SETTINGS = GroupSettings()

INSTANCE_ERRORS = {ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID}

which = st.integers(0, 4)


class Histories(RuleBasedStateMachine):
    """Members lose answers, fall silent, come back; topics change; the coordinator moves."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = TopicTable(apples=4, pears=3)
        self.group = ConsumerGroup("readers", self.topics, SETTINGS)
        self.log: list[Record] = []
        self.now_ms = 0
        self.started = 0
        self.consumers = [self.started_consumer(place) for place in range(5)]

    def started_consumer(self, place: int) -> Consumer:
        self.started += 1
        instance = "desk" if place == 0 else None
        wishes: list[list[str]] = [NAMES, NAMES[:2], NAMES[:1], NAMES[1:], NAMES]
        return Consumer(
            self.group,
            f"member-{self.started}",
            wishes[place],
            instance_id=instance,
            log=self.log,
        )

    @rule(place=which, lost=st.booleans(), full=st.booleans(), take=st.booleans())
    def heartbeat(self, place: int, lost: bool, full: bool, take: bool) -> None:
        consumer = self.consumers[place]
        try:
            consumer.beat(self.now_ms, full=full, answer_is_lost=lost)
        except KafkaError as error:
            if error.code not in INSTANCE_ERRORS:
                raise
            consumer.lose()
        if take:
            consumer.take()

    @rule(place=which, names=st.sets(st.sampled_from(NAMES)))
    def subscribe(self, place: int, names: set[str]) -> None:
        consumer = self.consumers[place]
        consumer.names = sorted(names)
        if consumer.epoch != JOINING:
            self.heartbeat(place, lost=False, full=True, take=True)

    @rule(place=which, for_a_while=st.booleans())
    def leave(self, place: int, for_a_while: bool) -> None:
        consumer = self.consumers[place]
        if consumer.epoch == JOINING:
            return
        try:
            consumer.leave(for_a_while=for_a_while and consumer.instance_id is not None)
        except KafkaError:
            consumer.lose()
        self.consumers[place] = self.started_consumer(place)

    @rule(place=which)
    def crash(self, place: int) -> None:
        self.consumers[place] = self.started_consumer(place)

    @rule(ms=st.sampled_from([1000, 20_000, 50_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.log += appended(self.group.tick(self.now_ms))
        for consumer in self.consumers:
            # A client that hears nothing for as long as its session lasts stops reading.
            if consumer.epoch != JOINING and consumer.member_id not in self.group.members:
                consumer.lose()

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def change_topic(self, name: str, count: int) -> None:
        if count:
            known = self.topics.find(name)
            self.topics.make(name, max(count, known.partition_count if known else 0))
        else:
            self.topics.facts.pop(name, None)
        self.log += appended(self.group.topics_changed(self.now_ms))

    @rule()
    def move(self) -> None:
        self.group = self.replayed()
        self.log += appended(self.group.loaded(self.now_ms))
        for consumer in self.consumers:
            consumer.group = self.group

    def replayed(self, *, compacted: bool = False) -> ConsumerGroup:
        last = {key: place for place, (key, _) in enumerate(self.log)}
        group = ConsumerGroup("readers", self.topics, SETTINGS)
        for place, (key, value) in enumerate(self.log):
            record = consumer_records.decode(key, value)
            if not compacted or last[key] == place:
                group.apply(record)
        return group

    @invariant()
    def what_was_written_gives_the_same_group_compacted_or_not(self) -> None:
        for twin in (self.replayed(), self.replayed(compacted=True)):
            for name in ("group_epoch", "metadata_hash", "assignment_epoch"):
                assert getattr(twin, name) == getattr(self.group, name)
            for name in ("members", "target", "current", "_holders", "_static_members"):
                assert getattr(twin, name) == getattr(self.group, name)
        assert self.group.members.keys() == self.group.current.keys()

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        held = Counter(one for it in self.group.current.values() for one in it.held)
        assert max(held.values(), default=1) == 1
        read = Counter(one for consumer in self.consumers for one in consumer.owned)
        assert max(read.values(), default=1) == 1

    def teardown(self) -> None:
        """Left alone, it comes to rest: everything is read by one of those who asked for it."""
        self.time_passes(50_000)
        for _ in range(8):
            for place in range(5):
                self.heartbeat(place, lost=False, full=False, take=True)
        assert self.group.state == "Stable"
        wanted = frozenset[str]().union(*(it.names or () for it in self.consumers))
        everything = {
            (facts.topic_id, index)
            for facts in self.topics
            if facts.name in wanted
            for index in range(facts.partition_count)
        }
        read = Counter(one for consumer in self.consumers for one in consumer.owned)
        assert read == Counter(everything)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
