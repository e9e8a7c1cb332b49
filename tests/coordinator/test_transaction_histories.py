"""Any order of requests, markers, timeouts and new coordinators, against a naive twin."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sapwood.coordinator import transaction_log
from sapwood.coordinator.transaction import State, TopicPartition
from sapwood.coordinator.transactions import SendMarkers
from sapwood.wire.errors import ErrorCode
from tests.coordinator.transacting import TIMEOUT_MS, A, B, C, Producer, Stage, refusal

NAMES = ("one", "two")
AFTER = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


@dataclass
class Twin:
    """What is true of one transactional id, in the plainest words."""

    holder: tuple[int, int] | None = None
    open: set[TopicPartition] = field(default_factory=set)
    deadline_ms: float = 0
    unmarked: set[TopicPartition] = field(default_factory=set)
    outcome: bool | None = None
    """Of the last transaction, as long as the same holder has not begun another."""

    def decide(self, committed: bool) -> None:
        self.unmarked, self.open, self.outcome = self.open, set(), committed

    def fence(self) -> None:
        assert self.holder is not None
        self.holder = self.holder[0], self.holder[1] + 1
        self.decide(False)


class Histories(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.stage = Stage()
        self.twins = {name: Twin() for name in NAMES}
        self.producers: list[Producer] = []
        self.sent: list[SendMarkers] = []

    def outcome(self, expected: ErrorCode, act: Callable[[], object]) -> bool:
        """Whether it went well, which is as the twin says; refused, it has changed nothing."""
        if expected is ErrorCode.NONE:
            act()
            return True
        before = len(self.stage.log)
        assert refusal(act) is expected
        assert len(self.stage.log) == before
        return False

    def expected(self, producer: Producer) -> ErrorCode:
        name, producer_id, epoch = producer
        holder = self.twins[name].holder
        if holder is None or holder[0] != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if holder[1] == epoch else ErrorCode.PRODUCER_FENCED

    @rule(name=st.sampled_from(NAMES))
    def somebody_takes_the_identity(self, name: str) -> None:
        twin = self.twins[name]
        if twin.unmarked:
            self.outcome(ErrorCode.CONCURRENT_TRANSACTIONS, lambda: self.stage.init(name))
        elif twin.open:
            assert self.stage.init(name).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            twin.fence()
        else:
            producer = self.stage.producer(name)
            if twin.holder is not None:
                assert producer[1:] == (twin.holder[0], twin.holder[1] + 1)
            self.twins[name] = Twin(holder=producer[1:])
            self.producers.append(producer)

    @rule(data=st.data(), partitions=st.sets(st.sampled_from([A, B, C]), min_size=1))
    def a_producer_adds_partitions(
        self, data: st.DataObject, partitions: set[TopicPartition]
    ) -> None:
        if not self.producers:
            return
        producer = data.draw(st.sampled_from(self.producers))
        twin = self.twins[producer[0]]
        expected = self.expected(producer)
        if expected is ErrorCode.NONE and twin.unmarked:
            expected = ErrorCode.CONCURRENT_TRANSACTIONS
        if self.outcome(expected, lambda: self.stage.add(producer, *sorted(partitions))):
            if not twin.open:
                twin.deadline_ms = self.stage.now_ms + TIMEOUT_MS
            twin.open |= partitions
            twin.outcome = None

    @rule(data=st.data(), committed=st.booleans())
    def a_producer_ends_its_transaction(self, data: st.DataObject, committed: bool) -> None:
        if not self.producers:
            return
        producer = data.draw(st.sampled_from(self.producers))
        twin = self.twins[producer[0]]
        expected = self.expected(producer)
        if expected is ErrorCode.NONE and not twin.open:
            if twin.outcome is not committed:
                expected = ErrorCode.INVALID_TXN_STATE
            elif twin.unmarked:
                expected = ErrorCode.CONCURRENT_TRANSACTIONS
        if self.outcome(expected, lambda: self.stage.end(producer, committed)) and twin.open:
            twin.decide(committed)

    @rule(data=st.data())
    def a_marker_arrives_maybe_once_more(self, data: st.DataObject) -> None:
        self.sent += self.stage.markers
        self.stage.markers = []
        if not self.sent:
            return
        sent = data.draw(st.sampled_from(self.sent))
        partition = data.draw(st.sampled_from(sent.partitions))
        self.stage.run(self.stage.machine.marked(sent, [partition], self.stage.now_ms))
        newest = max(it.decision for it in self.sent if it[0] == sent.transactional_id)
        if sent.decision == newest:
            self.twins[sent.transactional_id].unmarked.discard(partition)

    @rule(ms=st.integers(1, TIMEOUT_MS))
    def time_passes(self, ms: int) -> None:
        self.stage.pass_time(ms)
        for twin in self.twins.values():
            if twin.open and twin.deadline_ms <= self.stage.now_ms:
                twin.fence()

    @rule()
    def another_node_coordinates(self) -> None:
        self.stage.reload()
        self.sent = []
        for name, twin in self.twins.items():
            if twin.unmarked:
                # What was acknowledged before counts anew, since only the last of it is stored.
                again = next(it for it in self.stage.markers if it.transactional_id == name)
                twin.unmarked = set(again.partitions)

    @invariant()
    def the_machine_says_what_its_twin_says(self) -> None:
        if not hasattr(self, "stage"):
            return
        for name, twin in self.twins.items():
            found = self.stage.find(name)
            if found is None:
                assert twin.holder is None
                continue
            assert found.identity == twin.holder
            assert set(found.partitions) == twin.open | twin.unmarked
            assert (found.state is State.ONGOING) == bool(twin.open)
            assert (found.state in AFTER) == bool(twin.unmarked)
            assert found.deadline_ms > self.stage.now_ms

    @invariant()
    def an_outcome_that_is_in_the_log_is_never_another_one_later(self) -> None:
        if not hasattr(self, "stage"):
            return
        decided: dict[bytes, State] = {}
        for key, value in self.stage.log:
            subject = transaction_log.decode_key(key)
            assert isinstance(subject, str)
            assert value is not None
            state = transaction_log.decode_transaction(subject, value).state
            if key in decided:
                assert state is AFTER[decided.pop(key)]
            if state in AFTER:
                decided[key] = state


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
