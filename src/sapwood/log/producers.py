"""Which batches of idempotent producers a log holds already.

Kafka's rules. Per producer the last five batches are remembered: an exact repeat of one of them
is answered with the original's offset. A new epoch starts at sequence 0; an unknown producer may
start anywhere; otherwise each batch follows the one before, and after 2^31 - 1 comes 0. A batch
without a sequence is a coordinator's, or a marker's: its epoch counts, and fences older ones.
Ids of messages, which take the place of producers, have a window of their own.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from sapwood.log.ids import FIRST_ID, IdWindow
from sapwood.wire.batch import BatchHeader
from sapwood.wire.errors import ErrorCode, KafkaError

WINDOW = 5
EXPIRATION_MS = 24 * 3_600_000
# Past this the producers that were quiet longest are forgotten, as if they had expired.
MAX_PRODUCERS = 10_000

_SEQUENCES = 2**31
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhqqiqB")
# Before there were transactions there were no markers.
_OLD_PRODUCER = struct.Struct(">qhqqB")
_BATCH = struct.Struct(">qiiq")


class SeenBatch(NamedTuple):
    base_offset: int
    first_sequence: int
    last_sequence: int
    timestamp: int


class Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "marker_offset", "records", "used_ms")

    def __init__(
        self,
        epoch: int,
        records: int,
        used_ms: int,
        coordinator_epoch: int = -1,
        marker_offset: int = -1,
    ) -> None:
        self.epoch = epoch
        self.used_ms = used_ms
        self.records = records
        """How many records of this epoch were seen here: sequences further back are unknown."""
        self.coordinator_epoch = coordinator_epoch
        """Of whoever wrote the last marker."""
        self.marker_offset = marker_offset
        """Of the last marker."""
        self.batches: deque[SeenBatch] = deque(maxlen=WINDOW)

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.records = 0
        self.batches.clear()


class ProducerTable:
    def __init__(self, max_producers: int = MAX_PRODUCERS) -> None:
        self._max_producers = max_producers
        # The least recently used first.
        self._producers: dict[int, Producer] = {}
        self.ids = IdWindow()
        """Of messages, which look like producers with one batch each."""

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._producers.items())

    def find(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def original(self, header: BatchHeader) -> SeenBatch | None:
        """The batch that this one repeats, if it is among the producer's last five."""
        if header.producer_id >= FIRST_ID:
            offset = self.ids.original(header)
            sequence = header.base_sequence
            # Its time isn't kept.
            return None if offset is None else SeenBatch(offset, sequence, sequence, -1)
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        return None

    def check(self, header: BatchHeader, now_ms: int) -> int | None:
        """None if the batch may be appended; the original's base offset if it is a repeat."""
        if header.producer_id >= FIRST_ID:
            return self.ids.original(header)
        producer = self._producers.get(header.producer_id)
        if not header.has_producer or header.is_control or producer is None:
            return None
        if now_ms - producer.used_ms > EXPIRATION_MS:
            del self._producers[header.producer_id]
            return None
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {header.producer_id} has epoch {header.producer_epoch}, a newer one "
                f"with epoch {producer.epoch} has taken over",
            )
        first = header.base_sequence
        if first < 0:
            return None
        if header.producer_epoch > producer.epoch:
            if first != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Producer {header.producer_id} starts epoch {header.producer_epoch} with "
                    f"sequence {first} instead of 0",
                )
            return None
        original = self.original(header)
        if original is not None:
            return original.base_offset
        if not producer.batches:
            return None
        last = producer.batches[-1].last_sequence
        if first == (last + 1) % _SEQUENCES:
            return None
        behind = (last - first) % _SEQUENCES + 1
        oldest = (last - producer.batches[0].first_sequence) % _SEQUENCES + 1
        if oldest < behind <= producer.records and behind - oldest > header.last_offset_delta:
            raise KafkaError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"Producer {header.producer_id} repeats sequence {first}, which was stored long "
                f"before its last {len(producer.batches)} batches",
            )
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Producer {header.producer_id} sends sequence {first} after {last}",
        )

    def update(self, header: BatchHeader, now_ms: int) -> None:
        """Count a batch that was appended."""
        producer_id = header.producer_id
        if producer_id < 0:
            return
        if producer_id >= FIRST_ID:
            self.ids.add(header, now_ms)
            return
        producer = self._producers.pop(producer_id, None)
        if producer is None:
            producer = Producer(header.producer_epoch, 0, now_ms)
        elif producer.epoch != header.producer_epoch:
            producer.begin(header.producer_epoch)
        self._producers[producer_id] = producer
        producer.used_ms = now_ms
        # A transaction's marker tells the epoch but has no place in the sequence.
        if header.base_sequence >= 0:
            count = header.last_offset_delta + 1
            producer.records = min(producer.records + count, _SEQUENCES - 1)
            producer.batches.append(
                SeenBatch(
                    header.base_offset,
                    header.base_sequence,
                    header.last_sequence,
                    header.max_timestamp,
                )
            )
        if len(self._producers) > self._max_producers:
            del self._producers[next(iter(self._producers))]

    def marked(self, producer_id: int, offset: int, coordinator_epoch: int) -> None:
        """The batch that was counted last is a marker."""
        producer = self._producers[producer_id]
        producer.marker_offset = offset
        producer.coordinator_epoch = coordinator_epoch

    def told_by(self) -> list[int]:
        """The offsets of the batches without which less would be known."""
        offsets = self.ids.offsets()
        for producer in self._producers.values():
            offsets += [batch.base_offset for batch in producer.batches][-1:]
            offsets.append(producer.marker_offset)
        return offsets

    def expire(self, now_ms: int) -> None:
        self.ids.expire(now_ms)
        while self._producers:
            producer_id, producer = next(iter(self._producers.items()))
            if now_ms - producer.used_ms <= EXPIRATION_MS:
                return
            del self._producers[producer_id]

    def as_of(self, offset: int) -> ProducerTable:
        """What the table was at `offset`, as far as that is still known: the batches from there on
        make it this one again."""
        table = ProducerTable(self._max_producers)
        table.ids = self.ids.as_of(offset)
        for producer_id, it in self._producers.items():
            marker_offset = it.marker_offset if it.marker_offset < offset else -1
            earlier = Producer(it.epoch, 0, it.used_ms, it.coordinator_epoch, marker_offset)
            table._producers[producer_id] = earlier
            earlier.batches.extend(batch for batch in it.batches if batch.base_offset < offset)
            if earlier.batches:
                later = list(it.batches)[len(earlier.batches) :]
                earlier.records = it.records - sum(map(_length, later))
            # Else nobody knows how many there were. Too few is safe: to call something a
            # duplicate that was never stored would lose it.
        return table

    def encode(self) -> bytes:
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, it in self._producers.items():
            facts = it.epoch, it.records, it.used_ms, it.coordinator_epoch, it.marker_offset
            parts.append(_PRODUCER.pack(producer_id, *facts, len(it.batches)))
            parts.extend(_BATCH.pack(*batch) for batch in it.batches)
        parts.append(self.ids.encode())
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, *, old: bool = False) -> ProducerTable:
        """The table that `encode` gave; the caller has checked its checksum."""
        table = cls()
        (count,) = _COUNT.unpack_from(data)
        position = _COUNT.size
        for _ in range(count):
            if old:
                producer_id, *facts, batches = _OLD_PRODUCER.unpack_from(data, position)
                position += _OLD_PRODUCER.size
            else:
                producer_id, *facts, batches = _PRODUCER.unpack_from(data, position)
                position += _PRODUCER.size
            producer = table._producers[producer_id] = Producer(*facts)
            for _ in range(batches):
                producer.batches.append(SeenBatch(*_BATCH.unpack_from(data, position)))
                position += _BATCH.size
        if not old:
            table.ids = IdWindow.decode(data, position)
        return table


def _length(batch: SeenBatch) -> int:
    return (batch.last_sequence - batch.first_sequence) % _SEQUENCES + 1
