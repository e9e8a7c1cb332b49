"""The ends of the partitions that somebody below reads: batches as the leader has them, in order.

What is here was committed. A partition's part begins where its first reader stood and ends at what
has come from the parent; the oldest goes first when all of them together have become too large.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from sapwood.wire.batch import iterate
from sapwood.wire.codec import Struct
from sapwood.wire.control import decode_transaction_marker
from sapwood.wire.records import decode_batch

DEFAULT_BYTES = 64 << 20
CHUNK_OVERHEAD_BYTES = 512
Key = tuple[bytes, int]
"""Topic id and partition."""


class Fenced(Exception):
    """What comes next was written under a leader that the reader hasn't heard of yet."""


class Listener(Protocol):
    def changed(self, partition: CachedPartition) -> None:
        """There is more of it, or it has gone."""


@dataclass(slots=True, eq=False)
class _Chunk:
    """What came in one answer: batches that lie behind each other."""

    view: memoryview
    next_offsets: list[int]
    """One for each batch."""
    ends: list[int]
    """Where each batch ends in the view."""
    epochs: list[int]
    """Under whose lead each was written: they never get smaller."""

    @property
    def size_bytes(self) -> int:
        return len(self.view) + CHUNK_OVERHEAD_BYTES


@dataclass(slots=True, frozen=True)
class _Aborted:
    producer_id: int
    first_offset: int
    marker_offset: int


class CachedPartition:
    def __init__(self, key: Key, offset: int, now: float) -> None:
        self.key = key
        self.start_offset = offset
        self.end_offset = offset
        self.high_watermark = offset
        self.last_stable_offset = offset
        self.log_start_offset = -1
        self.is_gone = False
        self.wanted_at = now
        self._chunks: deque[_Chunk] = deque()
        self._open: dict[int, int] = {}
        """By producer, where its transaction begins, as far as it is seen from here."""
        self._aborted: deque[_Aborted] = deque()
        self._listeners: dict[Listener, None] = {}

    def __str__(self) -> str:
        return f"{self.key[0].hex()}-{self.key[1]}"

    # -- from above --------------------------------------------------------------------------

    def extend(self, records: memoryview) -> _Chunk | None:
        """Take what follows on what is there; what is there already is left out."""
        next_offsets: list[int] = []
        ends: list[int] = []
        epochs: list[int] = []
        begins = 0
        for position, header in iterate(records):
            if header.next_offset <= self.end_offset:
                begins = position + header.size
                continue
            if header.is_transactional and not header.is_control:
                self._open.setdefault(header.producer_id, header.base_offset)
            elif header.is_control and header.has_producer:
                self._end_transaction(records, position, header.producer_id, header.base_offset)
            next_offsets.append(header.next_offset)
            ends.append(position + header.size - begins)
            epochs.append(header.leader_epoch)
        if not ends:
            return None
        chunk = _Chunk(records[begins:], next_offsets, ends, epochs)
        self._chunks.append(chunk)
        self.end_offset = next_offsets[-1]
        return chunk

    def _end_transaction(
        self, records: memoryview, position: int, producer_id: int, offset: int
    ) -> None:
        (record,) = decode_batch(records, position)
        marker = decode_transaction_marker(record.key, record.value)
        if marker is None:
            return
        first_offset = self._open.pop(producer_id, None)
        if first_offset is not None and not marker.committed:
            self._aborted.append(_Aborted(producer_id, first_offset, offset))

    def learn(self, answer: Struct) -> None:
        """How far the partition is; never back, though another parent may know less."""
        self.high_watermark = max(self.high_watermark, answer.high_watermark)
        self.last_stable_offset = max(self.last_stable_offset, answer.last_stable_offset)
        self.log_start_offset = max(self.log_start_offset, answer.log_start_offset)

    def drop_oldest(self) -> None:
        chunk = self._chunks.popleft()
        self.start_offset = max(self.start_offset, chunk.next_offsets[-1])
        while self._aborted and self._aborted[0].marker_offset < self.start_offset:
            self._aborted.popleft()

    def wake(self) -> None:
        for listener in list(self._listeners):
            listener.changed(self)

    # -- from below --------------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        return bool(self._listeners)

    def listen(self, listener: Listener) -> None:
        self._listeners[listener] = None

    def unlisten(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def holds(self, offset: int) -> bool:
        """Whether it can be read from here, now or once it is there."""
        return not self.is_gone and offset >= max(self.start_offset, self.log_start_offset)

    def limit(self, *, stable: bool) -> int:
        """What may be read now: committed, and here."""
        known = self.last_stable_offset if stable else self.high_watermark
        return min(known, self.end_offset)

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, stable: bool, epoch: int = -1
    ) -> list[memoryview]:
        """Whole batches from the one that holds `offset`; those of later epochs than the reader
        knows of are kept from it: Fenced if that leaves nothing."""
        limit = self.limit(stable=stable)
        views: list[memoryview] = []
        for chunk in self._chunks:
            if chunk.next_offsets[-1] <= offset:
                continue
            first = bisect_right(chunk.next_offsets, offset)
            begins = chunk.ends[first - 1] if first else 0
            last = bisect_right(chunk.next_offsets, limit)
            fitting = bisect_right(chunk.ends, begins + max_bytes)
            if at_least_one and fitting <= first:
                fitting = first + 1
            end = min(last, fitting)
            if end <= first:
                break
            if 0 <= epoch < chunk.epochs[end - 1]:
                end = bisect_right(chunk.epochs, epoch, first, end)
                if end == first:
                    if not views:
                        raise Fenced
                    break
            view = chunk.view[begins : chunk.ends[end - 1]]
            views.append(view)
            max_bytes -= len(view)
            at_least_one = False
            if end < len(chunk.ends):
                break
        return views

    def aborted(self, offset: int, end_offset: int) -> list[Struct]:
        """The transactions whose records a reader of that range has to leave out."""
        return [
            Struct(producer_id=it.producer_id, first_offset=it.first_offset)
            for it in self._aborted
            if it.first_offset < end_offset and it.marker_offset >= offset
        ]


class Cache:
    """All partitions, and how much they may hold together."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.partitions: dict[Key, CachedPartition] = {}
        self._order: deque[tuple[CachedPartition, _Chunk]] = deque()

    @property
    def lag(self) -> int:
        """How many records the parent is known to have that aren't here yet."""
        parts = self.partitions.values()
        return sum(max(0, it.high_watermark - it.end_offset) for it in parts)

    def begin(self, key: Key, offset: int, now: float) -> CachedPartition:
        partition = self.partitions[key] = CachedPartition(key, offset, now)
        return partition

    def extend(self, partition: CachedPartition, records: memoryview) -> None:
        chunk = partition.extend(records)
        if chunk is None:
            return
        self._order.append((partition, chunk))
        self.size_bytes += chunk.size_bytes
        while self.size_bytes > self.limit_bytes and len(self._order) > 1:
            oldest, chunk = self._order.popleft()
            self.size_bytes -= chunk.size_bytes
            if not oldest.is_gone:
                oldest.drop_oldest()

    def drop(self, partition: CachedPartition) -> None:
        """Nobody wants it, or it is not what it was; who waits for it asks above."""
        if self.partitions.get(partition.key) is partition:
            del self.partitions[partition.key]
        partition.is_gone = True
        kept: deque[tuple[CachedPartition, _Chunk]] = deque()
        for it in self._order:
            if it[0] is partition:
                self.size_bytes -= it[1].size_bytes
            else:
                kept.append(it)
        self._order = kept
        partition.wake()
