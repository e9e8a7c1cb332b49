"""The transactions of one shard: who may write under which identity, and how each of them ends.

A producer's identity is (producer id, epoch); whoever asks for it anew fences the one before. Its
transaction is Ongoing from the first partition that it adds, until it ends it or its time is up.
Then the outcome is decided by one record, Prepare, and never changes again; the markers go to the
partitions when that record is committed, for as long as it takes; and Complete lets the next
transaction begin.

Kafka's requests name a producer and its epoch, not the transaction that they mean: one that was
held up in the network could end a later transaction of the same producer. But a client goes on
over a newer connection only if it has given the older one up. So what arrives over a connection
that is older than one that its producer has used since is refused, whatever it asks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.coordinator import transaction_log as log
from sapwood.coordinator.effects import Answer, Append, Effect
from sapwood.coordinator.transaction import (
    IDLE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    Identity,
    ProducerIdWanted,
    State,
    TopicPartition,
    Transaction,
    fenced,
    partitions_bytes,
)
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

SWEEP_INTERVAL_MS = 600_000
SWEPT_AT_ONCE = 1000
_OUTCOMES = {
    True: (State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
    False: (State.PREPARE_ABORT, State.COMPLETE_ABORT),
}


class SendMarkers(NamedTuple):
    """Decided: write its markers, and tell `marked` of each that is there for good."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]
    decision: int
    """Which one it was: producers keep their epoch for many transactions."""


class OutdatedConnection(KafkaError):
    """Its producer has been heard over a newer one: what comes over this one may be late."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_COORDINATOR, "Come again over a new connection")


@dataclass(frozen=True, slots=True)
class Limits:
    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3_600_000
    max_transactional_ids: int = 250_000
    """Of one shard."""
    max_record_bytes: int = 512 * 1024
    """What the partitions of one transaction may take in the log."""
    max_group_bytes: int = 8 << 20
    """What the transactions that end together may take in the log."""
    max_queries: int = 10_000
    """Whose last batch one shard remembers; those that were quiet for longest are forgotten."""


@dataclass(slots=True)
class Counters:
    """What happened on this node so far, over all shards."""

    committed_total: int = 0
    aborted_total: int = 0
    timed_out_total: int = 0
    fenced_total: int = 0
    outdated_total: int = 0


class Transactions:
    """A machine, see `effects.Machine`."""

    def __init__(
        self, limits: Limits, counters: Counters | None = None, since: float = -math.inf
    ) -> None:
        """`since`: connections that were opened earlier may hold what is late."""
        self._limits = limits
        self._counters = counters or Counters()
        self._since = since
        self._transactions: OrderedDict[str, Transaction] = OrderedDict()  # longest idle first
        self._families: dict[str, dict[str, None]] = {}
        """Query → its children."""
        self._batches: dict[str, int] = {}
        """Query → the last batch of it that was committed; the longest quiet query first."""
        self._deadlines: list[tuple[float, str]] = []
        self._sweep_at_ms = math.inf
        self._decisions = itertools.count(1)

    # -- following the log -------------------------------------------------------------------

    def replay(
        self, key: bytes | None, value: bytes | None, producer: tuple[int, int] | None
    ) -> None:
        subject = None if key is None else log.decode_key(key)
        if isinstance(subject, log.GroupKey):
            self._batches.pop(subject.query, None)
            if value is not None:
                self._batches[subject.query] = log.decode_group(value)
        elif subject is not None:
            self._forget(subject)
            if value is not None:
                transaction = log.decode_transaction(subject, value)
                transaction.heard_over = self._since
                self._remember(transaction)

    def settle(
        self, producer_id: int, producer_epoch: int, committed: bool, now_ms: int
    ) -> list[Effect]:
        return []  # nobody writes to this log within a transaction

    def topics_changed(self, now_ms: int) -> list[Effect]:
        return []

    def loaded(self, now_ms: int) -> list[Effect]:
        """What was decided goes on to its end; what is open keeps the deadline that it had."""
        self._sweep_at_ms = now_ms
        effects: list[Effect] = []
        for transaction in self._transactions.values():
            if transaction.state in PREPARED:
                effects.append(self._markers(transaction))
            self._watch(transaction)
        return effects

    # -- time --------------------------------------------------------------------------------

    @property
    def wake_at_ms(self) -> float:
        first = self._deadlines[0][0] if self._deadlines else math.inf
        return min(first, self._sweep_at_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            alarm_ms, transactional_id = heapq.heappop(self._deadlines)
            transaction = self._transactions.get(transactional_id)
            if transaction is None or transaction.alarm_ms != alarm_ms:
                continue
            transaction.alarm_ms = math.inf
            if transaction.deadline_ms <= now_ms:
                # Its producer may be alive and slow: what it still writes must not count.
                self._counters.timed_out_total += 1
                effects += self._decide([transaction], False, now_ms, fence=True)
            else:
                self._watch(transaction)
        if self._sweep_at_ms <= now_ms:
            effects += self._sweep(now_ms)
        return effects

    def _watch(self, transaction: Transaction) -> None:
        deadline_ms = transaction.deadline_ms
        if deadline_ms < transaction.alarm_ms:
            transaction.alarm_ms = deadline_ms
            heapq.heappush(self._deadlines, (deadline_ms, transaction.transactional_id))

    def _sweep(self, now_ms: int) -> list[Effect]:
        """Forget transactional ids that nobody has used for a week."""
        before_ms = now_ms - self._limits.expiration_ms
        oldest = itertools.takewhile(
            lambda it: it.updated_ms <= before_ms, self._transactions.values()
        )
        expired = list(itertools.islice((it for it in oldest if it.state in IDLE), SWEPT_AT_ONCE))
        pause_ms = 0 if len(expired) == SWEPT_AT_ONCE else SWEEP_INTERVAL_MS
        self._sweep_at_ms = now_ms + pause_ms
        return [Append([self._drop(it, now_ms) for it in expired])] if expired else []

    # -- requests of producers ---------------------------------------------------------------

    def init_producer_id(
        self, token: object, message: Struct, now_ms: int, opened_at: float, fresh_id: int | None
    ) -> list[Effect]:
        """An identity that fences all earlier ones; `fresh_id` is given when it is wanted."""
        if not message.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty")
        if not 0 < message.transaction_timeout <= self._limits.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"The timeout must lie between 1 and {self._limits.max_timeout_ms} ms",
            )
        claim = _claim(message)
        transaction = self._transactions.get(message.transactional_id)
        if transaction is None:
            transaction = self._new(message.transactional_id, fresh_id)
        else:
            self._check_connection(transaction, opened_at)
            transaction.check_claim(claim)
            if transaction.state in PREPARED:
                raise _busy()
            transaction.heard_over = opened_at
            if transaction.state is State.ONGOING:
                # The one that asks comes again when this is over, and then gets an epoch.
                self._counters.fenced_total += 1
                busy = Answer(token, _identity(ErrorCode.CONCURRENT_TRANSACTIONS))
                return [*self._decide([transaction], False, now_ms, fence=True), busy]
            transaction.renew(claim, fresh_id)
        transaction.heard_over = opened_at
        transaction.timeout_ms = message.transaction_timeout
        transaction.started_ms = -1
        transaction.move(State.EMPTY, now_ms)
        identity = _identity(ErrorCode.NONE, transaction.producer_id, transaction.producer_epoch)
        return [Append([self._stored(transaction)]), Answer(token, identity)]

    def add_partitions(
        self,
        token: object,
        message: Struct,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        opened_at: float,
    ) -> list[Effect]:
        transaction = self._speaking(message, opened_at)
        if transaction.state in PREPARED:
            raise _busy()
        known = transaction.partitions if transaction.state is State.ONGOING else {}
        added = {it: None for it in partitions if it not in known}
        if not added:
            return [Answer(token, Struct(error_code=0))]
        together = {**known, **added}
        if partitions_bytes(together) > self._limits.max_record_bytes:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "The transaction has too many partitions")
        if transaction.state is not State.ONGOING:
            transaction.started_ms = now_ms
        transaction.partitions = together
        transaction.move(State.ONGOING, now_ms)
        self._watch(transaction)
        return [Append([self._stored(transaction)]), Answer(token, Struct(error_code=0))]

    def verify(
        self, token: object, message: Struct, partitions: Iterable[TopicPartition]
    ) -> list[Effect]:
        """Which partitions are not in the producer's open transaction."""
        transaction = self._named(message)
        if transaction.state in PREPARED:
            raise _busy()
        known = transaction.partitions if transaction.state is State.ONGOING else {}
        return [Answer(token, Struct(missing=[it for it in partitions if it not in known]))]

    def end(self, token: object, message: Struct, now_ms: int, opened_at: float) -> list[Effect]:
        transaction = self._speaking(message, opened_at)
        prepare, complete = _OUTCOMES[message.committed]
        done = Answer(token, Struct(error_code=0))
        if transaction.state is complete:
            return [done]  # the answer to the first request was lost
        if transaction.state is prepare:
            raise _busy()
        if transaction.state is not State.ONGOING:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"The transaction is {transaction.state.label}"
            )
        return [*self._decide([transaction], message.committed, now_ms), done]

    # -- the rest of a decided transaction ---------------------------------------------------

    def marked(
        self, sent: SendMarkers, partitions: Iterable[TopicPartition], now_ms: int
    ) -> list[Effect]:
        """These partitions have the marker for good, or are gone for good."""
        transaction = self._transactions.get(sent.transactional_id)
        if transaction is None or transaction.decision != sent.decision:
            return []
        for partition in partitions:
            transaction.partitions.pop(partition, None)
        if transaction.partitions:
            return []
        transaction.decision = 0
        if transaction.batch <= self._batches.get(transaction.family, -1):
            return [Append([self._drop(transaction, now_ms)])]
        transaction.move(_OUTCOMES[sent.committed][1], now_ms)
        return [Append([self._stored(transaction)])]

    # -- transactions that end together ------------------------------------------------------

    def end_group(self, token: object, message: Struct, now_ms: int) -> list[Effect]:
        """All of these children commit, or none; what else its query had open is aborted."""
        last = self._batches.get(message.query, -1)
        done = Struct(error_code=0, error_message=None, last_batch_id=last, already_done=True)
        if message.batch_id <= last:
            return [Answer(token, done)]
        family = [self._transactions[it] for it in self._families.get(message.query, ())]
        chosen = self._children(message) if message.committed else []
        names = {it.transactional_id for it in chosen}
        others = [
            it for it in family if it.batch <= message.batch_id and it.transactional_id not in names
        ]
        open_ones = [it for it in others if it.state is State.ONGOING]
        if sum(it.size_bytes for it in (*chosen, *others)) > self._limits.max_group_bytes:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "Too much for one group of transactions")
        aborted, *markers = self._decide(open_ones, False, now_ms, fence=True)
        records = list(aborted.records)
        if message.committed:
            committed, *more = self._decide(chosen, True, now_ms)
            records += committed.records
            markers += more
            records += self._note_batch(message.query, message.batch_id, now_ms)
            done.last_batch_id = message.batch_id
            # Every task of every batch has a name of its own, so there would soon be millions.
            records += [self._drop(it, now_ms) for it in others if it.state in IDLE]
        done.already_done = False
        appends = [Append(records)] if records else []
        return [*appends, *markers, Answer(token, done)]

    def _note_batch(self, query: str, batch_id: int, now_ms: int) -> list[log.StoredRecord]:
        self._batches.pop(query, None)
        self._batches[query] = batch_id
        records: list[log.StoredRecord] = [log.encode_group(query, batch_id, now_ms)]
        if len(self._batches) > self._limits.max_queries:
            oldest = next(iter(self._batches))
            del self._batches[oldest]
            records.append((log.group_key(oldest), None))
        return records

    def _children(self, message: Struct) -> list[Transaction]:
        chosen: dict[str, Transaction] = {}
        for child in message.children:
            transaction = self._named(child)
            name = transaction.transactional_id
            if transaction.state is not State.ONGOING:
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE, f"{name} is {transaction.state.label}"
                )
            if (transaction.family, transaction.batch) != (message.query, message.batch_id):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"{name} is not of that query and batch"
                )
            chosen[name] = transaction
        return list(chosen.values())

    # -- questions ---------------------------------------------------------------------------

    def describe(self, token: object, transactional_id: str) -> list[Effect]:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "No such transactional id")
        by_topic: dict[str, list[int]] = {}
        for topic, index in transaction.partitions:
            by_topic.setdefault(topic, []).append(index)
        answer = Struct(
            error_code=0,
            transactional_id=transactional_id,
            transaction_state=transaction.state.label,
            transaction_timeout=transaction.timeout_ms,
            transaction_start_time=transaction.started_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=[Struct(topic=it, partitions=by_topic[it]) for it in by_topic],
        )
        return [Answer(token, answer)]

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._transactions.values())

    # -- identities --------------------------------------------------------------------------

    def _new(self, transactional_id: str, fresh_id: int | None) -> Transaction:
        if len(self._transactions) >= self._limits.max_transactional_ids:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "There are too many transactional ids")
        if fresh_id is None:
            raise ProducerIdWanted
        transaction = Transaction(transactional_id, fresh_id, 0, 0)
        if transaction.batch <= self._batches.get(transaction.family, -1):
            # Nobody would ever end it, and readers would wait until its time is up.
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Its batch is committed already")
        self._remember(transaction)
        return transaction

    def _check_connection(self, transaction: Transaction, opened_at: float) -> None:
        if opened_at < transaction.heard_over:
            self._counters.outdated_total += 1
            raise OutdatedConnection

    def _named(self, message: Struct) -> Transaction:
        """By transactional id, if producer id and epoch are its present ones."""
        if not message.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty")
        transaction = self._transactions.get(message.transactional_id)
        if transaction is None or transaction.producer_id != message.producer_id:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "The transactional id has another producer id, or is not known",
            )
        if transaction.producer_epoch != message.producer_epoch:
            raise fenced()
        return transaction

    def _speaking(self, message: Struct, opened_at: float) -> Transaction:
        transaction = self._named(message)
        self._check_connection(transaction, opened_at)
        transaction.heard_over = opened_at
        return transaction

    # -- state -------------------------------------------------------------------------------

    def _decide(
        self, transactions: list[Transaction], committed: bool, now_ms: int, *, fence: bool = False
    ) -> tuple[Append, *tuple[SendMarkers, ...]]:
        """The one place where an outcome is decided: in one batch, for all of them."""
        for transaction in transactions:
            if fence:
                transaction.fence()
            transaction.move(_OUTCOMES[committed][0], now_ms)
        if committed:
            self._counters.committed_total += len(transactions)
        else:
            self._counters.aborted_total += len(transactions)
        return Append([self._stored(it) for it in transactions]), *map(self._markers, transactions)

    def _markers(self, transaction: Transaction) -> SendMarkers:
        transaction.decision = next(self._decisions)
        return SendMarkers(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.state is State.PREPARE_COMMIT,
            tuple(transaction.partitions),
            transaction.decision,
        )

    def _stored(self, transaction: Transaction) -> log.StoredRecord:
        self._transactions.move_to_end(transaction.transactional_id)
        return log.encode_transaction(transaction)

    def _drop(self, transaction: Transaction, now_ms: int) -> log.StoredRecord:
        transaction.move(State.DEAD, now_ms)
        self._forget(transaction.transactional_id)
        return log.transaction_key(transaction.transactional_id), None

    def _remember(self, transaction: Transaction) -> None:
        name = transaction.transactional_id
        self._transactions[name] = transaction
        if transaction.batch < math.inf:
            self._families.setdefault(transaction.family, {})[name] = None

    def _forget(self, transactional_id: str) -> None:
        transaction = self._transactions.pop(transactional_id, None)
        if transaction is not None and transaction.batch < math.inf:
            family = self._families[transaction.family]
            del family[transactional_id]
            if not family:
                del self._families[transaction.family]


def _claim(message: Struct) -> Identity | None:
    """Who the producer says it was; older versions of the request have no place for that."""
    producer_id = getattr(message, "producer_id", NO_PRODUCER_ID)
    return None if producer_id == NO_PRODUCER_ID else (producer_id, message.producer_epoch)


def _identity(
    code: ErrorCode, producer_id: int = NO_PRODUCER_ID, producer_epoch: int = NO_EPOCH
) -> Struct:
    return Struct(error_code=int(code), producer_id=producer_id, producer_epoch=producer_epoch)


def _busy() -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "The last transaction is being completed")
