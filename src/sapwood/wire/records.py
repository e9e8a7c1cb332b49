"""The records inside a batch: for clients, compaction, look-up by time and dumps.

A broker that only passes batches on needs none of this.
"""

import struct
from collections.abc import Callable, Sequence
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
_UNSIGNED_PART = struct.Struct(">qiibI")

# A time and its delta are both held to this, so that their sum is still a 64-bit integer.
_LARGEST = 2**62

# Its length, attributes, two deltas, two lengths and a count.
_SMALLEST_RECORD = 7


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


# Without the detour through NamedTuple's own constructor, which takes keywords.
_new_record: Callable[[type[Record], tuple[object, ...]], Record] = tuple.__new__


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
    return seal_batch(
        body,
        len(records),
        base_timestamp,
        max_timestamp,
        base_offset=base_offset,
        last_offset_delta=None if offsets is None else offsets[-1] - base_offset,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        leader_epoch=leader_epoch,
    )


def seal_batch(
    body: Buffer,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytearray:
    """A batch of records that are encoded already, their deltas counted from what is given here."""
    attributes = compression
    if transactional:
        attributes |= batch.TRANSACTIONAL
    if control:
        attributes |= batch.CONTROL
    signed = _SIGNED_PART.pack(
        attributes,
        record_count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    payload = compress(compression, body)
    crc = crc32c(payload, crc32c(signed))
    length = batch.HEADER_SIZE - batch.LENGTH_END + len(payload)
    encoded = bytearray(
        _UNSIGNED_PART.pack(base_offset, length, leader_epoch, batch.MAGIC, crc) + signed
    )
    encoded += payload
    return encoded


def _encode_records(
    records: Sequence[NewRecord],
    base_timestamp: int,
    base_offset: int,
    offsets: Sequence[int] | None,
) -> bytearray:
    # One join per record: it costs a quarter of appending the eight pieces one by one.
    body = bytearray()
    table, known = _VARINTS, len(_VARINTS)
    for position, (timestamp, key, value, headers) in enumerate(records):
        time_delta = timestamp - base_timestamp
        offset_delta = position if offsets is None else offsets[position] - base_offset
        if key is None:
            key_size = _NULL
            key = b""
        else:
            size = len(key)
            key_size = table[size] if size < known else varint(size)
        if value is None:
            value_size = _NULL
            value = b""
        else:
            size = len(value)
            value_size = table[size] if size < known else varint(size)
        record = b"".join(
            (
                b"\0",  # attributes, unused
                table[time_delta] if 0 <= time_delta < known else varint(time_delta),
                table[offset_delta] if offset_delta < known else varint(offset_delta),
                key_size,
                key,
                value_size,
                value,
                _encode_headers(headers) if headers else b"\0",
            )
        )
        size = len(record)
        body += table[size] if size < known else varint(size)
        body += record
    return body


def _encode_headers(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded)
        parts += (_NULL, b"") if value is None else (varint(len(value)), value)
    return b"".join(parts)


def varint(value: int) -> bytes:
    """A signed varint: zigzag, so that small negative numbers are short, too."""
    value = value << 1 if value >= 0 else (~value << 1) | 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_NULL = varint(-1)
_VARINTS = [varint(value) for value in range(1024)]


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
    # Varints of one and of two bytes are read in place: that is nearly all of them, and a call
    # for each would double the time.
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    has_append_time, append_time = header.timestamp_type == 1, header.max_timestamp
    end = len(data)
    if header.record_count * _SMALLEST_RECORD > end:
        raise MalformedMessage(f"{header.record_count} records in {end} bytes")
    if not -_LARGEST <= base_timestamp <= _LARGEST:
        raise MalformedMessage(f"the time {base_timestamp} is out of range")
    previous, last = base_offset - 1, header.last_offset
    records: list[Record] = []
    p = 0
    for _ in range(header.record_count):
        n = data[p]
        p += 1
        if n > 127:
            if (m := data[p]) < 128:
                n += (m << 7) - 128
                p += 1
            else:
                n, p = _read_varint(data, p, n)
        stop = p + (n >> 1)
        if n & 1 or stop > end:
            raise MalformedMessage("a record is cut short")
        n = data[p + 1]  # behind the attributes, which are unused
        p += 2
        if n > 127:
            if (m := data[p]) < 128:
                n += (m << 7) - 128
                p += 1
            else:
                n, p = _read_varint(data, p, n)
        timestamp = append_time if has_append_time else base_timestamp + ((n >> 1) ^ -(n & 1))
        n = data[p]
        p += 1
        if n > 127:
            if (m := data[p]) < 128:
                n += (m << 7) - 128
                p += 1
            else:
                n, p = _read_varint(data, p, n)
        offset = base_offset + ((n >> 1) ^ -(n & 1))
        if not previous < offset <= last:
            raise MalformedMessage(f"offset {offset} follows {previous}, the last one is {last}")
        previous = offset
        n = data[p]
        p += 1
        if n > 127:
            if (m := data[p]) < 128:
                n += (m << 7) - 128
                p += 1
            else:
                n, p = _read_varint(data, p, n)
        key = None
        if not n & 1:
            q = p + (n >> 1)
            key = data[p:q]
            p = q
        n = data[p]
        p += 1
        if n > 127:
            if (m := data[p]) < 128:
                n += (m << 7) - 128
                p += 1
            else:
                n, p = _read_varint(data, p, n)
        value = None
        if not n & 1:
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
        records.append(_new_record(Record, (offset, timestamp, key, value, headers)))
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
            if value > 2 * _LARGEST:
                break
            return value, p
    raise MalformedMessage("a varint is too large")
