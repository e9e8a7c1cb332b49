"""Record batches into Arrow columns: headers one by one, records by compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sapwood.client.fetcher import Chunk, wanted_batches
from sapwood.spark import kernels
from sapwood.wire.batch import HEADER_SIZE, BatchHeader
from sapwood.wire.codec import Buffer
from sapwood.wire.compression import Compression, decompress
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.records import DEFAULT_MAX_BYTES

# Columns of Spark's Kafka source, in its order.
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS_TYPE))

# One Arrow batch comes from about so many bytes of records; more than one batch of records only
# if they fit. Far below the 2 GiB that Arrow's 32-bit offsets could take.
SLICE_BYTES = 8 * 1024 * 1024

_SMALLEST_RECORD = 7
_LARGEST_TIME = 2**62
_LAST_OFFSET = 2**63 - 1
# The last millisecond that still is a microsecond of 64 bits.
_LARGEST_MILLISECOND = (2**63 - 1) // 1000

_REASONS = {
    kernels.CUT_SHORT: "a record is cut short",
    kernels.BAD_VARINT: "a varint is too large or cut short",
    kernels.BAD_OFFSET: "offsets don't ascend up to the last one",
    kernels.BAD_HEADERS: "a record announces more headers than it has",
    kernels.BAD_LENGTH: "a record does not fill its length",
    kernels.TRAILING_BYTES: "bytes follow the last record",
}


class _Payload(NamedTuple):
    header: BatchHeader
    position: int  # of the records in the chunk; −1 if they were compressed
    data: Buffer


def record_batches(chunk: Chunk, *, with_headers: bool = False) -> Iterator[pa.RecordBatch]:
    """The chunk's records as SCHEMA has them; none of aborted transactions, and no markers."""
    slice_: list[_Payload] = []
    size_bytes = 0
    for payload in _payloads(chunk):
        # The kind of timestamp is the same for a whole batch, and so for a whole slice.
        other_kind = slice_ and slice_[0].header.timestamp_type != payload.header.timestamp_type
        if slice_ and (other_kind or size_bytes + len(payload.data) > SLICE_BYTES):
            yield from _decode(chunk, slice_, with_headers)
            slice_, size_bytes = [], 0
        slice_.append(payload)
        size_bytes += len(payload.data)
    if slice_:
        yield from _decode(chunk, slice_, with_headers)


def _payloads(chunk: Chunk) -> Iterator[_Payload]:
    """The batches that a reader wants, decompressed."""
    for position, header in wanted_batches(chunk):
        is_behind = chunk.stop_offset is not None and header.base_offset >= chunk.stop_offset
        if is_behind or header.next_offset <= chunk.offset:
            continue
        start, end = position + HEADER_SIZE, position + header.size
        try:
            data = decompress(header.compression, chunk.data[start:end], DEFAULT_MAX_BYTES)
        except MalformedMessage as error:
            raise _malformed(chunk, header, str(error)) from error
        _check(chunk, header, len(data))
        yield _Payload(header, start if header.compression == Compression.NONE else -1, data)


def _check(chunk: Chunk, header: BatchHeader, size_bytes: int) -> None:
    """What the compiled code takes for granted."""
    if header.record_count * _SMALLEST_RECORD > size_bytes:
        raise _malformed(chunk, header, f"{header.record_count} records in {size_bytes} bytes")
    if not -_LARGEST_TIME <= header.base_timestamp <= _LARGEST_TIME:
        raise _malformed(chunk, header, f"the time {header.base_timestamp} is out of range")
    if header.last_offset > _LAST_OFFSET:
        raise _malformed(chunk, header, f"the last offset would be {header.last_offset}")


def _malformed(chunk: Chunk, header: BatchHeader, reason: str) -> MalformedMessage:
    return MalformedMessage(
        f"topic {chunk.topic}, partition {chunk.partition}: "
        f"the batch at offset {header.base_offset}: {reason}"
    )


def _decode(
    chunk: Chunk, payloads: Sequence[_Payload], with_headers: bool
) -> Iterator[pa.RecordBatch]:
    plan = np.empty((len(payloads), kernels.PLAN_COLUMNS), np.int64)
    size_bytes = sum(len(each.data) for each in payloads)
    in_place = all(each.position >= 0 for each in payloads)
    joined: Buffer = chunk.data if in_place else b"".join(each.data for each in payloads)
    start = 0
    for row, (header, position, data) in enumerate(payloads):
        start = position if in_place else start
        plan[row] = (
            start,
            start + len(data),
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.timestamp_type,
            header.max_timestamp,
        )
        start += len(data)
    count = sum(each.header.record_count for each in payloads)
    # Room for the worst case. What isn't filled is never touched, so it takes no memory.
    keys, values = _Column(count, size_bytes), _Column(count, size_bytes)
    header_count = size_bytes // 2 if with_headers else 0
    header_bytes = size_bytes if with_headers else 0
    names, contents = _Column(header_count, header_bytes), _Column(header_count, header_bytes)
    lists = np.empty(count + 1 if with_headers else 0, np.int32)
    lists[:1] = 0
    offsets, timestamps = np.empty(count, np.int64), np.empty(count, np.int64)
    totals = np.zeros(kernels.TOTAL_COLUMNS, np.int64)
    stop_offset = _LAST_OFFSET if chunk.stop_offset is None else chunk.stop_offset
    verdict = kernels.decode(
        np.frombuffer(joined, np.uint8), plan, chunk.offset, stop_offset, offsets, timestamps,
        keys.ends, keys.data, keys.validity, values.ends, values.data, values.validity,
        lists, names.ends, names.data, contents.ends, contents.data, contents.validity, totals,
    )  # fmt: skip
    if verdict != kernels.FINE:
        header = payloads[totals[kernels.BAD_BATCH]].header
        raise _malformed(chunk, header, _REASONS[verdict])
    count = int(totals[kernels.RECORDS])
    if not count:
        return
    columns = [
        keys.take(pa.binary(), count, int(totals[kernels.KEY_BYTES])),
        values.take(pa.binary(), count, int(totals[kernels.VALUE_BYTES])),
        pa.repeat(pa.scalar(chunk.topic), count),
        pa.repeat(pa.scalar(chunk.partition, pa.int32()), count),
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(offsets)]),
        _times(timestamps[:count]),
        pa.repeat(pa.scalar(payloads[0].header.timestamp_type, pa.int32()), count),
    ]
    if not with_headers:
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        return
    header_count = int(totals[kernels.HEADERS])
    name_array = names.take(pa.string(), header_count, int(totals[kernels.HEADER_NAME_BYTES]))
    try:
        name_array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise MalformedMessage(
            f"topic {chunk.topic}, partition {chunk.partition}, from offset {offsets[0]} on: "
            "the name of a header isn't UTF-8"
        ) from error
    content_array = contents.take(
        pa.binary(), header_count, int(totals[kernels.HEADER_VALUE_BYTES])
    )
    pairs = pa.StructArray.from_arrays([name_array, content_array], ["key", "value"])
    has_some = np.packbits(np.diff(lists[: count + 1]) > 0, bitorder="little")
    columns.append(
        pa.Array.from_buffers(
            HEADERS_TYPE, count, [pa.py_buffer(has_some), pa.py_buffer(lists)], children=[pairs]
        )
    )
    yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


class _Column:
    """The three buffers of an Arrow array of bytes, to be filled."""

    __slots__ = ("data", "ends", "validity")

    def __init__(self, count: int, size_bytes: int) -> None:
        self.ends = np.empty(count + 1, np.int32)
        self.ends[0] = 0
        self.data = np.empty(size_bytes, np.uint8)
        self.validity = np.zeros((count + 7) // 8, np.uint8)

    def take(self, kind: Any, count: int, size_bytes: int) -> Any:
        validity = None if kind == pa.string() else pa.py_buffer(self.validity)
        data = pa.py_buffer(self.data[:size_bytes])
        return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(self.ends), data])


def _times(milliseconds: kernels.Longs) -> Any:
    """Microseconds; a time beyond their range becomes the last one there is."""
    np.clip(milliseconds, -_LARGEST_MILLISECOND, _LARGEST_MILLISECOND, out=milliseconds)
    milliseconds *= 1000
    buffers = [None, pa.py_buffer(milliseconds)]
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), len(milliseconds), buffers)
