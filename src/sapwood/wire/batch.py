"""Kafka's record batch, version 2, as the broker sees it: a header in front of opaque records.

The CRC covers everything from the attributes on. Base offset and leader epoch lie before it, so
that a broker can set both without touching what the producer signed.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from sapwood.wire.encoder import Buffer
from sapwood.wire.errors import MalformedMessage

HEADER_SIZE = 61
LENGTH_END = 12  # the length counts what follows it
CRC_POSITION = 17
CRC_START = 21

COMPRESSION_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

MAGIC = 2
_SMALLEST_LENGTH = HEADER_SIZE - LENGTH_END
_SEQUENCES = 2**31

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LEADER_EPOCH_POSITION = 12
_PRODUCER_POSITION = 43
_MAX_TIMESTAMP_POSITION = 35
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """0 if producers set the time, 1 if the broker did."""
        return 1 if self.attributes & APPEND_TIME else 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from the largest int32 to 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


# Without the detour through NamedTuple's own constructor, which takes keywords.
_new_header: Callable[[type[BatchHeader], tuple[object, ...]], BatchHeader] = tuple.__new__


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`; the batch itself may reach beyond the buffer."""
    try:
        header = _new_header(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error as error:
        raise MalformedMessage(f"batch header at {position} is cut short") from error
    if header.magic != MAGIC:
        raise MalformedMessage(f"batch at {position} has the format {header.magic}, not {MAGIC}")
    if header.length < _SMALLEST_LENGTH:
        raise MalformedMessage(f"batch at {position} has the length {header.length}")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise MalformedMessage(
            f"batch at {position} has {header.record_count} records "
            f"and the last offset delta {header.last_offset_delta}"
        )
    return header


def write_header(header: BatchHeader) -> bytes:
    """The header as bytes, just as it is: nothing is checked or computed."""
    return _HEADER.pack(*header)


def crc_ok(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch is all there and its CRC is right."""
    end = position + header.size
    if end > len(buffer):
        return False
    return crc32c(memoryview(buffer)[position + CRC_START : end]) == header.crc


def patch_offset(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set what the broker decides and the CRC leaves out."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)


def patch_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Give all records the broker's time: readers take the batch's largest time for each."""
    length, attributes = struct.unpack_from(">8xi9xh", buffer, position)
    _ATTRIBUTES.pack_into(buffer, position + CRC_START, attributes | APPEND_TIME)
    _OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    end = position + LENGTH_END + length
    crc = crc32c(memoryview(buffer)[position + CRC_START : end])
    _CRC.pack_into(buffer, position + CRC_POSITION, crc)


def restamp(
    batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
) -> bytearray:
    """The batch as another producer's; its records stay as they are."""
    copy = bytearray(batch)
    (attributes,) = _ATTRIBUTES.unpack_from(copy, CRC_START)
    attributes = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(copy, CRC_START, attributes)
    _PRODUCER.pack_into(copy, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(copy, CRC_POSITION, crc32c(memoryview(copy)[CRC_START:]))
    return copy


def iterate(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch; MalformedMessage if the last one is cut short."""
    position = 0
    end = len(buffer)
    while position < end:
        header = read_header(buffer, position)
        if header.size > end - position:
            raise MalformedMessage(
                f"batch at {position} has {header.size} bytes, {end - position} are there"
            )
        yield position, header
        position += header.size
