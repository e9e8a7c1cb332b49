"""One file of a log: entries in ascending offsets, with the index beside it.

A segment has all markers of its base offset, even if the one before ends with them: so batches in
this one are never without them, whatever a crash took from the end of that one.

The last segment of a log is active: it is appended to, holds its file and index open and has room
allocated ahead. The others are closed: their files end with the last entry, and file and index
are opened when they are read.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator, Sequence

from sapwood.disk import Buffer, Disk, File
from sapwood.log.cache import SegmentCache
from sapwood.log.clock import wall_ms
from sapwood.log.entry import (
    HEADER_SIZE,
    HEADERS_SIZE,
    PEEK,
    PEEK_START,
    BadEntry,
    Entry,
    check_batch,
    encode_header,
    parse,
    walk,
)
from sapwood.log.errors import CorruptLog
from sapwood.log.index import BLOCK_ROWS, Index, Summary
from sapwood.log.ranges import Ranges
from sapwood.wire.batch import BatchHeader

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
NO_TIMESTAMP = -1
# Index rows hold offsets relative to the base in 32 bits.
MAX_RELATIVE_OFFSET = 2**31 - 1
_FIRST_ALLOCATION = 1 << 20
_LARGEST_ALLOCATION = 32 << 20

_peek = PEEK.unpack_from


class Segment:
    __slots__ = (
        "_cache",
        "_disk",
        "_file",
        "_index",
        "_interval",
        "_last_row",
        "base_offset",
        "created_ms",
        "end_offset",
        "index_path",
        "max_hlc",
        "max_timestamp",
        "path",
        "size",
        "verified",
    )

    def __init__(
        self, disk: Disk, cache: SegmentCache, directory: str, base_offset: int, interval: int
    ) -> None:
        self._disk = disk
        self._cache = cache
        self._file: File | None = None
        self._index: Index | None = None
        self._interval = interval
        self._last_row = -interval
        self.base_offset = base_offset
        self.path = f"{directory}/{base_offset:020d}{LOG_SUFFIX}"
        self.index_path = f"{directory}/{base_offset:020d}{INDEX_SUFFIX}"
        self.size = 0
        self.end_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.max_hlc = 0
        self.created_ms = 0
        """When its first entry was appended; 0 while it is empty."""
        self.verified = Ranges()
        """Positions whose bytes were written or checked by this process."""

    @property
    def has_offsets(self) -> bool:
        """Whether the next segment would have another base; markers alone take no offset."""
        return self.end_offset > self.base_offset

    @property
    def file(self) -> File:
        if self._file is not None:
            return self._file
        file = self._cache.file(self)
        if file is None:
            file = self._disk.open(self.path, write=False)
            self._cache.keep_file(self, file)
        return file

    @property
    def index(self) -> Index:
        if self._index is not None:
            return self._index
        index = self._cache.index(self)
        if index is None:
            index, summary = Index.load(self._disk, self.index_path)
            if summary is None:
                # Damaged since it was sealed, or the disk was too full to write it.
                index = self._rebuilt_index()
            self._cache.keep_index(self, index)
        return index

    # -- the active segment ------------------------------------------------------------------

    def begin(self) -> None:
        """Make the file of a new segment."""
        self._file = self._disk.open(self.path, create=True)
        self._index = Index()
        if self._file.size:
            self._file.truncate(0)

    def activate(self, index: Index) -> None:
        """Open for appending; `scan` must follow."""
        self._cache.drop(self)
        self._file = self._disk.open(self.path, create=True)
        self._index = index

    def scan(self, end: int, now_ms: int) -> BadEntry | None:
        """From the last index row on, find the end of the entries before `end`.

        What is read here is checked as a whole. Returns what was found instead of an entry.
        """
        index = self.index
        self.size, self._last_row = 0, -self._interval
        self.end_offset, self.created_ms = self.base_offset, 0
        self.max_timestamp, self.max_hlc = NO_TIMESTAMP, 0
        if len(index):
            self.size = self._last_row = index.positions[-1]
            self.max_timestamp, self.max_hlc = index.timestamps[-1], index.hlcs[-1]
            self._note_created(index.hlcs[0], now_ms)
        start = self.size
        bad = None
        epoch = -1
        try:
            for entry in walk(self.file, start, end, whole=True):
                if entry.header.base_offset < self.end_offset:
                    raise BadEntry(entry.position, "offsets go back")
                if 0 <= entry.header.leader_epoch < epoch:
                    raise BadEntry(entry.position, "epochs go back")
                epoch = max(epoch, entry.header.leader_epoch)
                if not self.created_ms and not entry.is_marker:
                    self._note_created(entry.hlc, now_ms)
                self.note(entry.position, entry.header, entry.hlc, index)
        except BadEntry as caught:
            bad = caught
        self.verified.add(start, self.size)
        return bad

    def cut(self, position: int, now_ms: int) -> None:
        """End the file at `position`, durably, and make this the active segment."""
        index = self.index
        index.cut(position)
        if self._file is None:
            self.activate(index)
        self.file.truncate(position)
        self.file.sync()
        self.verified.cut(position)
        bad = self.scan(position, now_ms)
        if bad is not None:
            raise CorruptLog(self.path, bad.position, bad.reason)
        self.save_index()

    def append(
        self, batch: Buffer, header: BatchHeader, hlc: int, now_ms: int, segment_bytes: int
    ) -> None:
        """OSError leaves the segment as it was; `segment_bytes` 0 means no room ahead."""
        position = self.size
        size = HEADER_SIZE + len(batch)
        self._write((encode_header(batch, hlc), batch), position + size, segment_bytes)
        self.note(position, header, hlc, self.index)
        if not self.created_ms:
            self.created_ms = now_ms
        if self.index.unsaved >= BLOCK_ROWS:
            self.save_index()

    def append_entries(
        self, data: memoryview, entries: Sequence[Entry], now_ms: int, segment_bytes: int
    ) -> None:
        """Append adjacent entries of `data`, where their positions are, in one write."""
        start, origin = entries[0].position, self.size
        end = origin + entries[-1].end - start
        self._write((data[start : entries[-1].end],), end, segment_bytes)
        index = self.index
        for entry in entries:
            self.note(origin + entry.position - start, entry.header, entry.hlc, index)
            if not self.created_ms and not entry.is_marker:
                self.created_ms = now_ms
        if index.unsaved >= BLOCK_ROWS:
            self.save_index()

    def _write(self, buffers: Sequence[Buffer], end: int, segment_bytes: int) -> None:
        file, position = self.file, self.size
        if segment_bytes and end > file.size:
            _allocate(file, end, segment_bytes)
        try:
            file.pwrite(buffers, position)
        except OSError:
            # Whole entries may have been written. Behind others that take the place of the first
            # they would count after a restart; and whatever is written next is to have fresh room.
            with contextlib.suppress(OSError):
                file.truncate(position)
                file.sync()
            raise
        self.verified.add(position, end)

    def note(self, position: int, header: BatchHeader, hlc: int, index: Index) -> None:
        """Count an entry that is in the file."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
        if hlc > self.max_hlc:
            self.max_hlc = hlc
        if position - self._last_row >= self._interval and header.last_offset_delta >= 0:
            relative = header.base_offset - self.base_offset
            # Compaction can leave a gap in front of a segment's first batch; that needs no row.
            if relative <= MAX_RELATIVE_OFFSET:
                index.add(relative, position, self.max_timestamp, self.max_hlc)
                self._last_row = position
        self.size = position + HEADER_SIZE + header.size
        self.end_offset = header.next_offset

    def save_index(self, *, seal: bool = False) -> None:
        """Best effort: an index that isn't on disk is built anew when it is needed."""
        try:
            self.index.save(self._disk, self.index_path, self.summary() if seal else None)
        except OSError as error:
            logger.warning("index %s was not written: %s", self.index_path, error)

    def close(self) -> None:
        """From active to closed. The file stays open for readers, within the cache's bound."""
        file, index = self._file, self._index
        if file is None or index is None:
            return
        file.truncate(self.size)
        self.save_index(seal=True)
        self._file = self._index = None
        self._cache.keep_file(self, file)
        self._cache.keep_index(self, index)

    def trim(self, position: int) -> None:
        """Durably end the file of a closed segment earlier, where no batch is lost by it."""
        index = self.index
        self._cache.drop(self)
        file = self._disk.open(self.path)
        try:
            file.truncate(position)
            file.sync()
        finally:
            file.close()
        self.verified.cut(position)
        self.size = position
        self._cache.keep_index(self, index)
        self.save_index(seal=True)

    def give_room_back(self) -> None:
        """Drop what was allocated ahead; the disk is full and others need it."""
        if self._file is not None:
            self._file.truncate(self.size)

    def release(self) -> None:
        """Close files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._cache.drop(self)

    def summary(self) -> Summary:
        return Summary(self.size, self.end_offset, self.max_timestamp, self.max_hlc)

    def adopt(self, summary: Summary) -> None:
        self.size, self.end_offset, self.max_timestamp, self.max_hlc = summary

    # -- reading -----------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool
    ) -> list[tuple[int, memoryview]] | None:
        """(HLC, batch) from the batch that holds `offset`; None if all are below it."""
        file, stop = self.file, self.size
        origin = position = self.index.floor(offset - self.base_offset)
        trusted_end = self.verified.end_of(position)
        checked_from = -1
        found: list[tuple[int, memoryview]] = []
        data = memoryview(b"")
        reached = False
        while position < stop:
            local = position - origin
            if local + HEADERS_SIZE > len(data):
                if found:
                    break
                data = self._pread(
                    file, max(max_bytes, 0) + self._interval + HEADERS_SIZE, position
                )
                origin, local = position, 0
            if position >= trusted_end:
                entry = self._parse(data, local, position)
            length, hlc, base_offset, delta = _peek(data, local + PEEK_START)
            size = HEADER_SIZE + length
            if base_offset + delta < offset or delta < 0:
                position += size
                continue
            reached = True
            if base_offset + delta >= limit_offset:
                break
            if length > max_bytes and (found or not at_least_one):
                break
            if local + size > len(data):
                if found:
                    break
                data = self._pread(file, size, position)
                origin, local = position, 0
            if position >= trusted_end:
                self._check(data, local, entry)
                if checked_from < 0:
                    checked_from = position
            found.append((hlc, data[local + HEADER_SIZE : local + size]))
            max_bytes -= length
            position += size
        if checked_from >= 0:
            self.verified.add(checked_from, position)
        return found if reached else None

    def read_raw(self, offset: int, max_bytes: int, *, at_least_one: bool) -> memoryview | None:
        """Whole entries in one piece, from the first with something beyond `offset` on; None if
        there is none, empty if it is too large."""
        file, stop = self.file, self.size
        origin = position = self.index.floor(offset - self.base_offset)
        data = self._pread(file, max(max_bytes, 0) + self._interval + HEADERS_SIZE, position)
        trusted_end = self.verified.end_of(position)
        start, end = -1, stop
        checked_from = -1
        while position < end:
            local = position - origin
            if local + HEADERS_SIZE > len(data):
                if start >= 0:
                    break
                data = self._pread(file, max(max_bytes, 0) + HEADERS_SIZE, position)
                origin, local = position, 0
            if position >= trusted_end:
                entry = self._parse(data, local, position)
            length, _, base_offset, delta = _peek(data, local + PEEK_START)
            size = HEADER_SIZE + length
            if start < 0:
                if base_offset + delta < offset:
                    position += size
                    continue
                if size > max_bytes and not at_least_one:
                    return memoryview(b"")
                start = position
                end = min(stop, start + max(size, max_bytes))
                if end - origin > len(data):
                    data = self._pread(file, end - start, start)
                    origin, local = start, 0
                if end == stop <= trusted_end:
                    position = stop  # all that is left fits and is known to be good
                    break
            if position + size > end:
                break
            if position >= trusted_end:
                self._check(data, local, entry)
                if checked_from < 0:
                    checked_from = position
            position += size
        if checked_from >= 0:
            self.verified.add(checked_from, position)
        return data[start - origin : position - origin] if start >= 0 else None

    def entries(self, position: int = 0) -> Iterator[Entry]:
        """Headers from a position on, checked."""
        try:
            yield from walk(self.file, position, self.size, whole=False)
        except BadEntry as bad:
            raise CorruptLog(self.path, bad.position, bad.reason) from bad

    def batches(self, position: int = 0) -> Iterator[Entry]:
        """Like `entries`, without markers."""
        return (entry for entry in self.entries(position) if not entry.is_marker)

    def batch(self, entry: Entry) -> memoryview:
        """One batch, checked."""
        data = self._pread(self.file, entry.size, entry.position)
        if entry.position >= self.verified.end_of(entry.position):
            self._check(data, 0, entry)
        return data[HEADER_SIZE:]

    def place_after(self, epoch: int, offset: int) -> tuple[int, int]:
        """The position in the file up to which a log has this segment that ends at a position,
        and the offset where the entries before it end."""
        start, end_offset = self.index.before(offset - self.base_offset), self.base_offset
        for entry in self.entries(start):
            if entry.is_after(epoch, offset):
                if entry.position == start > 0:
                    break  # a batch that holds the offset, and it is unknown what precedes it
                return entry.position, end_offset
            end_offset = entry.header.next_offset
        else:
            return self.size, end_offset
        for entry in self.entries():
            if entry.position == start:
                break
            end_offset = entry.header.next_offset
        return start, end_offset

    def _pread(self, file: File, length: int, position: int) -> memoryview:
        length = min(length, self.size - position)
        data = file.pread(length, position)
        if len(data) < length:
            raise CorruptLog(self.path, position + len(data), "the file is shorter than it was")
        return memoryview(data)

    def _parse(self, data: memoryview, local: int, position: int) -> Entry:
        try:
            return parse(data, local, position, self.size - position)
        except BadEntry as bad:
            raise CorruptLog(self.path, bad.position, bad.reason) from bad

    def _check(self, data: memoryview, local: int, entry: Entry) -> None:
        try:
            check_batch(data, local, entry)
        except BadEntry as bad:
            raise CorruptLog(self.path, bad.position, bad.reason) from bad

    def _rebuilt_index(self) -> Index:
        twin = Segment(self._disk, self._cache, "", self.base_offset, self._interval)
        index = Index()
        for entry in self.entries():
            twin.note(entry.position, entry.header, entry.hlc, index)
        try:
            index.save(self._disk, self.index_path, self.summary())
        except OSError as error:
            logger.warning("index %s was not written: %s", self.index_path, error)
        return index

    def _note_created(self, hlc: int, now_ms: int) -> None:
        self.created_ms = max(1, min(wall_ms(hlc), now_ms))


def _allocate(file: File, end: int, segment_bytes: int) -> None:
    """Make room ahead in growing steps: many small partitions must not reserve a segment each."""
    size = file.size
    step = min(max(size, _FIRST_ALLOCATION), _LARGEST_ALLOCATION)
    target = max(end, min(size + step, segment_bytes))
    try:
        file.allocate(size, target - size)
    except OSError as error:
        if error.errno != errno.ENOSPC or target == end:
            raise
        file.allocate(size, end - size)
