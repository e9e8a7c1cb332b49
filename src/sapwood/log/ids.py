"""Which messages were stored under an id that their sender chose, and where.

Such a message is a batch of its own. 62 bits of a hash of its id stand in the place of a producer,
from FIRST_ID on, and 31 more in that of a sequence: so the log can tell a repeat without looking
inside, and knows two ids that share the 62 bits apart.

They are many, and few ever come again. So they are kept by generations, in columns of plain
numbers; the oldest generation goes as a whole, when those after it hold enough or it is too old.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left

from sapwood.log import columns
from sapwood.wire.batch import BatchHeader
from sapwood.wire.errors import ErrorCode, KafkaError

FIRST_ID = 2**62
KEPT = 100_000
KEPT_MS = 24 * 3_600_000

_GENERATION = 25_000
_FEWEST_BITS = 6
_COUNT = struct.Struct(">I")
_HEAD = struct.Struct(">qI")  # when it was used last, how many


class _Generation:
    """Ids with sequence and offset, in the order of their offsets, and a table to find them by."""

    __slots__ = ("_slots", "ids", "offsets", "sequences", "used_ms")

    def __init__(self, used_ms: int) -> None:
        self.used_ms = used_ms
        self.ids = array("q")
        self.sequences = array("i")
        self.offsets = array("q")
        # Numbers from 1 on, at the place that the id's low bits give, or the next free one behind.
        # Made when it is needed: followers never look for an id, and neither does a start.
        self._slots = array("i")

    def find(self, message_id: int) -> int | None:
        if not self._slots:
            self._find_places()
        slots, ids = self._slots, self.ids
        mask = len(slots) - 1
        slot = message_id & mask
        while number := slots[slot]:
            if ids[number - 1] == message_id:
                return number - 1
            slot = (slot + 1) & mask
        return None

    def add(self, message_id: int, sequence: int, offset: int) -> None:
        self.ids.append(message_id)
        self.sequences.append(sequence)
        self.offsets.append(offset)
        if 2 * len(self.ids) > len(self._slots):
            self._find_places()
        else:
            self._place(len(self.ids) - 1)

    def extend(self, ids: array[int], sequences: array[int], offsets: array[int]) -> None:
        self.ids.extend(ids)
        self.sequences.extend(sequences)
        self.offsets.extend(offsets)
        self._slots = array("i")

    def _find_places(self) -> None:
        """In a table that has at least twice as many."""
        bits = max(_FEWEST_BITS, (4 * len(self.ids)).bit_length() - 1)
        self._slots = array("i", bytes(4 << bits))
        for number in range(len(self.ids)):
            self._place(number)

    def _place(self, number: int) -> None:
        slots = self._slots
        mask = len(slots) - 1
        slot = self.ids[number] & mask
        while slots[slot]:
            slot = (slot + 1) & mask
        slots[slot] = number + 1


class IdWindow:
    __slots__ = ("_generations",)

    def __init__(self) -> None:
        self._generations: list[_Generation] = []

    def __len__(self) -> int:
        return sum(len(it.ids) for it in self._generations)

    def original(self, header: BatchHeader) -> int | None:
        """The offset of the message that this one repeats."""
        for generation in reversed(self._generations):
            number = generation.find(header.producer_id)
            if number is not None:
                if generation.sequences[number] != header.base_sequence:
                    raise KafkaError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        "The message's id has the hash of another one's that is stored here: "
                        "choose another id",
                    )
                return generation.offsets[number]
        return None

    def add(self, header: BatchHeader, now_ms: int) -> None:
        generations = self._generations
        if not generations or len(generations[-1].ids) >= _GENERATION:
            generations.append(_Generation(now_ms))
            if len(self) - len(generations[0].ids) >= KEPT:
                del generations[0]
        generation = generations[-1]
        generation.used_ms = now_ms
        generation.add(header.producer_id, header.base_sequence, header.base_offset)

    def offsets(self) -> list[int]:
        return [offset for it in self._generations for offset in it.offsets]

    def expire(self, now_ms: int) -> None:
        while self._generations and now_ms - self._generations[0].used_ms > KEPT_MS:
            del self._generations[0]

    def as_of(self, offset: int) -> IdWindow:
        window = IdWindow()
        for it in self._generations:
            count = bisect_left(it.offsets, offset)
            if count:
                earlier = _Generation(it.used_ms)
                earlier.extend(it.ids[:count], it.sequences[:count], it.offsets[:count])
                window._generations.append(earlier)
        return window

    def encode(self) -> bytes:
        parts = [_COUNT.pack(len(self._generations))]
        for it in self._generations:
            parts.append(_HEAD.pack(it.used_ms, len(it.ids)))
            parts += map(columns.pack, (it.ids, it.sequences, it.offsets))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, position: int) -> IdWindow:
        """The window that `encode` gave; the caller has checked its checksum."""
        window = cls()
        (generations,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(generations):
            used_ms, count = _HEAD.unpack_from(data, position)
            generation = _Generation(used_ms)
            ids, position = columns.unpack("q", count, data, position + _HEAD.size)
            sequences, position = columns.unpack("i", count, data, position)
            offsets, position = columns.unpack("q", count, data, position)
            generation.extend(ids, sequences, offsets)
            window._generations.append(generation)
        return window
