"""Arrow columns into the records of batches: rows one by one by compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sapwood.spark import kernels
from sapwood.spark.columns import UnsuitableColumns
from sapwood.spark.decoding import HEADERS_TYPE
from sapwood.spark.kernels import Bytes, Ints, Longs

_NO_BYTES = np.empty(0, np.uint8)
_NO_ENDS = np.empty(0, np.int64)
_RECORD_OVERHEAD_BYTES = 64
_LARGEST_TIME = 2**62


class Packed(NamedTuple):
    """The records of one batch, encoded but neither compressed nor numbered."""

    body: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int


class _Blobs(NamedTuple):
    """A column of bytes, as the compiled code takes it."""

    ends: Longs
    data: Bytes
    validity: Bytes


class Rows:
    """The columns key, value, headers and timestamp of a RecordBatch, ready to be encoded."""

    def __init__(self, batch: pa.RecordBatch, now_ms: int) -> None:
        self.count = batch.num_rows
        self._timestamps = _timestamps(batch, now_ms)
        keys = _column(batch, "key", pa.binary())
        values = _column(batch, "value", pa.binary())
        if values is None:
            raise UnsuitableColumns(
                f"there is no column 'value' among {', '.join(batch.schema.names) or 'no columns'}"
            )
        self.keys = _blobs(pa.nulls(self.count, pa.binary()) if keys is None else keys)
        self._values = _blobs(values)
        headers = _column(batch, "headers", HEADERS_TYPE)
        self._header_ends, self._names, self._contents = _headers(headers)
        self.size_bytes = batch.nbytes + _RECORD_OVERHEAD_BYTES * batch.num_rows

    def pack(self, rows: Longs, most_bytes: int, largest_bytes: int) -> Iterator[Packed]:
        """Batches of about `most_bytes`; a row above it has one of its own, of `largest_bytes`."""
        packed = np.zeros(kernels.PACKED_COLUMNS, np.int64)
        start = 0
        while start < len(rows):
            output = self._encode(rows, start, most_bytes, packed)
            if packed[kernels.PACKED_NEXT_ROW] == start:
                output = self._encode(rows[: start + 1], start, largest_bytes, packed)
            if packed[kernels.PACKED_NEXT_ROW] == start:
                raise UnsuitableColumns(
                    f"a row is larger than max_request_bytes ({largest_bytes}): raise that"
                )
            following = int(packed[kernels.PACKED_NEXT_ROW])
            yield Packed(
                output[: int(packed[kernels.PACKED_BYTES])].data,
                following - start,
                int(packed[kernels.PACKED_BASE_TIMESTAMP]),
                int(packed[kernels.PACKED_MAX_TIMESTAMP]),
            )
            start = following

    def _encode(self, rows: Longs, start: int, most_bytes: int, packed: Longs) -> Bytes:
        output = np.empty(min(most_bytes, self.size_bytes), np.uint8)
        kernels.encode(
            rows, start, most_bytes, output, self._timestamps, *self.keys, *self._values,
            self._header_ends, self._names.ends, self._names.data, *self._contents, packed,
        )  # fmt: skip
        return output


def partitions_of_keys(keys: _Blobs, count: int, partition_count: int) -> Ints:
    """Where Java's client would send each key; nulls count as empty ones."""
    partitions = np.empty(count, np.int32)
    kernels.partitions_of_keys(keys.ends, keys.data, partition_count, partitions)
    return partitions


def _column(batch: pa.RecordBatch, name: str, kind: Any) -> Any:
    """The column, cast if need be; None if there is none."""
    place = batch.schema.get_field_index(name)
    if place < 0:
        return None
    column = batch.column(place)
    if column.type == kind:
        return column
    try:
        # Of times, what is finer than milliseconds is cut off.
        return column.cast(kind, safe=not pa.types.is_timestamp(column.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsuitableColumns(
            f"column {name!r} is {column.type}, which can't be made {kind}: cast it first"
        ) from error


def _blobs(column: Any) -> _Blobs:
    validity, ends, data = column.buffers()
    first = column.offset
    numbers = np.frombuffer(ends, np.int32, len(column) + 1, first * 4).astype(np.int64)
    return _Blobs(
        numbers,
        _NO_BYTES if data is None else np.frombuffer(data, np.uint8),
        _validity(column, validity),
    )


def _validity(column: Any, bitmap: Any) -> Bytes:
    """Bits from the first row on; none at all if every row has a value."""
    if bitmap is None or not column.null_count:
        return _NO_BYTES
    bits = np.frombuffer(bitmap, np.uint8)
    if not column.offset % 8:
        return bits[column.offset // 8 :]
    unpacked = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")
    return np.packbits(unpacked[column.offset :], bitorder="little")


def _headers(column: Any) -> tuple[Longs, _Blobs, _Blobs]:
    nothing = _Blobs(_NO_ENDS, _NO_BYTES, _NO_BYTES)
    if column is None or column.null_count == len(column):
        return _NO_ENDS, nothing, nothing
    if column.null_count:  # a null may have a range of its own in Arrow: let it be an empty list
        column = column.fill_null([])
    pairs = column.values
    if pairs.null_count or pairs.field("key").null_count:
        raise UnsuitableColumns("column 'headers' holds a header without a key")
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return ends.astype(np.int64), _blobs(pairs.field("key")), _blobs(pairs.field("value"))


def _timestamps(batch: pa.RecordBatch, now_ms: int) -> Longs:
    column = _column(batch, "timestamp", pa.timestamp("ms", "UTC"))
    if column is None:
        return np.full(batch.num_rows, now_ms, np.int64)
    milliseconds: Longs = column.cast(pa.int64()).fill_null(now_ms).to_numpy()
    if len(milliseconds) and not -1 <= milliseconds.min() <= milliseconds.max() <= _LARGEST_TIME:
        raise UnsuitableColumns("column 'timestamp' holds a time that no message can have")
    return milliseconds
