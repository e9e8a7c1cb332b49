"""Finding offsets by time: index rows narrow it down to a few batches, their records decide."""

from __future__ import annotations

from collections.abc import Iterable

from sapwood.log.segment import NO_TIMESTAMP, Segment
from sapwood.wire.batch import BatchHeader
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.records import decode_batch

OffsetAndTime = tuple[int, int]
DECODED_BYTES = 1 << 20
"""A batch with more than that in it counts as a whole."""
PASSED_AT_ONCE = 1000
"""Batches of which only the header is looked at."""


def first_at(
    segments: Iterable[Segment], timestamp: int, start_offset: int, limit_offset: int
) -> OffsetAndTime | int | None:
    """The first record in [start, limit) that is at or after `timestamp`.

    Or the offset from which to go on looking, when others have had their turn: at most one batch is
    decoded at once. A producer may say of batches that they go up to a time that none of their
    records has, and then all of them have to be looked into.
    """
    passed = 0
    for segment in segments:
        if segment.base_offset >= limit_offset:
            return None
        if segment.max_timestamp < timestamp or segment.end_offset <= start_offset:
            continue
        index = segment.index
        floor = index.floor(start_offset - segment.base_offset)
        for entry in segment.batches(max(floor, index.before_timestamp(timestamp))):
            header = entry.header
            if header.last_offset >= limit_offset:
                return None
            if header.last_offset < start_offset:
                continue
            if passed >= PASSED_AT_ONCE:
                return header.base_offset
            passed += 1
            if header.max_timestamp >= timestamp:
                found = _first_record(segment.batch(entry), header, timestamp, start_offset)
                return header.next_offset if found is None else found
    return None


def largest_timestamp(segments: Iterable[Segment], start_offset: int, limit_offset: int) -> int:
    largest = NO_TIMESTAMP
    for segment in segments:
        if segment.base_offset >= limit_offset:
            break
        if segment.max_timestamp <= largest or segment.end_offset <= start_offset:
            continue
        if segment.base_offset >= start_offset and segment.end_offset <= limit_offset:
            largest = segment.max_timestamp
            continue
        for entry in segment.batches(segment.index.floor(start_offset - segment.base_offset)):
            header = entry.header
            if header.last_offset >= limit_offset:
                break
            if header.base_offset >= start_offset:
                largest = max(largest, header.max_timestamp)
            elif header.last_offset >= start_offset:
                # Its largest may be that of a record which was deleted.
                largest = max(largest, _largest_record(segment.batch(entry), header, start_offset))
    return largest


def first_appended_at(segments: Iterable[Segment], hlc: int) -> int | None:
    """Base offset of the first batch that was appended at or after `hlc`."""
    for segment in segments:
        if segment.max_hlc < hlc:
            continue
        for entry in segment.batches(segment.index.before_hlc(hlc)):
            if entry.hlc >= hlc:
                return entry.header.base_offset
    return None


def spans(
    segments: Iterable[Segment], start_offset: int, end_offset: int, most: int
) -> list[tuple[int, int, int]]:
    """First and last offset, and append time, of batches with an offset in [start, end)."""
    found: list[tuple[int, int, int]] = []
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        for entry in segment.batches(segment.index.floor(start_offset - segment.base_offset)):
            header = entry.header
            if header.last_offset < start_offset:
                continue
            if header.base_offset >= end_offset or len(found) >= most:
                return found
            found.append((header.base_offset, header.last_offset, entry.hlc))
    return found


def _largest_record(batch: memoryview, header: BatchHeader, start_offset: int) -> int:
    try:
        records = decode_batch(batch, max_bytes=DECODED_BYTES)
    except MalformedMessage:
        return header.max_timestamp
    times = (record.timestamp for record in records if record.offset >= start_offset)
    return max(times, default=NO_TIMESTAMP)


def _first_record(
    batch: memoryview, header: BatchHeader, timestamp: int, start_offset: int
) -> OffsetAndTime | None:
    try:
        records = decode_batch(batch, max_bytes=DECODED_BYTES)
    except MalformedMessage:
        # Brokers don't look inside batches, so a producer may have stored rubbish, or what takes
        # too long to unpack.
        return max(header.base_offset, start_offset), header.max_timestamp
    for record in records:
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return record.offset, record.timestamp
    return None
