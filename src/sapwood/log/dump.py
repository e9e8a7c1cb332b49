"""A log made readable, whatever state its files are in.

Reads only, so it can look at the files of a running node. Where bytes are no entry it says so and
goes on at the next place that is one.
"""

from __future__ import annotations

import os.path
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sapwood.disk import Disk, File, OsDisk
from sapwood.log.clock import wall_ms
from sapwood.log.entry import (
    HEADER_SIZE,
    HEADERS_SIZE,
    BadEntry,
    Entry,
    check_batch,
    is_unwritten,
    parse,
)
from sapwood.log.segment import LOG_SUFFIX
from sapwood.wire.compression import Compression
from sapwood.wire.control import decode_transaction_marker
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.records import Record, decode_batch

_CHUNK = 1 << 20
# What follows the length in every entry: version 1, kind 0 or 1, two reserved zeros.
_SIGNATURE = re.compile(rb"\x01[\x00\x01]\x00\x00")
_SIGNATURE_POSITION = 8
_SIGNATURE_SIZE = 4
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_CONTROL_TYPES = {0: "abort", 1: "commit", 6: "voters"}


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry; `problem` is empty if it is as it was written."""

    path: str
    position: int
    size: int
    base_offset: int
    last_offset: int
    record_count: int
    leader_epoch: int
    append_time_ms: int
    """The wall clock's part of the append time, for people."""
    hlc: int
    base_timestamp: int
    max_timestamp: int
    append_time: bool
    """Whether the broker set the timestamps."""
    codec: str
    """How records are compressed; `marker` for an epoch's beginning, which has none."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: str
    """What a control batch says, in a word: `commit`, `abort`, `voters`; else empty."""
    crc: int
    problem: str = ""
    records: tuple[Record, ...] = ()
    """Of control records keys are words, and so is what the end of a transaction says."""


@dataclass(frozen=True, slots=True)
class DamageRow:
    """Bytes that are no entry."""

    path: str
    position: int
    size: int
    problem: str


Row = EntryRow | DamageRow


def dump(path: str, *, records: bool = False, disk: Disk | None = None) -> Iterator[Row]:
    """The entries of a segment file, or of all segments in a directory."""
    disk = disk or OsDisk()
    paths = [path]
    if not path.endswith(LOG_SUFFIX):
        paths = [f"{path}/{name}" for name in disk.list(path) if name.endswith(LOG_SUFFIX)]
        if not paths:
            raise FileNotFoundError(f"{path} is no log: there are no segments (*{LOG_SUFFIX})")
    for segment in paths:
        file = disk.open(os.path.abspath(segment), write=False)
        try:
            yield from _rows(file, records)
        finally:
            file.close()


def _rows(file: File, records: bool) -> Iterator[Row]:
    position, size = 0, file.size
    while position < size:
        head = file.pread(HEADERS_SIZE, position)
        try:
            entry = parse(head, 0, position, size - position)
        except BadEntry as bad:
            following = _next_entry(file, position + 1, size)
            if following is None and bad.unwritten and is_unwritten(file, position):
                return  # room that was allocated ahead
            end = size if following is None else following
            yield DamageRow(file.path, position, end - position, bad.reason)
            position = end
            continue
        yield _row(file, entry, records)
        position = entry.end


def _row(file: File, entry: Entry, with_records: bool) -> EntryRow:
    header = entry.header
    data = memoryview(file.pread(entry.size, entry.position))
    problem = ""
    control = "control" if header.is_control else ""
    records: tuple[Record, ...] = ()
    try:
        check_batch(data, 0, entry)
        if header.is_control or (with_records and not entry.is_marker):
            records = tuple(decode_batch(data, HEADER_SIZE))
        if header.is_control:
            records = tuple(map(_in_words, records))
            control = (records[0].key or b"").decode(errors="replace") if records else "control"
    except BadEntry as bad:
        problem = bad.reason
    except MalformedMessage as error:
        problem = f"its records can't be read: {error}"
    codecs = {int(codec): codec.name.lower() for codec in Compression}
    codec = codecs.get(header.compression, f"unknown ({header.compression})")
    return EntryRow(
        path=file.path,
        position=entry.position,
        size=entry.size,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        leader_epoch=header.leader_epoch,
        append_time_ms=wall_ms(entry.hlc),
        hlc=entry.hlc,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        append_time=header.timestamp_type == 1,
        codec="marker" if entry.is_marker else codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=control,
        crc=header.crc,
        problem=problem,
        records=records if with_records else (),
    )


def _in_words(record: Record) -> Record:
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        return record
    kind = _CONTROL_KEY.unpack_from(record.key)[1]
    word = _CONTROL_TYPES.get(kind, f"type {kind}").encode()
    marker = decode_transaction_marker(record.key, record.value)
    if marker is None:
        return record._replace(key=word)
    said_by = f"coordinator epoch {marker.coordinator_epoch}"
    return record._replace(key=word, value=said_by.encode())


def _next_entry(file: File, start: int, size: int) -> int | None:
    """The next position whose bytes are the beginning of an entry."""
    while start < size:
        chunk = file.pread(_CHUNK, start)
        found = _SIGNATURE.search(chunk, _SIGNATURE_POSITION)
        while found is not None:
            position = start + found.start() - _SIGNATURE_POSITION
            try:
                parse(file.pread(HEADERS_SIZE, position), 0, position, size - position)
            except BadEntry:
                found = _SIGNATURE.search(chunk, found.start() + 1)
            else:
                return position
        if start + len(chunk) >= size:
            return None
        start += max(1, len(chunk) - _SIGNATURE_POSITION - _SIGNATURE_SIZE)
    return None
