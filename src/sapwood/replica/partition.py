"""One partition: appends in order, commits when synced, wakes who waits."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sapwood.log import CorruptLog, Log, OffsetOutOfRange
from sapwood.replica.acceptance import Rules, accept
from sapwood.wire import batch as wire_batch
from sapwood.wire.batch import BatchHeader
from sapwood.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
# Too many open files, or no memory: says nothing about the disk.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
GROWTH_BYTES = 32 << 20
OnCommitted = Callable[[KafkaError | None], None]


class CommitListener(Protocol):
    """Told of every advance of the high watermark, and of the partition's going offline."""

    def committed(self, partition: Partition, size_bytes: int) -> None: ...


@dataclass(slots=True, frozen=True)
class Appended:
    base_offset: int
    timestamp_ms: int
    """The append time, or -1 where records carry their producer's."""


class Partition:
    """Single-threaded on the event loop; nothing here blocks but writes to the page cache."""

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log,
        rules: Rules,
        *,
        hybrid_now: Callable[[], int],
        on_offline: Callable[[Partition], None],
        on_grown: Callable[[Partition], None],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.rules = rules
        self.leader_epoch = log.last_epoch + 1
        """A new epoch for every start, so that clients notice a log that may have lost its tail."""
        self.high_watermark = log.end_offset
        self.offline_reason: str | None = None
        self._refusal: KafkaError | None = None
        self._hybrid_now = hybrid_now
        self._on_offline = on_offline
        self._on_grown = on_grown
        """Told after every so many bytes, so that a restart need not look at them again."""
        self._grown_bytes = 0
        self._waiting: deque[tuple[int, OnCommitted]] = deque()
        self._listeners: dict[CommitListener, None] = {}
        self._uncommitted_bytes = 0

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def check_online(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def produce(
        self, records: memoryview | None, now_ms: int, on_committed: OnCommitted | None
    ) -> Appended:
        """Append a producer's batch if this partition's rules let it in."""
        batch, header, append_time_ms = accept(records, self.rules, now_ms)
        return self.append(batch, header, now_ms, append_time_ms, on_committed)

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        now_ms: int,
        append_time_ms: int,
        on_committed: OnCommitted | None,
    ) -> Appended:
        """Append one checked batch; `on_committed` is called once, maybe before this returns.

        An exact repeat of a batch of the same producer is not stored again, and is acknowledged
        when the original is committed, never before.
        """
        self.check_online()
        log = self.log
        if header.producer_id >= 0:
            duplicate = log.producers.check(header, now_ms)
            if duplicate is not None:
                if on_committed is not None:
                    self._when_committed(duplicate + header.record_count, on_committed)
                original = log.producers.original(header)
                if append_time_ms >= 0 and original is not None:
                    append_time_ms = original.timestamp
                return Appended(duplicate, append_time_ms)
        base_offset = log.end_offset
        wire_batch.patch_offset(batch, 0, base_offset, self.leader_epoch)
        header = header._replace(base_offset=base_offset, leader_epoch=self.leader_epoch)
        try:
            log.append(batch, header, self._hybrid_now(), now_ms)
        except OSError as error:
            # Nothing of the batch counts: the log's end has not moved, and the next append
            # overwrites what may have been written. So a full disk costs only the writers.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"Partition {self} can't be written: {error}"
            ) from error
        self._uncommitted_bytes += header.size
        if on_committed is not None:
            self._waiting.append((log.end_offset, on_committed))
        if log.config.flush == "os":
            self._commit(log.end_offset)
        else:
            # Asked for even while a sync runs: the disk then goes on with the next one by itself.
            log.sync().add_done_callback(self._synced)
        return Appended(base_offset, append_time_ms)

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> list[memoryview]:
        """Whole committed batches from the one that holds `offset`."""
        self.check_online()
        try:
            return self.log.read(offset, max_bytes, self.high_watermark, at_least_one=at_least_one)
        except OffsetOutOfRange:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self} isn't there: it holds {self.log.start_offset} to "
                f"{self.high_watermark}",
            ) from None
        except (CorruptLog, OSError) as error:
            raise self._failed(error) from error

    def look_up(self, question: Callable[[Log], T]) -> T:
        """Ask the log something that reads its files."""
        self.check_online()
        try:
            return question(self.log)
        except (CorruptLog, OSError) as error:
            raise self._failed(error) from error

    async def advance_start(self, offset: int) -> None:
        """Forget all records below `offset`, and return when no crash can bring them back."""
        self.check_online()
        try:
            await self.log.advance_start(offset)
        except OSError as error:
            if self.log.failed is not None:
                raise self._failed(error) from error
            self.check_online()  # it may have been deleted
            # A disk may be too full even for this, and deleting is how people make room.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The new start of {self} could not be stored: {error}",
            ) from error

    def listen(self, listener: CommitListener) -> None:
        self._listeners[listener] = None

    def unlisten(self, listener: CommitListener) -> None:
        self._listeners.pop(listener, None)

    def take_offline(self, reason: str) -> None:
        if self.offline_reason is not None:
            return
        self.offline_reason = reason
        self._on_offline(self)
        message = f"Partition {self} is offline: {reason}"
        self._refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message))

    def delete(self) -> None:
        """Its topic is gone: so it is for everybody who still waits for it."""
        self.offline_reason = "the topic was deleted"
        message = f"The topic of {self} was deleted"
        self._refuse(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))

    def _failed(self, error: Exception) -> KafkaError:
        """What the asker is to be told; the partition goes offline unless it will pass."""
        if not (isinstance(error, OSError) and error.errno in _PASSING):
            self.take_offline(str(error))
        message = f"Partition {self} can't be read: {error}"
        return self._refusal or KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def _refuse(self, error: KafkaError) -> None:
        self._refusal = error
        waiting, self._waiting = self._waiting, deque()
        for _, on_committed in waiting:
            on_committed(error)
        for listener in list(self._listeners):
            listener.committed(self, 0)

    def _when_committed(self, offset: int, on_committed: OnCommitted) -> None:
        if offset <= self.high_watermark:
            on_committed(None)
        else:
            # Behind later appends it waits a little longer than it has to; that is harmless.
            self._waiting.append((offset, on_committed))

    def _synced(self, future: asyncio.Future[int]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.take_offline(f"a sync to disk failed: {error}")
            return
        if self.offline_reason is not None:
            return
        self._commit(future.result())

    def _commit(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        size, self._uncommitted_bytes = self._uncommitted_bytes, 0
        self._grown_bytes += size
        if self._grown_bytes >= GROWTH_BYTES:
            self._grown_bytes = 0
            self._on_grown(self)
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)
        if self._listeners:
            for listener in list(self._listeners):
                listener.committed(self, size)
