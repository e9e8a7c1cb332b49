"""The producer: records in, batches out to the leaders, each stored once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sapwood.client.batches import (
    BATCH_OVERHEAD_BYTES,
    Batch,
    Delivery,
    Flush,
    Identity,
    MessageKey,
    PartitionQueue,
    Stage,
    record_size,
)
from sapwood.client.calls import AnyNode, Call, Router
from sapwood.client.cluster import ClusterView, Topic, TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.connection import Connection, Exchange
from sapwood.client.effects import Effects, Ticket
from sapwood.client.errors import STALE_VIEW, error_for
from sapwood.client.packed import PackedBatch, SealedBatch
from sapwood.client.partitioner import KeylessPartitioner, partition_of_key
from sapwood.client.pool import MAIN_LANE, ConnectionPool
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import NewRecord

# A broker remembers the last five batches of a producer: a sixth in flight could not be told
# from a repetition.
MAX_IN_FLIGHT = 5

# Above this version a Produce request announces its partitions to the coordinator by itself.
_ANNOUNCED_PARTITIONS = 11

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NEW_IDENTITY = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH)


class Scope(Protocol):
    """The transaction that a producer's records belong to."""

    transactional_id: str
    identity: Identity | None

    def admits(self, key: TopicPartition) -> bool:
        """Whether records may go to this partition; if not yet, the partition is announced."""

    def fail(self, error: Exception) -> None:
        """A record can't be stored, so that the transaction can't be committed."""


class Producer:
    """With a `scope`, all that it sends belongs to transactions."""

    def __init__(
        self,
        config: ClientConfig,
        view: ClusterView,
        pool: ConnectionPool,
        router: Router,
        effects: Effects,
        draw: Callable[[], float],
        scope: Scope | None = None,
    ) -> None:
        self._config = config
        self._view = view
        self._pool = pool
        self._router = router
        self._effects = effects
        self._draw = draw
        self._scope = scope
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._partitioners: dict[str, KeylessPartitioner] = {}
        self._identity: Identity | None = None
        self._identity_ticket: Ticket[Identity] | None = None
        self.buffered_bytes = 0
        # Without sequence numbers two batches in flight could change places.
        self._max_window = MAX_IN_FLIGHT if config.is_idempotent or config.acks == 0 else 1

    def has_room(self) -> bool:
        return self.buffered_bytes < self._config.buffer_bytes

    def append(
        self,
        topic: Topic,
        record: NewRecord,
        partition: int | None,
        delivery: Delivery,
        now_ms: float,
        message_key: MessageKey | None = None,
        *,
        may_queue: bool = False,
    ) -> None:
        """`may_queue` is for records with a key of their own: those can be told when they come
        again, by whichever way."""
        size_bytes = record_size(record)
        if size_bytes + BATCH_OVERHEAD_BYTES > self._config.max_request_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of about {size_bytes} bytes is larger than the client's "
                f"max_request_bytes ({self._config.max_request_bytes}): raise it or send less",
            )
        if partition is None:
            partition = self._partition_for(topic, record[1], size_bytes)
        key = topic.name, partition
        waiting = self._queue(key).queue
        batch = waiting[-1] if waiting else None
        is_shared = message_key is None and batch is not None and batch.is_open
        if (
            batch is None
            or not is_shared
            or batch.size_bytes + size_bytes > self._config.batch_bytes
        ):
            batch = Batch(key, now_ms)
            self.buffered_bytes += BATCH_OVERHEAD_BYTES
            waiting.append(batch)
        if message_key is not None:
            batch.is_keyed = True
            batch.identity, batch.base_sequence = message_key
            batch.may_queue = may_queue
        batch.add(record, size_bytes, delivery)
        self.buffered_bytes += size_bytes

    def append_packed(self, batch: PackedBatch | SealedBatch) -> None:
        self._queue(batch.key).queue.append(batch)
        self.buffered_bytes += batch.size_bytes

    def flush(self) -> Ticket[None]:
        flush = Flush()
        for queue in self._active.values():
            for batch in queue.batches:
                batch.flushes.append(flush)
                flush.unsettled += 1
        if not flush.unsettled:
            self._effects.succeed(flush.ticket, None)
        return flush.ticket

    def poll(self, now_ms: float) -> None:
        if not self._active:
            return
        self._expire(now_ms)
        if self._scope is not None:
            self._identity = self._scope.identity
            if self._identity is None:
                return
        # What has a key of its own needs no producer's.
        lacks_identity = (
            self._scope is None
            and self._config.is_idempotent
            and self._identity is None
            and any(not it.is_keyed for queue in self._active.values() for it in queue.queue)
            and not self._identify(now_ms)
        )
        by_node: dict[int, list[PartitionQueue]] = {}
        for queue in self._active.values():
            batch = queue.next_batch(now_ms, lambda batch: self._is_ready(batch, now_ms))
            if batch is None or (lacks_identity and not batch.is_keyed):
                continue
            if self._scope is not None and not self._scope.admits(queue.key):
                continue
            leader = self._view.leader(*queue.key)
            if leader is not None:
                queue.leaderless_since_ms = None
                by_node.setdefault(leader.leader, []).append(queue)
                continue
            if queue.leaderless_since_ms is None:
                queue.leaderless_since_ms = now_ms
            self._view.want(*queue.key)
        for node_id, queues in by_node.items():
            connection = self._pool.ready(node_id, MAIN_LANE, now_ms)
            while connection is not None and self._send(connection, queues, now_ms):
                pass

    def moments(self) -> Iterator[float]:
        for queue in self._active.values():
            oldest = queue.window[0] if queue.window else queue.queue[0]
            yield oldest.created_ms + self._config.delivery_timeout_ms
            yield queue.not_before_ms
            if queue.leaderless_since_ms is not None:
                yield queue.leaderless_since_ms + self._config.topic_wait_ms
            if queue.queue:
                yield queue.queue[0].created_ms + self._config.linger_ms

    def close(self, error: Exception) -> None:
        for queue in self._active.values():
            for batch in queue.batches:
                self._settle(batch, error)
        self._active.clear()
        self._queues.clear()

    def _queue(self, key: TopicPartition) -> PartitionQueue:
        queue = self._active.get(key)
        if queue is None:
            queue = self._queues.setdefault(key, PartitionQueue(key, self._max_window))
            self._active[key] = queue
        return queue

    def _partition_for(self, topic: Topic, key: bytes | None, size_bytes: int) -> int:
        if key is not None:
            return partition_of_key(key, len(topic.partitions))
        partitioner = self._partitioners.get(topic.name)
        if partitioner is None:
            stay_bytes = self._config.batch_bytes if self._config.keyless == "sticky" else 0
            first = int(self._draw() * len(topic.partitions))
            partitioner = KeylessPartitioner(first, stay_bytes)
            self._partitioners[topic.name] = partitioner
        return partitioner.choose(topic, size_bytes)

    def _is_ready(self, batch: Batch, now_ms: float) -> bool:
        return (
            now_ms - batch.created_ms >= self._config.linger_ms
            or batch.size_bytes >= self._config.batch_bytes
            or bool(batch.flushes)
            or not self.has_room()
        )

    def _identify(self, now_ms: float) -> bool:
        """Get a producer id; True once there is one."""
        ticket = self._identity_ticket
        if ticket is None:
            ticket = self._identity_ticket = Ticket()
            nobody = Struct(
                transactional_id=None, transaction_timeout=0, producer_id=-1, producer_epoch=-1
            )
            deadline_ms = now_ms + self._config.delivery_timeout_ms
            self._router.submit(
                Call(
                    Api.INIT_PRODUCER_ID,
                    nobody,
                    AnyNode(),
                    _read_identity,
                    ticket,
                    now_ms,
                    deadline_ms,
                )
            )
        if not ticket.done:
            return False
        self._identity_ticket = None
        if ticket.error is not None:
            self.close(ticket.error)
            return False
        self._identity = ticket.result()
        return True

    def _expire(self, now_ms: float) -> None:
        for queue in list(self._active.values()):
            for batch in list(queue.window):
                if batch.stage is Stage.WAITING:
                    self._fail_if_hopeless(queue, batch, now_ms)
            while queue.queue and self._fail_if_hopeless(queue, queue.queue[0], now_ms):
                pass  # behind the first that may wait the others are younger

    def _fail_if_hopeless(self, queue: PartitionQueue, batch: Batch, now_ms: float) -> bool:
        error = self._hopeless(queue, batch, now_ms)
        if error is not None:
            self._fail(queue, batch, error)
        return error is not None

    def _hopeless(self, queue: PartitionQueue, batch: Batch, now_ms: float) -> KafkaError | None:
        if queue.leaderless_since_ms is not None:
            trouble = self._view.hopeless(*queue.key, queue.leaderless_since_ms, now_ms)
            if trouble is not None:
                return trouble
        if now_ms - batch.created_ms < self._config.delivery_timeout_ms:
            return None
        reason = queue.last_error or self._pool.last_error
        fate = "may or may not have been stored" if batch.attempts else "wasn't sent"
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"topic {queue.key[0]}, partition {queue.key[1]}: not acknowledged within "
            f"{self._config.delivery_timeout_ms / 1000:g} s ({reason or 'no broker took it'}); "
            f"the record {fate}",
        )

    def _send(self, connection: Connection, queues: list[PartitionQueue], now_ms: float) -> bool:
        """One request with at most one batch for each partition; False if nothing is ready."""
        if connection.produces_in_flight >= MAX_IN_FLIGHT:
            return False
        batches: list[Batch] = []
        size_bytes = 0
        for queue in queues:
            batch = queue.next_batch(now_ms, lambda batch: self._is_ready(batch, now_ms))
            if batch is None or (batches and batch.may_queue != batches[0].may_queue):
                continue
            if batches and size_bytes + batch.size_bytes > self._config.max_request_bytes:
                break
            if queue.queue and batch is queue.queue[0]:
                queue.number(self._identity)
            batch.stage = Stage.IN_FLIGHT
            batch.attempts += 1
            batches.append(batch)
            size_bytes += batch.size_bytes
        if not batches:
            return False
        for batch in batches:  # whoever was served goes to the end of the line
            self._active[batch.key] = self._active.pop(batch.key)
        self._submit(connection, batches, now_ms)
        return True

    def _submit(self, connection: Connection, batches: Sequence[Batch], now_ms: float) -> None:
        by_topic: dict[str, list[Struct]] = {}
        for batch in batches:
            topic, partition = batch.key
            records = batch.encode(self._config.compression, transactional=bool(self._scope))
            by_topic.setdefault(topic, []).append(Struct(index=partition, records=records))
        message = Struct(
            transactional_id=self._scope.transactional_id if self._scope else None,
            acks=self._config.acks,
            timeout=self._config.request_timeout_ms,
            may_queue=batches[0].may_queue,
            topic_data=[
                Struct(name=topic, partition_data=partitions)
                for topic, partitions in by_topic.items()
            ],
        )

        def answered(answer: Struct | KafkaError, now_ms: float) -> None:
            connection.produces_in_flight -= 1
            self._answered(batches, answer, now_ms)

        is_answered = self._config.acks != 0
        # The broker may use the whole timeout before it answers.
        timeout_ms = self._config.request_timeout_ms * 1.5
        max_version = _ANNOUNCED_PARTITIONS if self._scope else None
        try:
            connection.submit(
                Exchange(Api.PRODUCE, message, answered, timeout_ms, is_answered, max_version),
                now_ms,
            )
        except KafkaError as error:
            for batch in batches:
                self._fail(self._queues[batch.key], batch, error)
            return
        if is_answered:
            connection.produces_in_flight += 1
        else:
            for batch in batches:
                self._acknowledge(self._queues[batch.key], batch)

    def _answered(
        self, batches: Sequence[Batch], answer: Struct | KafkaError, now_ms: float
    ) -> None:
        verdicts: dict[TopicPartition, Struct] = {}
        if isinstance(answer, Struct):
            for topic in answer.responses:
                for partition in topic.partition_responses:
                    verdicts[topic.name, partition.index] = partition
            answer = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the broker left a partition out")
        for batch in batches:
            queue = self._queues.get(batch.key)
            if queue is None:
                continue  # closed in the meantime
            verdict = verdicts.get(batch.key)
            if verdict is None:
                self._retry(queue, batch, answer, now_ms)
            elif verdict.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                batch.base_offset = verdict.base_offset
                batch.append_time = getattr(verdict, "log_append_time", -1)
                self._acknowledge(queue, batch)
            else:
                self._refused(queue, batch, verdict, now_ms)

    def _refused(self, queue: PartitionQueue, batch: Batch, verdict: Struct, now_ms: float) -> None:
        subject = f"topic {batch.key[0]}, partition {batch.key[1]}"
        said = getattr(verdict, "error_message", None)
        error = error_for(verdict.error_code, subject, said)
        if error.code in _TOO_LARGE and batch.record_count > 1:
            self._split(queue, batch)
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.is_keyed:
            collision = f"{subject}: another message's id looks the same: choose another id"
            self._fail(queue, batch, KafkaError(error.code, collision))
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not queue.is_oldest(batch):
            batch.stage = Stage.WAITING  # its predecessor comes first, then it will fit
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.broken:
            batch.stage = Stage.REJECTED
            queue.mend()
        elif error.code is ErrorCode.KAFKA_STORAGE_ERROR and batch.may_queue:
            self._fail(queue, batch, error)  # the outbox is full, and won't be emptied soon
        elif error.code.retriable:
            self._retry(queue, batch, error, now_ms)
        else:
            if error.code in _NEW_IDENTITY and not batch.is_keyed:
                queue.identity = None
            self._fail(queue, batch, error)

    def _retry(self, queue: PartitionQueue, batch: Batch, error: KafkaError, now_ms: float) -> None:
        batch.stage = Stage.WAITING
        queue.last_error = error
        queue.not_before_ms = now_ms + self._config.pause_ms(batch.attempts - 1)
        if error.code in STALE_VIEW:
            self._view.invalidate()

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        halves = batch.split()
        self.buffered_bytes += sum(half.size_bytes for half in halves)
        queue.replace(batch, halves)
        self._settle(batch, None)

    def _acknowledge(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.acknowledge(batch)
        queue.last_error = None
        self._settle(batch, None)
        self._retire(queue)

    def _fail(self, queue: PartitionQueue, batch: Batch, error: KafkaError) -> None:
        was_numbered = batch.identity is not None and not batch.is_keyed
        queue.fail(batch)
        if self._scope is not None:
            self._scope.fail(error)
        if was_numbered and queue.identity is None:
            self._identity = None  # its epochs are used up, or the broker doesn't know it
        self._settle(batch, error)
        self._retire(queue)

    def _settle(self, batch: Batch, error: Exception | None) -> None:
        self.buffered_bytes -= batch.size_bytes
        batch.release()
        if error is None:
            self._effects.succeed(batch.done, None)
        else:
            self._effects.fail(batch.done, error)
        for flush in batch.flushes:
            flush.unsettled -= 1
            if not flush.unsettled:
                self._effects.succeed(flush.ticket, None)

    def _retire(self, queue: PartitionQueue) -> None:
        if not queue:
            self._active.pop(queue.key, None)


def _read_identity(answer: Struct) -> Identity:
    if answer.error_code:
        raise error_for(answer.error_code, "the broker gives no producer id")
    return Identity(answer.producer_id, answer.producer_epoch)
