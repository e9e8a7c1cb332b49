"""The loops over single records, compiled by numba: bytes in, bytes and numbers out.

Nothing here allocates by a number from the wire, and no byte is read or written before its place
was held against the end of what is there: compiled code has nobody else to notice. Compiled code is
cached beside this file, or in the user's cache directory where that can't be written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Longs: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

# Why decoding stopped.
FINE, CUT_SHORT, BAD_VARINT, BAD_OFFSET, BAD_HEADERS, BAD_LENGTH, TRAILING_BYTES = range(7)

# The columns of a plan: one row for each batch.
PLAN_COLUMNS = 8
(
    PLAN_START,
    PLAN_END,
    PLAN_RECORDS,
    PLAN_BASE_OFFSET,
    PLAN_LAST_DELTA,
    PLAN_BASE_TIMESTAMP,
    PLAN_HAS_APPEND_TIME,
    PLAN_APPEND_TIME,
) = range(PLAN_COLUMNS)

# What decoding counts.
TOTAL_COLUMNS = 7
(
    RECORDS,
    KEY_BYTES,
    VALUE_BYTES,
    HEADERS,
    HEADER_NAME_BYTES,
    HEADER_VALUE_BYTES,
    BAD_BATCH,
) = range(TOTAL_COLUMNS)

# What encoding a batch yields.
PACKED_COLUMNS = 4
PACKED_NEXT_ROW, PACKED_BYTES, PACKED_BASE_TIMESTAMP, PACKED_MAX_TIMESTAMP = range(PACKED_COLUMNS)

_LARGEST_ZIGZAG = np.uint64(2**63)  # as in wire.records: times and deltas up to 2**62

_INPUT = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES = types.uint8[::1]
_INTS = types.int32[::1]
_LONGS = types.int64[::1]
_LONGS_INPUT = types.Array(types.int64, 1, "C", readonly=True)


@contextlib.contextmanager
def _one_at_a_time(path: str) -> Iterator[None]:
    """Spark starts several workers at once: let one compile, and the others find it in the cache.

    Each for itself they took minutes on a busy machine, since they all had the same cores.
    """
    with contextlib.ExitStack() as until_compiled:
        # Not on Windows, not in a zip file, and not every file system has locks.
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            source = until_compiled.enter_context(open(path))
            fcntl.flock(source, fcntl.LOCK_EX)
        yield


def compiled(*signature: Any, **options: Any) -> Callable[[F], F]:
    """Compiled when imported, or taken from the cache.

    Without numba's counting of references (`_nrt`): the caller holds every array, nothing is made
    here, and the counters' atomic operations took nearly half of the time.
    """

    def decorate(function: F) -> F:
        compiler: Any = numba.njit  # whose types know no `_nrt`
        settings = {"nogil": True, "_nrt": False, **options}
        with _one_at_a_time(function.__code__.co_filename):
            try:
                done: F = compiler(*signature, cache=True, **settings)(function)
            except RuntimeError:  # no directory that could hold the cache: compile for this process
                done = compiler(*signature, **settings)(function)
        return done

    return decorate


# A call for every number would double the time.
inlined = compiled(inline="always")


def _copying(
    context: Any, target: Any, target_at: Any, source: Any, source_at: Any, count: Any
) -> Any:
    """memcpy, which the compiler doesn't make of a loop over arrays that might overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at, count = arguments
        into = context.make_array(signature.args[0])(context, builder, target)
        origin = context.make_array(signature.args[2])(context, builder, source)
        cgutils.raw_memcpy(
            builder,
            builder.gep(into.data, [target_at]),
            builder.gep(origin.data, [source_at]),
            count,
            1,
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


_copy: Any = intrinsic(_copying)


@inlined
def _long_varint(data: Bytes, p: int, stop: int) -> tuple[Any, int]:
    """A varint of more than a byte."""
    value = np.uint64(data[p]) & np.uint64(0x7F)
    shift = np.uint64(7)
    byte = np.uint64(0x80)
    while byte > np.uint64(0x7F):
        p += 1
        if p >= stop or shift > np.uint64(63):
            return np.uint64(0), -1
        byte = np.uint64(data[p])
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.uint64(0), -1
        value |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    if value > _LARGEST_ZIGZAG:
        return np.uint64(0), -1
    return value, p + 1


@inlined
def _varint(data: Bytes, p: int, stop: int) -> tuple[Any, int]:
    """A varint, still in zigzag, and the place behind it: −1 if it is too long or cut short."""
    value = np.uint64(0)
    after = -1
    if p < stop:
        value = np.uint64(data[p])
        after = p + 1
        if value > np.uint64(0x7F):
            value, after = _long_varint(data, p, stop)
    return value, after


@inlined
def _signed(zigzag: Any) -> Any:
    return np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1))


@inlined
def _length(zigzag: Any) -> Any:
    """−1 for every negative number: a null."""
    return np.int64(-1) if zigzag & np.uint64(1) else np.int64(zigzag >> np.uint64(1))


_DECODE = types.int64(
    _INPUT,  # data
    types.Array(types.int64, 2, "C", readonly=True),  # plan
    types.int64,  # first offset
    types.int64,  # stop offset
    _LONGS,  # offsets
    _LONGS,  # timestamps
    _INTS, _BYTES, _BYTES,  # keys: ends, data, validity
    _INTS, _BYTES, _BYTES,  # values
    _INTS,  # headers: ends of lists; empty if they aren't wanted
    _INTS, _BYTES,  # headers' names
    _INTS, _BYTES, _BYTES,  # headers' values
    _LONGS,  # totals
)  # fmt: skip


@compiled(_DECODE)
def decode(
    data: Bytes,
    plan: Longs,
    first: int,
    stop_offset: int,
    offsets: Longs,
    timestamps: Longs,
    key_ends: Ints,
    key_data: Bytes,
    key_validity: Bytes,
    value_ends: Ints,
    value_data: Bytes,
    value_validity: Bytes,
    header_ends: Ints,
    name_ends: Ints,
    name_data: Bytes,
    header_value_ends: Ints,
    header_value_data: Bytes,
    header_value_validity: Bytes,
    totals: Longs,
) -> int:
    """All batches of the plan into columns. The caller gave columns room for the worst case."""
    with_headers = len(header_ends) > 0
    n = 0
    key_bytes = value_bytes = headers = name_bytes = header_value_bytes = 0
    for row in range(plan.shape[0]):
        totals[BAD_BATCH] = row
        p = plan[row, PLAN_START]
        end = plan[row, PLAN_END]
        base_offset = plan[row, PLAN_BASE_OFFSET]
        last_delta = plan[row, PLAN_LAST_DELTA]
        base_timestamp = plan[row, PLAN_BASE_TIMESTAMP]
        has_append_time = plan[row, PLAN_HAS_APPEND_TIME] != 0
        previous: Any = -1
        for _ in range(plan[row, PLAN_RECORDS]):
            zigzag, p = _varint(data, p, end)
            if p < 0:
                return BAD_VARINT
            size = _length(zigzag)
            if size < 1 or size > end - p:
                return CUT_SHORT
            stop = p + size
            zigzag, p = _varint(data, p + 1, stop)  # behind the attributes, which are unused
            if p < 0:
                return BAD_VARINT
            timestamp = base_timestamp + _signed(zigzag)
            zigzag, p = _varint(data, p, stop)
            if p < 0:
                return BAD_VARINT
            delta = _signed(zigzag)
            if delta <= previous or delta > last_delta:
                return BAD_OFFSET
            previous = delta
            zigzag, p = _varint(data, p, stop)
            if p < 0:
                return BAD_VARINT
            key_size = _length(zigzag)
            key_at = p
            if key_size > 0:
                if key_size > stop - p:
                    return BAD_LENGTH
                p += key_size
            zigzag, p = _varint(data, p, stop)
            if p < 0:
                return BAD_VARINT
            value_size = _length(zigzag)
            value_at = p
            if value_size > 0:
                if value_size > stop - p:
                    return BAD_LENGTH
                p += value_size
            zigzag, p = _varint(data, p, stop)
            if p < 0:
                return BAD_VARINT
            count = _length(zigzag)
            if count < 0 or count > (stop - p) // 2:
                return BAD_HEADERS
            offset = base_offset + delta
            wanted = first <= offset < stop_offset
            for _ in range(count):
                zigzag, p = _varint(data, p, stop)
                if p < 0:
                    return BAD_VARINT
                name_size = _length(zigzag)
                if name_size < 0 or name_size > stop - p:
                    return BAD_HEADERS
                name_at = p
                p += name_size
                zigzag, p = _varint(data, p, stop)
                if p < 0:
                    return BAD_VARINT
                size = _length(zigzag)
                if size > stop - p:
                    return BAD_HEADERS
                if with_headers and wanted:
                    _copy(name_data, name_bytes, data, name_at, name_size)
                    name_bytes += name_size
                    name_ends[headers + 1] = name_bytes
                    if size >= 0:
                        header_value_validity[headers >> 3] |= np.uint8(1 << (headers & 7))
                        _copy(header_value_data, header_value_bytes, data, p, size)
                        header_value_bytes += size
                    header_value_ends[headers + 1] = header_value_bytes
                    headers += 1
                if size > 0:
                    p += size
            # A length that is wrong anywhere above puts the end of the record in the wrong place.
            if p != stop:
                return BAD_LENGTH
            if not wanted:
                continue
            offsets[n] = offset
            timestamps[n] = plan[row, PLAN_APPEND_TIME] if has_append_time else timestamp
            if key_size >= 0:
                key_validity[n >> 3] |= np.uint8(1 << (n & 7))
                _copy(key_data, key_bytes, data, key_at, key_size)
                key_bytes += key_size
            if value_size >= 0:
                value_validity[n >> 3] |= np.uint8(1 << (n & 7))
                _copy(value_data, value_bytes, data, value_at, value_size)
                value_bytes += value_size
            n += 1
            key_ends[n] = key_bytes
            value_ends[n] = value_bytes
            if with_headers:
                header_ends[n] = headers
        if p != end:
            return TRAILING_BYTES
    totals[RECORDS] = n
    totals[KEY_BYTES] = key_bytes
    totals[VALUE_BYTES] = value_bytes
    totals[HEADERS] = headers
    totals[HEADER_NAME_BYTES] = name_bytes
    totals[HEADER_VALUE_BYTES] = header_value_bytes
    return FINE


@inlined
def _varint_size(value: Any) -> int:
    size = 1
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    while zigzag > np.uint64(0x7F):
        zigzag >>= np.uint64(7)
        size += 1
    return size


@inlined
def _put_varint(output: Bytes, p: int, value: Any) -> int:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    while zigzag > np.uint64(0x7F):
        output[p] = np.uint8(zigzag & np.uint64(0x7F)) | np.uint8(0x80)
        zigzag >>= np.uint64(7)
        p += 1
    output[p] = np.uint8(zigzag)
    return p + 1


@inlined
def _size_at(ends: Longs, validity: Bytes, row: int) -> Any:
    """−1 for a null; no bitmap at all means that there is none."""
    if len(validity) and not validity[row >> 3] >> (row & 7) & 1:
        return np.int64(-1)
    return ends[row + 1] - ends[row]


@inlined
def _put_bytes(output: Bytes, p: int, data: Bytes, at: int, size: int) -> int:
    p = _put_varint(output, p, size)
    if size > 0:
        _copy(output, p, data, at, size)
        p += size
    return p


_ENCODE = types.void(
    _LONGS_INPUT,  # rows
    types.int64,  # from which of them on
    types.int64,  # most bytes
    _BYTES,  # output
    _LONGS_INPUT,  # timestamps
    _LONGS_INPUT, _INPUT, _INPUT,  # keys: ends, data, validity
    _LONGS_INPUT, _INPUT, _INPUT,  # values
    _LONGS_INPUT,  # headers: ends of lists; empty if there are none
    _LONGS_INPUT, _INPUT,  # headers' names
    _LONGS_INPUT, _INPUT, _INPUT,  # headers' values
    _LONGS,  # what came of it
)  # fmt: skip


@compiled(_ENCODE)
def encode(
    rows: Longs,
    start: int,
    most_bytes: int,
    output: Bytes,
    timestamps: Longs,
    key_ends: Longs,
    key_data: Bytes,
    key_validity: Bytes,
    value_ends: Longs,
    value_data: Bytes,
    value_validity: Bytes,
    header_ends: Longs,
    name_ends: Longs,
    name_data: Bytes,
    header_value_ends: Longs,
    header_value_data: Bytes,
    header_value_validity: Bytes,
    packed: Longs,
) -> None:
    """One batch's records: as many of the rows as fit, and none if not even the first does."""
    with_headers = len(header_ends) > 0
    p = 0
    number = start
    base_timestamp = max_timestamp = timestamps[rows[start]]
    while number < len(rows):
        row = rows[number]
        timestamp = timestamps[row]
        key_size = _size_at(key_ends, key_validity, row)
        value_size = _size_at(value_ends, value_validity, row)
        time_delta = timestamp - base_timestamp
        size = (
            1
            + _varint_size(time_delta)
            + _varint_size(number - start)
            + _varint_size(key_size)
            + max(key_size, 0)
            + _varint_size(value_size)
            + max(value_size, 0)
        )
        first_header = stop_header = np.int64(0)
        if with_headers:
            first_header, stop_header = header_ends[row], header_ends[row + 1]
        size += _varint_size(stop_header - first_header)
        for header in range(first_header, stop_header):
            name_size = name_ends[header + 1] - name_ends[header]
            header_size = _size_at(header_value_ends, header_value_validity, header)
            size += _varint_size(name_size) + name_size
            size += _varint_size(header_size) + max(header_size, 0)
        if p + _varint_size(size) + size > min(most_bytes, len(output)):
            break
        p = _put_varint(output, p, size)
        output[p] = 0  # attributes, unused
        p = _put_varint(output, p + 1, time_delta)
        p = _put_varint(output, p, number - start)
        p = _put_bytes(output, p, key_data, key_ends[row], key_size)
        p = _put_bytes(output, p, value_data, value_ends[row], value_size)
        p = _put_varint(output, p, stop_header - first_header)
        for header in range(first_header, stop_header):
            name_size = name_ends[header + 1] - name_ends[header]
            header_size = _size_at(header_value_ends, header_value_validity, header)
            p = _put_bytes(output, p, name_data, name_ends[header], name_size)
            p = _put_bytes(output, p, header_value_data, header_value_ends[header], header_size)
        max_timestamp = max(max_timestamp, timestamp)
        number += 1
    packed[PACKED_NEXT_ROW] = number
    packed[PACKED_BYTES] = p
    packed[PACKED_BASE_TIMESTAMP] = base_timestamp
    packed[PACKED_MAX_TIMESTAMP] = max_timestamp


@compiled(types.void(_LONGS_INPUT, _INPUT, types.int64, types.int32[::1]))
def partitions_of_keys(ends: Longs, data: Bytes, partition_count: int, partitions: Ints) -> None:
    """Java's murmur2 over every key: as `client.partitioner`, which tells more."""
    m = np.uint32(0x5BD1E995)
    for row in range(len(partitions)):
        p = ends[row]
        size = ends[row + 1] - p
        h = np.uint32(0x9747B28C) ^ np.uint32(size)
        for _ in range(size >> 2):
            k = (
                np.uint32(data[p])
                | np.uint32(data[p + 1]) << np.uint32(8)
                | np.uint32(data[p + 2]) << np.uint32(16)
                | np.uint32(data[p + 3]) << np.uint32(24)
            )
            k = np.uint32(k * m)
            k = np.uint32((k ^ (k >> np.uint32(24))) * m)
            h = np.uint32(h * m) ^ k
            p += 4
        rest = size & 3
        if rest:
            for index in range(rest):
                h ^= np.uint32(data[p + index]) << np.uint32(8 * index)
            h = np.uint32(h * m)
        h = np.uint32((h ^ (h >> np.uint32(13))) * m)
        h = h ^ (h >> np.uint32(15))
        partitions[row] = np.int32(np.int64(h & np.uint32(0x7FFFFFFF)) % partition_count)
