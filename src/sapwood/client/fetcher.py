"""The fetcher: positions in, chunks of record batches out, one parked request per broker.

Chunks queue up in order of arrival until `fetch_buffer_bytes` are held; then no more is asked
for until the reader has caught up. A partition's position moves on when a chunk is queued, so a
broken connection or a moved leader costs nothing but another request from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.client.cluster import ClusterView, TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.connection import Exchange
from sapwood.client.effects import Effects, Ticket
from sapwood.client.errors import STALE_VIEW, PositionLost, error_for
from sapwood.client.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from sapwood.client.pool import ConnectionPool
from sapwood.client.scatter import Scatterer
from sapwood.wire.apis import Api
from sapwood.wire.batch import BatchHeader, crc_ok, iterate, read_header
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.records import decode_batch

_LENGTH_END = 12


class Chunk(NamedTuple):
    """Whole record batches of one partition; the first may start before `offset`."""

    topic: str
    partition: int
    offset: int
    next_offset: int
    stop_offset: int | None
    high_watermark: int
    data: memoryview
    # Producer and first offset of transactions that were aborted: for readers of committed records
    # only, who have to leave these out.
    aborted: tuple[tuple[int, int], ...] = ()


class ConsumedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int  # 0: set by the producer, 1: by the broker


def wanted_batches(chunk: Chunk) -> Iterator[tuple[int, BatchHeader]]:
    """Where records for the reader lie: checked, no markers, nothing of aborted transactions."""
    data = chunk.data
    aborted = deque(sorted(chunk.aborted, key=lambda each: each[1]))
    aborting: set[int] = set()
    for position, header in iterate(data):
        if not crc_ok(data, position, header):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"topic {chunk.topic}, partition {chunk.partition}: the batch at offset "
                f"{header.base_offset} fails its CRC; read it from another replica",
            )
        while aborted and aborted[0][1] <= header.last_offset:
            aborting.add(aborted.popleft()[0])
        if header.is_control:
            aborting.discard(header.producer_id)  # its transaction ends here, one way or the other
        elif not header.is_transactional or header.producer_id not in aborting:
            yield position, header


def read_records(chunk: Chunk) -> Iterator[ConsumedRecord]:
    topic, partition, first, _, stop, _, data, _ = chunk
    for position, header in wanted_batches(chunk):
        kind = header.timestamp_type
        for record in decode_batch(data, position):
            offset = record.offset
            if offset >= first and (stop is None or offset < stop):
                yield ConsumedRecord(topic, partition, *record, kind)


class Unreadable(NamedTuple):
    """A batch that nobody can unpack. The cluster keeps batches as they were sent."""

    topic: str
    partition: int
    offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic}, partition {self.partition}: offsets {self.offset} to "
            f"{self.next_offset - 1} can't be unpacked ({self.reason})"
        )

    def as_loss(self) -> PositionLost:
        how = f"can't be unpacked ({self.reason})"
        return PositionLost(self.topic, self.partition, self.offset, self.next_offset, how=how)


def read_what_can_be(chunk: Chunk) -> Iterator[ConsumedRecord | Unreadable]:
    """As `read_records` does, for readers who go on behind what can't be unpacked."""
    for position, header in wanted_batches(chunk):
        end = position + header.size
        batch = chunk._replace(data=chunk.data[position:end], aborted=())
        try:
            yield from read_records(batch)
        except MalformedMessage as error:
            if header.last_offset >= chunk.offset:
                end_offset = header.last_offset + 1
                offset = max(chunk.offset, header.base_offset)
                yield Unreadable(chunk.topic, chunk.partition, offset, end_offset, str(error))


@dataclass(slots=True, eq=False)
class _Position:
    offset: int  # EARLIEST or LATEST until it was looked up
    attempts: int = 0
    not_before_ms: float = 0.0
    troubled_since_ms: float | None = None


class Fetcher:
    def __init__(
        self,
        config: ClientConfig,
        view: ClusterView,
        pool: ConnectionPool,
        scatterer: Scatterer,
        effects: Effects,
        lane: int,
        positions: Mapping[TopicPartition, int],
        stop_at: Mapping[TopicPartition, int],
    ) -> None:
        self._config = config
        self._view = view
        self._pool = pool
        self._scatterer = scatterer
        self._effects = effects
        self.lane = lane
        self._stop_at = dict(stop_at)
        self._positions: dict[TopicPartition, _Position] = {}
        for key, offset in positions.items():
            view.want(*key)
            self._move(key, _Position(offset), offset)
        self._chunks: deque[Chunk] = deque()
        self._asked_nodes: set[int] = set()
        self._lookup: Ticket[dict[TopicPartition, FoundOffset]] | None = None
        self._failure: Exception | None = None
        self._arrival: Ticket[None] | None = None
        self.buffered_bytes = 0

    def seek(self, key: TopicPartition, offset: int) -> None:
        """Read this partition from here on, whatever was read of it before."""
        self.release(key)
        self._view.want(*key)
        self._move(key, _Position(offset), offset)

    def release(self, key: TopicPartition) -> None:
        """Read no more of this partition; what is still under way is forgotten."""
        self._positions.pop(key, None)
        self._chunks = deque(each for each in self._chunks if each[:2] != key)
        self.buffered_bytes = sum(len(each.data) for each in self._chunks)

    @property
    def finished(self) -> bool:
        """Every partition was read to where it should stop."""
        return not self._positions and not self._chunks and self._failure is None

    def take(self) -> Chunk | None:
        """The next chunk, or None if there is none yet. What went wrong is raised in its turn."""
        if self._chunks:
            chunk = self._chunks.popleft()
            self.buffered_bytes -= len(chunk.data)
            return chunk
        if self._failure is not None:
            raise self._failure
        return None

    def arrival(self) -> Ticket[None]:
        """Settled once `take` or `finished` has news."""
        ticket = self._arrival = self._arrival or Ticket()
        if self._chunks or self._failure is not None or self.finished:
            self._notify()
        return ticket

    def poll(self, now_ms: float) -> None:
        if self._failure is not None:
            return
        self._locate(now_ms)
        by_node: dict[int, dict[TopicPartition, _Position]] = {}
        for key, position in self._positions.items():
            if position.offset < 0 or position.not_before_ms > now_ms:
                continue
            leader = self._view.leader(*key)
            if leader is not None:
                by_node.setdefault(leader.leader, {})[key] = position
            else:
                self._troubled(key, position, now_ms)
        if self.buffered_bytes < self._config.fetch_buffer_bytes:
            for node_id, positions in by_node.items():
                self._ask(node_id, positions, now_ms)

    def moments(self) -> Iterator[float]:
        for position in self._positions.values():
            yield position.not_before_ms
            if position.troubled_since_ms is not None:
                yield position.troubled_since_ms + self._config.topic_wait_ms

    def close(self, error: Exception) -> None:
        self._fail(error)
        self._positions.clear()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._notify()

    def _notify(self) -> None:
        if self._arrival is not None:
            ticket, self._arrival = self._arrival, None
            self._effects.succeed(ticket, None)

    def _move(self, key: TopicPartition, position: _Position, offset: int) -> None:
        """Partitions that moved go last, so that the next request asks for the others first."""
        self._positions.pop(key, None)
        stop = self._stop_at.get(key)
        if stop is None or offset < stop:
            position.offset = offset
            self._positions[key] = position

    def _locate(self, now_ms: float) -> None:
        """Look up where EARLIEST and LATEST are, for all partitions at once."""
        lookup = self._lookup
        if lookup is not None and lookup.done:
            self._lookup = None
            if lookup.error is not None:
                self._fail(lookup.error)
                return
            for key, found in lookup.result().items():
                position = self._positions.get(key)
                if position is not None and position.offset < 0:
                    self._move(key, position, found.offset)
            if self.finished:
                self._notify()
        unknown = {key: each.offset for key, each in self._positions.items() if each.offset < 0}
        if unknown and self._lookup is None:
            self._lookup = list_offsets(self._config, self._scatterer, unknown, now_ms)

    def _troubled(self, key: TopicPartition, position: _Position, now_ms: float) -> None:
        self._view.want(*key)
        if position.troubled_since_ms is None:
            position.troubled_since_ms = now_ms
        hopeless = self._view.hopeless(*key, position.troubled_since_ms, now_ms)
        if hopeless is not None:
            self._fail(hopeless)

    def _ask(self, node_id: int, positions: dict[TopicPartition, _Position], now_ms: float) -> None:
        if node_id in self._asked_nodes:
            return
        connection = self._pool.ready(node_id, self.lane, now_ms)
        if connection is None:
            return
        config = self._config
        by_topic: dict[str, list[Struct]] = {}
        asked: dict[TopicPartition, tuple[_Position, int]] = {}
        for (topic, partition), position in positions.items():
            leader = self._view.leader(topic, partition)
            asked[topic, partition] = position, position.offset
            by_topic.setdefault(topic, []).append(
                Struct(
                    partition=partition,
                    current_leader_epoch=leader.leader_epoch if leader else -1,
                    fetch_offset=position.offset,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=config.fetch_partition_bytes,
                )
            )
        message = Struct(
            replica_id=-1,
            max_wait=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=config.isolation_level,
            session_id=0,
            session_epoch=-1,
            topics=[Struct(topic=name, partitions=each) for name, each in by_topic.items()],
            forgotten_topics_data=[],
            rack_id="",
        )

        def answered(answer: Struct | KafkaError, now_ms: float) -> None:
            self._asked_nodes.discard(node_id)
            self._answered(asked, answer, now_ms)

        timeout_ms = config.request_timeout_ms + config.fetch_max_wait_ms
        try:
            connection.submit(Exchange(Api.FETCH, message, answered, timeout_ms), now_ms)
        except (KafkaError, TypeError, ValueError, OverflowError) as error:
            self._fail(error)
            return
        self._asked_nodes.add(node_id)

    def _answered(
        self,
        asked: dict[TopicPartition, tuple[_Position, int]],
        answer: Struct | KafkaError,
        now_ms: float,
    ) -> None:
        if self._failure is not None:
            return
        if isinstance(answer, Struct) and answer.error_code:
            answer = error_for(answer.error_code, "the broker refuses to fetch")
        if isinstance(answer, KafkaError):
            for key, (position, _) in asked.items():
                self._refused(key, position, answer, now_ms)
            return
        for topic in answer.responses:
            for data in topic.partitions:
                key = topic.topic, data.partition_index
                if key not in asked:
                    continue
                position, offset = asked[key]
                if self._positions.get(key) is not position:
                    continue
                if data.error_code:
                    subject = f"topic {key[0]}, partition {key[1]}, offset {offset}"
                    self._refused(key, position, error_for(data.error_code, subject), now_ms)
                elif data.records:
                    self._accept(key, position, data)

    def _accept(self, key: TopicPartition, position: _Position, data: Struct) -> None:
        position.attempts = 0
        position.troubled_since_ms = None
        try:
            chunk = read_chunk(key, position.offset, self._stop_at.get(key), data)
        except KafkaError as error:
            self._fail(error)
            return
        if chunk is None:
            return
        self._chunks.append(chunk)
        self.buffered_bytes += len(chunk.data)
        self._move(key, position, chunk.next_offset)
        self._notify()

    def _refused(
        self, key: TopicPartition, position: _Position, error: KafkaError, now_ms: float
    ) -> None:
        if self._positions.get(key) is not position:
            return
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._config.out_of_range != "error":
            position.offset = EARLIEST if self._config.out_of_range == "earliest" else LATEST
        elif error.code.retriable:
            if error.code in STALE_VIEW:
                self._view.invalidate()
            position.not_before_ms = now_ms + self._config.pause_ms(position.attempts)
            position.attempts += 1
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._troubled(key, position, now_ms)
        else:
            self._fail(error)


def read_chunk(
    key: TopicPartition, offset: int, stop_offset: int | None, data: Struct
) -> Chunk | None:
    """What a fetch from `offset` has brought of a partition; None if that is nothing new."""
    if not data.records:
        return None
    try:
        end, next_offset = _whole_batches(data.records)
    except MalformedMessage as error:
        subject = f"topic {key[0]}, partition {key[1]}, offset {offset}: {error}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, subject) from error
    if next_offset <= offset:
        return None
    aborted = getattr(data, "aborted_transactions", None) or ()
    return Chunk(
        *key,
        offset,
        next_offset,
        stop_offset,
        data.high_watermark,
        data.records[:end],
        tuple((each.producer_id, each.first_offset) for each in aborted),
    )


def _whole_batches(data: memoryview) -> tuple[int, int]:
    """Where the last whole batch ends, and the offset after it; brokers may cut the last off."""
    position, next_offset = 0, -1
    while len(data) - position > _LENGTH_END:
        length = int.from_bytes(data[position + 8 : position + _LENGTH_END], "big", signed=True)
        if length > len(data) - position - _LENGTH_END:
            break
        header = read_header(data, position)
        next_offset = header.next_offset
        position += header.size
    if not position:
        raise MalformedMessage("the broker sent less than one batch")
    return position, next_offset
