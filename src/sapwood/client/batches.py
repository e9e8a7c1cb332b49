"""Batches on their way to one partition, and the promises made for their records."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sapwood.client.cluster import TopicPartition
from sapwood.client.effects import Ticket
from sapwood.wire.codec import Buffer
from sapwood.wire.errors import KafkaError
from sapwood.wire.records import NewRecord, encode_batch

_SEQUENCE_MASK = 0x7FFFFFFF  # sequences wrap from the largest int32 to 0
LAST_EPOCH = 32_767
RECORD_OVERHEAD_BYTES = 24  # lengths and deltas, rounded up
BATCH_OVERHEAD_BYTES = 61


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int  # −1 if the broker didn't say
    timestamp: int


class Delivery:
    """The promise for one record. Shells subclass it to add their way of waiting."""

    __slots__ = ("batch", "index", "timestamp")

    batch: Batch
    index: int
    timestamp: int

    @property
    def done(self) -> bool:
        return self.batch.done.done

    def result(self) -> RecordMetadata:
        batch = self.batch
        batch.done.result()
        offset = batch.base_offset + self.index if batch.base_offset >= 0 else -1
        timestamp = batch.append_time if batch.append_time >= 0 else self.timestamp
        return RecordMetadata(*batch.key, offset, timestamp)


D = TypeVar("D", bound=Delivery)


class Identity(NamedTuple):
    """Who the broker thinks we are on one partition."""

    producer_id: int
    epoch: int


class MessageKey(NamedTuple):
    """The numbers of a batch of one record that stand for the record's own id."""

    identity: Identity
    sequence: int


class Stage(enum.Enum):
    WAITING = enum.auto()  # to be sent, or sent again
    IN_FLIGHT = enum.auto()
    REJECTED = enum.auto()  # known not to be stored: free to take other sequence numbers


class Flush:
    """A ticket for everything that was accepted before it."""

    __slots__ = ("ticket", "unsettled")

    def __init__(self) -> None:
        self.ticket: Ticket[None] = Ticket()
        self.unsettled = 0


class Batch:
    __slots__ = (
        "append_time",
        "attempts",
        "base_offset",
        "base_sequence",
        "created_ms",
        "deliveries",
        "done",
        "encoded",
        "flushes",
        "identity",
        "is_keyed",
        "key",
        "may_queue",
        "ordinal",
        "records",
        "size_bytes",
        "stage",
    )

    def __init__(self, key: TopicPartition, created_ms: float) -> None:
        self.key = key
        self.created_ms = created_ms
        self.records: list[NewRecord] = []
        self.deliveries: list[Delivery] = []
        self.size_bytes = BATCH_OVERHEAD_BYTES
        self.stage = Stage.WAITING
        self.attempts = 0
        self.identity: Identity | None = None
        self.base_sequence = -1
        self.ordinal = 0
        # Its numbers say which message it is, not where it stands among others: see `keyed`.
        self.is_keyed = False
        # An edge that can't reach the cluster may keep it in its outbox: see `wire.schema`.
        self.may_queue = False
        self.encoded: Buffer | None = None
        self.base_offset = -1
        self.append_time = -1
        self.done: Ticket[None] = Ticket()
        self.flushes: list[Flush] = []

    @property
    def record_count(self) -> int:
        return len(self.records)

    @property
    def is_open(self) -> bool:
        """Whether more records may be added."""
        return not self.is_keyed

    def add(self, record: NewRecord, size_bytes: int, delivery: Delivery) -> None:
        delivery.batch = self
        delivery.index = len(self.records)
        delivery.timestamp = record[0]
        self.records.append(record)
        self.deliveries.append(delivery)
        self.size_bytes += size_bytes

    def release(self) -> None:
        """Let go of the records: whoever keeps a delivery shall not keep them in memory."""
        self.records, self.deliveries, self.encoded = [], [], None

    def encode(self, compression: int, *, transactional: bool = False) -> Buffer:
        """Encoded once: a batch that is sent again is the same to the last byte."""
        if self.encoded is None:
            producer_id, epoch = self.identity or (-1, -1)
            self.encoded = encode_batch(
                self.records,
                compression=compression,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=self.base_sequence,
                transactional=transactional,
            )
        return self.encoded

    def split(self) -> tuple[Batch, Batch]:
        """Halves that together cover the same sequence numbers."""
        middle = len(self.records) // 2
        halves = Batch(self.key, self.created_ms), Batch(self.key, self.created_ms)
        for index, (record, delivery) in enumerate(zip(self.records, self.deliveries, strict=True)):
            halves[index >= middle].add(record, record_size(record), delivery)
        for half, offset in zip(halves, (0, middle), strict=True):
            half.identity = self.identity
            half.attempts = self.attempts
            half.ordinal = self.ordinal - 1  # to the broker they are one more than this was
            half.flushes = list(self.flushes)
            if self.base_sequence >= 0:
                half.base_sequence = (self.base_sequence + offset) & _SEQUENCE_MASK
        for flush in self.flushes:
            flush.unsettled += 2
        return halves


def record_size(record: NewRecord) -> int:
    """An upper bound; raises TypeError or ValueError for what can't be encoded later."""
    timestamp, key, value, headers = record
    size_bytes = RECORD_OVERHEAD_BYTES + _size(key, "key") + _size(value, "value")
    for name, content in headers:
        size_bytes += len(name.encode()) + _size(content, f"header {name}") + 10
    if not -1 <= timestamp < 2**63:
        raise ValueError(f"{timestamp} isn't a timestamp: milliseconds since 1970 are")
    return size_bytes


def _size(content: bytes | None, what: str) -> int:
    if content is None:
        return 0
    if not isinstance(content, bytes):
        raise TypeError(f"the {what} must be bytes or None, not {type(content).__name__}")
    return len(content)


class PartitionQueue:
    """Batches for one partition, oldest first.

    `window` holds those that have sequence numbers and no answer yet, in that order; `queue` those
    that have none. If a batch of the window fails for good, its numbers are missing at the broker
    and everything behind it will be refused. Then the queue is `broken`: each batch of the window
    is sent until the broker has said whether it holds it, and only then the rest gets fresh
    numbers under a new epoch. A batch whose fate is unknown is never renumbered, so nothing is
    stored twice, and nothing overtakes. A keyed batch has no numbers that would keep it in its
    place, so it travels alone.
    """

    __slots__ = (
        "broken",
        "identity",
        "key",
        "last_error",
        "leaderless_since_ms",
        "max_window",
        "next_sequence",
        "not_before_ms",
        "numbered",
        "queue",
        "window",
    )

    def __init__(self, key: TopicPartition, max_window: int) -> None:
        self.key = key
        self.max_window = max_window
        self.queue: deque[Batch] = deque()
        self.window: list[Batch] = []
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.numbered = 0
        self.broken = False
        self.not_before_ms = 0.0
        self.leaderless_since_ms: float | None = None
        self.last_error: KafkaError | None = None

    def __bool__(self) -> bool:
        return bool(self.queue or self.window)

    @property
    def batches(self) -> list[Batch]:
        return [*self.window, *self.queue]

    def next_batch(self, now_ms: float, is_ready: Callable[[Batch], bool]) -> Batch | None:
        """What may be sent now; a batch from `queue` still has to be numbered."""
        if self.not_before_ms > now_ms:
            return None
        for batch in self.window:
            if batch.stage is Stage.WAITING:
                return batch
        if self.broken or not self.queue:
            return None
        # Those between that are answered count as well: they push the oldest out of the broker's
        # memory, and then its repeat is a gap and no longer a repeat.
        if self.window and self.numbered - self.window[0].ordinal >= self.max_window:
            return None
        batch = self.queue[0]
        if self.window and (batch.is_keyed or self.window[-1].is_keyed):
            return None
        return batch if len(self.queue) > 1 or is_ready(batch) else None

    def number(self, identity: Identity | None) -> None:
        """Move the oldest unnumbered batch into the window."""
        batch = self.queue.popleft()
        batch.ordinal = self.numbered
        self.numbered += 1
        if identity is not None and not batch.is_keyed:
            self.identity = self.identity or identity
            batch.identity = self.identity
            batch.base_sequence = self.next_sequence
            self.next_sequence = (self.next_sequence + batch.record_count) & _SEQUENCE_MASK
        self.window.append(batch)

    def is_oldest(self, batch: Batch) -> bool:
        """Whether the fate of everything before this batch is known."""
        for each in self.window:
            if each is batch:
                return True
            if each.stage is not Stage.REJECTED:
                return False
        return False

    def replace(self, batch: Batch, halves: tuple[Batch, ...]) -> None:
        position = self.window.index(batch)
        self.window[position : position + 1] = halves

    def acknowledge(self, batch: Batch) -> None:
        self.window.remove(batch)
        self.mend()

    def fail(self, batch: Batch) -> None:
        if batch in self.window:
            self.window.remove(batch)
            self.broken = batch.identity is not None and not batch.is_keyed
        else:
            self.queue.remove(batch)
        self.mend()

    def mend(self) -> None:
        """Start anew under the next epoch once no batch's fate is open."""
        if not self.broken or any(each.stage is not Stage.REJECTED for each in self.window):
            return
        for batch in reversed(self.window):
            batch.stage = Stage.WAITING
            batch.identity = None
            batch.base_sequence = -1
            batch.encoded = None
            self.queue.appendleft(batch)
        self.window = []
        self.broken = False
        self.next_sequence = 0
        if self.identity is not None and self.identity.epoch < LAST_EPOCH:
            self.identity = Identity(self.identity.producer_id, self.identity.epoch + 1)
        else:
            self.identity = None
