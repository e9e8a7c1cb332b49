"""One transactional id: its producer's identity, where it stands, and what may follow."""

import enum
import math
from dataclasses import dataclass, field
from typing import TypeAlias

from sapwood.coordinator.sharding import SEPARATOR
from sapwood.wire.errors import ErrorCode, KafkaError

NO_PRODUCER_ID = -1
NO_EPOCH = -1
LAST_EPOCH = 2**15 - 2
"""The last epoch that a producer gets. One more is left, to fence it with."""

TopicPartition: TypeAlias = tuple[str, int]
Identity: TypeAlias = tuple[int, int]
"""Producer id and epoch."""


class State(enum.IntEnum):
    """Kafka's, by the numbers that its transaction log has for them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7
    """Never entered: here an epoch is raised and the abort prepared in one record."""

    @property
    def label(self) -> str:
        """As clients are told it."""
        return self.name.title().replace("_", "")


PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""Decided: nothing can change the outcome any more, only markers are missing."""
IDLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})

MAY_FOLLOW: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT, State.DEAD}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT, State.DEAD}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset(),
}


class IllegalTransition(Exception):
    """A transaction was about to go where none may."""


class ProducerIdWanted(KafkaError):
    """Ask again with a producer id that nobody has."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.CONCURRENT_TRANSACTIONS, "The transactional id needs a new id")


@dataclass(slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    """Those in the transaction; once it is decided, those that lack its marker."""
    updated_ms: int = -1
    started_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID

    # What follows is not in the log.
    previous_epoch: int = NO_EPOCH
    """Which epoch was raised to the present one because its producer asked for that by name."""
    heard_over: float = -math.inf
    """When the newest connection was opened that its producer has used."""
    decision: int = 0
    """The number of the decision whose markers are being written."""
    alarm_ms: float = math.inf
    """The first time at which somebody will look whether it is open for too long."""

    def move(self, state: State, now_ms: int) -> None:
        if state not in MAY_FOLLOW[self.state]:
            raise IllegalTransition(
                f"{self.transactional_id}: {state.label} can't follow {self.state.label}"
            )
        self.state = state
        self.updated_ms = now_ms

    @property
    def deadline_ms(self) -> float:
        """When it has to be over."""
        return self.started_ms + self.timeout_ms if self.state is State.ONGOING else math.inf

    @property
    def identity(self) -> Identity:
        return self.producer_id, self.producer_epoch

    @property
    def family(self) -> str:
        """What it shares its shard with: the query of a child `query␟batch/task/attempt`."""
        return self.transactional_id.partition(SEPARATOR)[0]

    @property
    def batch(self) -> float:
        """Of a child; infinite for everybody else."""
        batch = self.transactional_id.partition(SEPARATOR)[2].partition("/")[0]
        return int(batch) if batch.isascii() and batch.isdigit() and len(batch) < 19 else math.inf

    @property
    def size_bytes(self) -> int:
        """About what its record takes in the log, and not less."""
        return 100 + 4 * len(self.transactional_id) + partitions_bytes(self.partitions)

    # -- identities --------------------------------------------------------------------------

    def check_claim(self, claim: Identity | None) -> None:
        """A producer that says who it was goes on only if nobody came after it."""
        if claim in (None, self.identity):
            return
        if self.state not in IDLE or claim != self._given_up:
            raise fenced()

    @property
    def _given_up(self) -> Identity | None:
        """The identity that was exchanged for the present one at its own request."""
        if self.previous_epoch == NO_EPOCH:
            return None
        is_new_id = self.producer_epoch == 0 and self.previous_epoch >= LAST_EPOCH
        return self.previous_producer_id if is_new_id else self.producer_id, self.previous_epoch

    def renew(self, claim: Identity | None, fresh_id: int | None) -> None:
        """The next epoch; if there is none left, the first one of a fresh producer id."""
        if claim is not None and claim == self._given_up:
            return  # it asks again: the answer that gave it the present one was lost
        epoch = self.producer_epoch
        if epoch < LAST_EPOCH:
            self.producer_epoch += 1
        elif fresh_id is None:
            raise ProducerIdWanted
        else:
            self.previous_producer_id = self.producer_id
            self.producer_id = fresh_id
            self.producer_epoch = 0
        self.previous_epoch = NO_EPOCH if claim is None else epoch

    def fence(self) -> None:
        """Raise the epoch to one that nobody gets: what its producer still sends is refused."""
        self.producer_epoch = min(self.producer_epoch, LAST_EPOCH) + 1
        self.previous_epoch = NO_EPOCH


def fenced() -> KafkaError:
    return KafkaError(ErrorCode.PRODUCER_FENCED, "A newer producer has this transactional id")


def partitions_bytes(partitions: dict[TopicPartition, None]) -> int:
    return sum(len(topic) + 8 for topic, _ in partitions)
