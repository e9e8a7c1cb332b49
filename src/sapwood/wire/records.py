"""The records inside a batch: for clients, compaction, look-up by time and dumps.

A broker that only passes batches on needs none of this.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from sapwood.wire import batch
from sapwood.wire.compression import compress, decompress
from sapwood.wire.encoder import Buffer
from sapwood.wire.errors import MalformedMessage

DEFAULT_MAX_BYTES = 128 * 1024 * 1024

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
NewRecord: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]

_SIGNED_PART = struct.Struct(">hiqqqhii")
_WHOLE_HEADER = struct.Struct(">qiibI")


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    offsets: Sequence[int] | None = None,
) -> bytearray:
    """A batch of (timestamp, key, value, headers); `offsets`, if given, are absolute and ascend."""
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0][0]
    max_timestamp = max(record[0] for record in records)
    body = _encode_records(records, base_timestamp, base_offset, offsets)
    last_offset_delta = len(records) - 1 if offsets is None else offsets[-1] - base_offset
    attributes = compression
    if transactional:
        attributes |= batch.TRANSACTIONAL
    if control:
        attributes |= batch.CONTROL
    signed = _SIGNED_PART.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    payload = compress(compression, body)
    crc = crc32c(payload, crc32c(signed))
    length = batch.HEADER_SIZE - batch.LENGTH_END + len(payload)
    encoded = bytearray(
        _WHOLE_HEADER.pack(base_offset, length, leader_epoch, batch.MAGIC, crc) + signed
    )
    encoded += payload
    return encoded


def _encode_records(
    records: Sequence[NewRecord],
    base_timestamp: int,
    base_offset: int,
    offsets: Sequence[int] | None,
) -> bytearray:
    body = bytearray()
    small = _SMALL_VARINTS
    for position, (timestamp, key, value, headers) in enumerate(records):
        time_delta = timestamp - base_timestamp
        offset_delta = position if offsets is None else offsets[position] - base_offset
        record = bytearray(1)  # attributes, always 0
        record += small[time_delta] if 0 <= time_delta < 64 else varint(time_delta)
        record += small[offset_delta] if 0 <= offset_delta < 64 else varint(offset_delta)
        if key is None:
            record.append(1)
        else:
            size = len(key)
            record += small[size] if size < 64 else varint(size)
            record += key
        if value is None:
            record.append(1)
        else:
            size = len(value)
            record += small[size] if size < 64 else varint(size)
            record += value
        if headers:
            record += varint(len(headers))
            for name, content in headers:
                encoded = name.encode()
                record += varint(len(encoded))
                record += encoded
                if content is None:
                    record.append(1)
                else:
                    record += varint(len(content))
                    record += content
        else:
            record.append(0)
        size = len(record)
        body += small[size] if size < 64 else varint(size)
        body += record
    return body


def varint(value: int) -> bytes:
    """A signed varint: zigzag, so that small negative numbers are short, too."""
    value = value << 1 if value >= 0 else (~value << 1) | 1
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL_VARINTS = [bytes((value << 1,)) for value in range(64)]


def decode_batch(
    buffer: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Record]:
    """The records of the batch at `position`; the CRC is not checked again here."""
    header = batch.read_header(buffer, position)
    end = position + header.size
    if end > len(buffer):
        raise MalformedMessage(f"batch at {position} is cut short")
    payload = memoryview(buffer)[position + batch.HEADER_SIZE : end]
    data = bytes(decompress(header.compression, payload, max_bytes))
    try:
        return _decode_records(data, header)
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"records of the batch at {position} are malformed") from error


def _decode_records(data: bytes, header: batch.BatchHeader) -> list[Record]:
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.timestamp_type else None
    end = len(data)
    # The smallest record: its length, attributes, two deltas, two lengths and a count.
    if header.record_count * 7 > end:
        raise MalformedMessage(f"{header.record_count} records in {end} bytes")
    records: list[Record] = []
    append = records.append
    read = _read_varint
    p = 0
    for _ in range(header.record_count):
        n = data[p]
        p += 1
        if n > 127:
            n, p = read(data, p, n)
        stop = p + ((n >> 1) ^ -(n & 1))
        if stop > end or n & 1:
            raise MalformedMessage("a record is cut short")
        p += 1  # attributes, unused
        n = data[p]
        p += 1
        if n > 127:
            n, p = read(data, p, n)
        timestamp = base_timestamp + ((n >> 1) ^ -(n & 1))
        n = data[p]
        p += 1
        if n > 127:
            n, p = read(data, p, n)
        offset = base_offset + ((n >> 1) ^ -(n & 1))
        n = data[p]
        p += 1
        if n > 127:
            n, p = read(data, p, n)
        if n & 1:
            key = None
        else:
            q = p + (n >> 1)
            key = data[p:q]
            p = q
        n = data[p]
        p += 1
        if n > 127:
            n, p = read(data, p, n)
        if n & 1:
            value = None
        else:
            q = p + (n >> 1)
            value = data[p:q]
            p = q
        n = data[p]
        p += 1
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if n:
            headers, p = _decode_headers(data, p, n, stop)
        # A length that is wrong anywhere above puts the end of the record in the wrong place.
        if p != stop:
            raise MalformedMessage("a record does not fill its length")
        append(
            Record(offset, timestamp if append_time is None else append_time, key, value, headers)
        )
    if p != end:
        raise MalformedMessage(f"{end - p} bytes follow the last record")
    return records


def _decode_headers(
    data: bytes, p: int, n: int, stop: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if n > 127:
        n, p = _read_varint(data, p, n)
    count = n >> 1
    if n & 1 or count * 2 > stop - p:
        raise MalformedMessage("a record announces more headers than it has")
    headers = []
    for _ in range(count):
        n = data[p]
        p += 1
        if n > 127:
            n, p = _read_varint(data, p, n)
        q = p + (n >> 1)
        if n & 1 or q > stop:
            raise MalformedMessage("the name of a header is cut short")
        name = data[p:q].decode()
        p = q
        n = data[p]
        p += 1
        if n > 127:
            n, p = _read_varint(data, p, n)
        value = None
        if not n & 1:
            q = p + (n >> 1)
            value = data[p:q]
            p = q
        headers.append((name, value))
    return tuple(headers), p


def _read_varint(data: bytes, p: int, first: int) -> tuple[int, int]:
    """The rest of a varint, still in zigzag, whose first byte was read already."""
    value = first & 0x7F
    for shift in range(7, 70, 7):
        byte = data[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, p
    raise MalformedMessage("a varint is longer than 64 bits")
