"""Compaction's work: read segments, keep the last record of each key, write new segments.

Runs in a helper process, since it looks at every record. The new files end in `.cleaned` and are
synced; nothing else is touched. Offsets never change: a batch keeps its base and last offset even
if records between are gone, and a batch without records goes as a whole, unless it tells something
about its producer. Markers and control batches stay, so what the log knows of epochs and voters
stays, too; the end of a transaction goes when all its records have, and readers had time to see it.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from sapwood.disk import Disk
from sapwood.log.cache import SegmentCache
from sapwood.log.entry import (
    BATCH,
    HEADER_SIZE,
    MARKER,
    BadEntry,
    Entry,
    encode_header,
    marker_header,
    walk,
)
from sapwood.log.errors import CorruptLog
from sapwood.log.index import Index, Summary
from sapwood.log.segment import LOG_SUFFIX, MAX_RELATIVE_OFFSET, Segment
from sapwood.wire import batch as wire_batch
from sapwood.wire.batch import BatchHeader, read_header, write_header
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.records import Record, decode_batch, encode_batch

CLEANED_SUFFIX = ".cleaned"
# About 180 bytes each: the map of keys stays below 75 MB.
MAX_KEYS = 400_000

_DIGEST_SIZE = 16
_WRITE_SIZE = 1 << 20
_ATTRIBUTES = struct.Struct(">hi")  # with the last offset delta
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35


@dataclass(frozen=True, slots=True)
class Source:
    base_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    directory: str
    sources: tuple[Source, ...]
    start_offset: int
    """Records below are deleted already."""
    dirty_offset: int
    """Below, no key occurs twice."""
    end_offset: int
    tombstone_offset: int
    """Tombstones below have been seen long enough."""
    max_hlc: int
    segment_bytes: int
    index_interval_bytes: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    """(producer id, first offset, offset of the marker) of transactions whose records go. All
    others that have records here were committed."""
    told_by: tuple[int, ...] = ()
    """Base offsets of batches that tell something about producers."""
    max_keys: int = MAX_KEYS


@dataclass(frozen=True, slots=True)
class Cleaned:
    """New segments, and up to which offset no key occurs twice in them."""

    segments: tuple[tuple[int, Summary], ...]
    clean_offset: int
    changed: bool


def clean(disk: Disk, plan: CompactionPlan) -> Cleaned:
    """Raises CorruptLog on a bad entry, OSError if the disk is full."""
    transactions = _Transactions(plan)
    latest, clean_offset = _latest_offsets(disk, plan, transactions)
    told_by = frozenset(plan.told_by)
    output = _Output(disk, plan)
    changed = False
    epoch = -1
    for entry, batch in _entries(disk, plan, 0):
        header = entry.header
        if entry.is_marker:
            if header.leader_epoch > epoch:  # not again at the beginning of the next segment
                output.add_marker(header, entry.hlc)
        else:
            is_needed = header.base_offset in told_by or header.base_offset >= clean_offset
            kept: list[Record] | None = []
            if transactions.is_over(header) or header.record_count == 0:
                kept = None if is_needed else []
            elif header.base_offset >= clean_offset or not transactions.is_aborted(header):
                kept = _kept(batch, header, latest, clean_offset, plan)
            changed = changed or kept is not None
            if kept is not None and (kept or is_needed):
                batch = memoryview(_rebuilt(header, kept))
            if kept is None or kept or is_needed:
                output.add(batch, read_header(batch), entry.hlc)
            elif header.leader_epoch > epoch:
                # Written before there were markers: it alone told where its epoch began.
                output.add_marker(marker_header(header.leader_epoch, header.base_offset), entry.hlc)
        epoch = max(epoch, header.leader_epoch)
    segments = output.finish()
    changed = changed or len(segments) != len(plan.sources)
    return Cleaned(tuple(segments), clean_offset, changed)


class _Transactions:
    """What becomes of transactional batches."""

    def __init__(self, plan: CompactionPlan) -> None:
        self._tombstone_offset = plan.tombstone_offset
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, last in sorted(plan.aborted, key=lambda it: it[1]):
            self._aborted.setdefault(producer_id, []).append((first, last))
        self._with_records: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.is_control:
            return False
        known = self._aborted.get(header.producer_id, [])
        number = bisect_right(known, header.base_offset, key=lambda it: it[0])
        return number > 0 and header.base_offset < known[number - 1][1]

    def is_over(self, header: BatchHeader) -> bool:
        """Whether this ends a transaction of which nothing else was left. To be asked about all
        batches, in their order.

        Every replica gets to see the end that isn't away for longer than tombstones stay.
        """
        if not header.is_transactional:
            return False
        if not header.is_control:
            if header.record_count:
                self._with_records.add(header.producer_id)
            return False
        had_records = header.producer_id in self._with_records
        self._with_records.discard(header.producer_id)
        return not had_records and header.base_offset < self._tombstone_offset


def _latest_offsets(
    disk: Disk, plan: CompactionPlan, transactions: _Transactions
) -> tuple[dict[bytes, int], int]:
    """The last offset of each key in the dirty part, as far as the map's bound allows."""
    latest: dict[bytes, int] = {}
    for entry, batch in _entries(disk, plan, plan.dirty_offset):
        if entry.is_marker or entry.header.is_control or transactions.is_aborted(entry.header):
            continue
        for record in _records(batch):
            if record.key is None:
                continue
            digest = _digest(record.key)
            if len(latest) >= plan.max_keys and digest not in latest:
                return latest, record.offset
            latest[digest] = record.offset
    return latest, plan.end_offset


def _entries(
    disk: Disk, plan: CompactionPlan, from_offset: int
) -> Iterator[tuple[Entry, memoryview]]:
    for number, source in enumerate(plan.sources):
        following = plan.sources[number + 1 : number + 2]
        if following and following[0].base_offset <= from_offset:
            continue
        path = f"{plan.directory}/{source.base_offset:020d}{LOG_SUFFIX}"
        file = disk.open(path, write=False)
        try:
            for entry in walk(file, 0, source.size, whole=True):
                if entry.is_after(-1, max(from_offset, plan.start_offset)):
                    data = file.pread(entry.size, entry.position)
                    yield entry, memoryview(data)[HEADER_SIZE:]
        except BadEntry as bad:
            raise CorruptLog(path, bad.position, bad.reason) from bad
        finally:
            file.close()


def _kept(
    batch: memoryview,
    header: BatchHeader,
    latest: dict[bytes, int],
    clean_offset: int,
    plan: CompactionPlan,
) -> list[Record] | None:
    """The records that stay; None if all do."""
    if header.is_control or header.base_offset >= clean_offset:
        return None
    records = _records(batch)
    kept = [
        record
        for record in records
        if record.key is None
        or record.offset >= clean_offset
        or not (
            latest.get(_digest(record.key), -1) > record.offset
            or (record.value is None and record.offset < plan.tombstone_offset)
        )
    ]
    return None if len(kept) == len(records) else kept


def _records(batch: memoryview) -> list[Record]:
    try:
        return decode_batch(batch)
    except MalformedMessage:
        # Nobody looked inside when it was produced. It has no keys, so it stays.
        return []


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_DIGEST_SIZE).digest()


def _rebuilt(header: BatchHeader, records: list[Record]) -> bytearray:
    """The batch with fewer records, otherwise as it was."""
    if not records:
        return _without_records(header)
    batch = encode_batch(
        [(it.timestamp, it.key, it.value, it.headers) for it in records],
        base_offset=header.base_offset,
        compression=header.compression,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
        offsets=[it.offset for it in records],
    )
    _ATTRIBUTES.pack_into(batch, wire_batch.CRC_START, header.attributes, header.last_offset_delta)
    if header.timestamp_type:
        _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, header.max_timestamp)
    crc = crc32c(memoryview(batch)[wire_batch.CRC_START :])
    struct.pack_into(">I", batch, wire_batch.CRC_POSITION, crc)
    return batch


def _without_records(header: BatchHeader) -> bytearray:
    """Without a time, too: nobody shall find it by time."""
    header = header._replace(
        length=wire_batch.HEADER_SIZE - wire_batch.LENGTH_END,
        attributes=header.attributes & ~wire_batch.COMPRESSION_MASK,
        base_timestamp=-1,
        max_timestamp=-1,
        record_count=0,
    )
    crc = crc32c(write_header(header)[wire_batch.CRC_START :])
    return bytearray(write_header(header._replace(crc=crc)))


class _Output:
    """Writes entries to new segments of at most the configured size."""

    def __init__(self, disk: Disk, plan: CompactionPlan) -> None:
        self._disk = disk
        self._plan = plan
        self._written: list[tuple[Segment, Index]] = []
        self._buffers: list[bytes | memoryview] = []
        self._position = 0
        self._markers: list[tuple[BatchHeader, int]] = []
        """Those since the last batch."""

    def add_marker(self, header: BatchHeader, hlc: int) -> None:
        self._markers.append((header, hlc))
        self._write(write_header(header), header, hlc, MARKER)

    def add(self, batch: memoryview, header: BatchHeader, hlc: int) -> None:
        if self._written:
            segment, _ = self._written[-1]
            if header.base_offset > segment.base_offset and (
                segment.size + HEADER_SIZE + header.size > self._plan.segment_bytes
                or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            ):
                self._flush()
                self._begin(header.base_offset)
                for marker, marked in self._markers:
                    if marker.base_offset == header.base_offset:
                        self._write(write_header(marker), marker, marked, MARKER)
        self._write(batch, header, hlc, BATCH)
        self._markers = []

    def _write(self, payload: bytes | memoryview, header: BatchHeader, hlc: int, kind: int) -> None:
        if not self._written:
            self._begin(self._plan.sources[0].base_offset)
        segment, index = self._written[-1]
        self._buffers += (encode_header(payload, hlc, kind), payload)
        segment.note(segment.size, header, hlc, index)
        if segment.size - self._position >= _WRITE_SIZE:
            self._flush()

    def _begin(self, base_offset: int) -> tuple[Segment, Index]:
        plan = self._plan
        interval = plan.index_interval_bytes
        segment = Segment(self._disk, SegmentCache(), plan.directory, base_offset, interval)
        for path in (segment.path, segment.index_path):
            self._disk.remove(path + CLEANED_SUFFIX)
        self._written.append((segment, Index()))
        self._position = 0
        return self._written[-1]

    def _flush(self) -> None:
        if self._buffers:
            segment, _ = self._written[-1]
            file = self._disk.open(segment.path + CLEANED_SUFFIX, create=True)
            try:
                file.pwrite(self._buffers, self._position)
            finally:
                file.close()
            self._position = segment.size
            self._buffers = []

    def finish(self) -> list[tuple[int, Summary]]:
        """Sync everything. Each segment reaches to the base of the next one."""
        self._flush()
        summaries = []
        for number, (segment, index) in enumerate(self._written):
            following = self._written[number + 1 :]
            segment.end_offset = following[0][0].base_offset if following else self._plan.end_offset
            if not following:
                segment.max_hlc = max(segment.max_hlc, self._plan.max_hlc)
            index.save(self._disk, segment.index_path + CLEANED_SUFFIX, segment.summary())
            for path in (segment.path, segment.index_path):
                file = self._disk.open(path + CLEANED_SUFFIX)
                try:
                    file.sync()
                finally:
                    file.close()
            summaries.append((segment.base_offset, segment.summary()))
        return summaries
