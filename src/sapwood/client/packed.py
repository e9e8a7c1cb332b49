"""Batches whose records come encoded: the bulk way into the producer."""

from __future__ import annotations

from sapwood.client.batches import Batch, Delivery, Identity
from sapwood.client.cluster import TopicPartition
from sapwood.wire.batch import BatchHeader, restamp
from sapwood.wire.codec import Buffer
from sapwood.wire.records import decode_batch, seal_batch


class PackedBatch(Batch):
    """Numbered, sent and acknowledged like any other, but nothing can be added to it."""

    __slots__ = ("_base_timestamp", "_body", "_max_timestamp", "_parts", "_record_count")

    def __init__(
        self,
        key: TopicPartition,
        created_ms: float,
        body: Buffer,
        record_count: int,
        base_timestamp: int,
        max_timestamp: int,
    ) -> None:
        super().__init__(key, created_ms)
        self.size_bytes += len(body)
        self._body = body
        self._record_count = record_count
        self._base_timestamp = base_timestamp
        self._max_timestamp = max_timestamp
        self._parts: list[Delivery] = []  # what became of it if it had to be split

    @property
    def record_count(self) -> int:
        return self._record_count

    @property
    def is_open(self) -> bool:
        return False

    @property
    def is_settled(self) -> bool:
        return self.done.done and all(part.done for part in self._parts)

    def check(self) -> None:
        """Once it is settled: raise what kept its records from being stored."""
        self.done.result()
        for part in self._parts:
            part.result()

    def release(self) -> None:
        super().release()
        self._body = b""

    def encode(self, compression: int, *, transactional: bool = False) -> Buffer:
        if self.encoded is None:
            producer_id, epoch = self.identity or (-1, -1)
            self.encoded = seal_batch(
                self._body,
                self._record_count,
                self._base_timestamp,
                self._max_timestamp,
                compression=compression,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=self.base_sequence,
                transactional=transactional,
            )
        return self.encoded

    def split(self) -> tuple[Batch, Batch]:
        """Into ordinary batches: rare enough to unpack every record for it."""
        whole = seal_batch(
            self._body, self._record_count, self._base_timestamp, self._max_timestamp
        )
        for _, timestamp, key, value, headers in decode_batch(whole):
            record = timestamp, key, value, headers
            self.records.append(record)
            delivery = Delivery()
            delivery.timestamp = timestamp
            self.deliveries.append(delivery)
        self._parts = list(self.deliveries)
        return super().split()


class SealedBatch(Batch):
    """A whole batch as somebody else made it: sent under our numbers, or, if its own numbers are a
    message's key, as it is."""

    __slots__ = ("_header", "_sealed")

    def __init__(
        self, key: TopicPartition, created_ms: float, sealed: Buffer, header: BatchHeader
    ) -> None:
        super().__init__(key, created_ms)
        self.size_bytes = header.size
        self._sealed = sealed
        self._header = header
        if header.has_producer:
            self.is_keyed = True
            self.identity = Identity(header.producer_id, header.producer_epoch)
            self.base_sequence = header.base_sequence

    @property
    def record_count(self) -> int:
        return self._header.record_count

    @property
    def is_open(self) -> bool:
        return False

    def release(self) -> None:
        super().release()
        self._sealed = b""

    def encode(self, compression: int, *, transactional: bool = False) -> Buffer:
        """With the compression that it has."""
        if self.encoded is None:
            producer_id, epoch = self.identity or (-1, -1)
            self.encoded = restamp(
                self._sealed, producer_id, epoch, self.base_sequence, transactional=transactional
            )
        return self.encoded

    def split(self) -> tuple[Batch, Batch]:
        for _, timestamp, key, value, headers in decode_batch(self._sealed):
            self.add((timestamp, key, value, headers), 0, Delivery())
        return super().split()
