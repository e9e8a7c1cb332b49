"""One partition's log: appended at the end, read anywhere, cut at the front.

Single-threaded, on the event loop. Appends and reads go to the page cache and return at once;
`sync` tells when they are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapwood.disk import Buffer, Disk
from sapwood.log import lookup, recovery, retention, rewind
from sapwood.log.cache import SegmentCache
from sapwood.log.compact import Compactor, Runner, run_in_helper
from sapwood.log.config import LogConfig
from sapwood.log.entry import (
    HEADER_SIZE,
    HEADERS_SIZE,
    BadEntry,
    Entry,
    arriving,
    encode_markers,
    parse,
)
from sapwood.log.errors import (
    EpochsNotAscending,
    LogClosed,
    LogFailed,
    OffsetOutOfRange,
    OffsetsNotAscending,
)
from sapwood.log.front import Front, ignore
from sapwood.log.producers import ProducerTable
from sapwood.log.recovery import Recovered
from sapwood.log.seed import Seed
from sapwood.log.segment import MAX_RELATIVE_OFFSET, Segment
from sapwood.log.snapshot import Snapshot, SnapshotWriter
from sapwood.log.syncing import LogSync, Position
from sapwood.log.transactions import TransactionTable
from sapwood.wire.batch import CONTROL, BatchHeader, read_header
from sapwood.wire.records import encode_batch


class Log:
    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, cache: SegmentCache, found: Recovered
    ) -> None:
        self.directory = directory
        self.config = config
        """May be replaced at any time."""
        self._disk = disk
        self._cache = cache
        self._files = found.files
        self._state = found.files.state
        self._segments = found.files.segments
        self._snapshots = SnapshotWriter(disk, directory)
        self._sync = LogSync(disk, directory, found.durable, found.unsynced, self._snapshots.write)
        self._closed = False
        self._changed = False
        """Whether the files need anything before they are let go of."""
        self._compactor = Compactor(
            disk, directory, cache, self._segments, self._state, self._secure_snapshot
        )
        self._front = Front(self._files, self._snapshots, self._sync, self._compactor)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        durable_end: int,
        clean: bool,
        now_ms: int,
        cache: SegmentCache | None = None,
    ) -> Log:
        """Recover the log in `directory`, or begin one.

        `durable_end` is any offset up to which the log was known to be synced; `clean` says that
        the log was closed. Raises CorruptLog, and then has deleted nothing. What was found above
        the durable end is not durable until it is synced.
        """
        cache = cache or SegmentCache()
        found = recovery.recover(
            disk, directory, config, cache, durable_end=durable_end, clean=clean, now_ms=now_ms
        )
        log = cls(disk, directory, config, cache, found)
        log._changed = not clean and log.size_bytes > 0
        return log

    @property
    def start_offset(self) -> int:
        return self._files.start_offset

    @property
    def end_offset(self) -> int:
        return self._segments.active.end_offset

    @property
    def position(self) -> Position:
        """(last epoch, end offset): of two logs in one group the larger one has more."""
        return self._files.ledger.epochs.last, self._segments.active.end_offset

    @property
    def durable_end(self) -> int:
        """Everything below is on disk."""
        return self._sync.durable[1]

    @property
    def durable_position(self) -> Position:
        """The position that was reached when the last finished sync began, markers included."""
        return self._sync.durable

    @property
    def failed(self) -> LogFailed | None:
        """Why this log is out of service, if it is."""
        return self._sync.failed

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def last_epoch(self) -> int:
        """The newest leader epoch in the log, -1 if there is none."""
        return self._files.ledger.epochs.last

    @property
    def producers(self) -> ProducerTable:
        return self._files.ledger.producers

    @property
    def transactions(self) -> TransactionTable:
        return self._files.ledger.transactions

    @property
    def voters(self) -> list[tuple[int, bytes]]:
        """(offset, value) of the last control records that said who votes, oldest first."""
        return list(self._files.ledger.voters)

    @property
    def last_hlc(self) -> int:
        """The largest append time in the log, 0 if there is none."""
        return max(segment.max_hlc for segment in self._segments)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction is decided for good. High watermarks only grow."""
        return max(self.transactions.last_stable_offset(high_watermark), self.start_offset)

    # -- writing -----------------------------------------------------------------------------

    def append(self, batch: memoryview, header: BatchHeader, hlc: int, now_ms: int) -> None:
        """Append one batch whose offsets are set. OSError leaves the log as it was."""
        self._check_usable()
        active = self._segments.active
        if header.base_offset < active.end_offset:
            raise OffsetsNotAscending(
                f"batch at {header.base_offset} in a log that ends at {active.end_offset}"
            )
        ledger = self._files.ledger
        if 0 <= header.leader_epoch < ledger.epochs.last:
            raise EpochsNotAscending(
                f"batch of epoch {header.leader_epoch} in a log of epoch {ledger.epochs.last}"
            )
        size = HEADER_SIZE + len(batch)
        if self._is_due(size, header, now_ms):
            active = self._roll()
        self._changed = True
        active.append(batch, header, hlc, now_ms, self._room)
        ledger.note(header, now_ms)
        if header.attributes & CONTROL:
            ledger.note_control(header, batch)
        if self._snapshots.appended(size):
            self._take_snapshot()

    def append_marker(self, epoch: int, hlc: int, now_ms: int) -> None:
        """Begin an epoch at the log's end: a new leader's first entry."""
        self._check_usable()
        if epoch <= self.last_epoch:
            raise EpochsNotAscending(f"epoch {epoch} in a log of epoch {self.last_epoch}")
        data, entries = encode_markers([epoch], self.end_offset, hlc)
        self._append_run(data, entries, now_ms)

    def append_control(self, key: bytes, value: bytes, epoch: int, hlc: int, now_ms: int) -> int:
        """Append a control record; returns its offset. Clients skip it, but it takes an offset."""
        offset = self.end_offset
        # Without a time, so that nobody finds it by time.
        batch = encode_batch(
            [(-1, key, value, ())], base_offset=offset, leader_epoch=epoch, control=True
        )
        self.append(memoryview(batch), read_header(batch), hlc, now_ms)
        return offset

    def append_entries(self, data: Buffer, now_ms: int) -> None:
        """Append what a leader's `read_replica` gave, with its offsets, epochs and append times.

        All is checked. BadEntry names the first entry that is wrong; those before it stay. A
        marker that is here already is skipped.
        """
        self._check_usable()
        view = memoryview(data)
        run: list[Entry] = []
        try:
            for entry in arriving(view, self.end_offset, self._files.ledger.epochs):
                if run and (entry.position != run[-1].end or self._is_full(entry, run[0].position)):
                    self._append_run(view, run, now_ms)
                    run = []
                if not run and self._is_due(entry.size, entry.header, now_ms):
                    self._roll()
                run.append(entry)
        except BadEntry:
            self._append_run(view, run, now_ms)
            raise
        self._append_run(view, run, now_ms)

    def _append_run(self, data: memoryview, run: list[Entry], now_ms: int) -> None:
        """Write adjacent entries that fit into the active segment."""
        if not run:
            return
        self._changed = True
        # Thousands of partitions that have leaders and no records are to reserve nothing.
        room = 0 if all(entry.is_marker for entry in run) else self._room
        self._segments.active.append_entries(data, run, now_ms, room)
        for entry in run:
            self._files.ledger.note(entry.header, now_ms)
            if entry.header.is_control:
                batch = data[entry.position + HEADER_SIZE : entry.end]
                self._files.ledger.note_control(entry.header, batch)
        if self._snapshots.appended(run[-1].end - run[0].position, len(run)):
            self._take_snapshot()

    @property
    def _room(self) -> int:
        return self.config.segment_bytes if self.config.preallocate else 0

    def _is_due(self, size: int, header: BatchHeader, now_ms: int) -> bool:
        """Whether an entry has to go into a new segment."""
        active, config = self._segments.active, self.config
        return active.has_offsets and (
            active.size + size > config.segment_bytes
            or now_ms - active.created_ms >= config.segment_ms
            or header.last_offset - active.base_offset > MAX_RELATIVE_OFFSET
        )

    def _is_full(self, entry: Entry, run_start: int) -> bool:
        """Whether an entry doesn't fit into the active segment behind a run that begins there."""
        active = self._segments.active
        return (
            active.size + entry.end - run_start > self.config.segment_bytes
            or entry.header.last_offset - active.base_offset > MAX_RELATIVE_OFFSET
        )

    def sync(self) -> asyncio.Future[int]:
        """Resolves with the durable end once all that is in the log now is durable, markers, too.

        Calls share syncs, so there may be one per append. LogFailed is for good.
        """
        return self._sync.wait(self._segments.active, self.position)

    def roll_if_due(self, now_ms: int) -> None:
        """Close the active segment if it is old, so that retention and compaction can get at it."""
        self._check_usable()
        active, config = self._segments.active, self.config
        age_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            age_ms = min(age_ms, config.max_compaction_lag_ms)
        if active.has_offsets and now_ms - active.created_ms >= age_ms:
            self._roll()

    def _roll(self) -> Segment:
        self._changed = True
        old = self._segments.active
        interval = self.config.index_interval_bytes
        new = Segment(self._disk, self._cache, self.directory, old.end_offset, interval)
        new.begin()
        try:
            epochs = self._files.ledger.epochs.starting_at(old.end_offset, -1)
            if epochs:
                data, entries = encode_markers(epochs, old.end_offset, old.max_hlc)
                new.append_entries(data, entries, 0, self._room)
            old.close()
        except OSError:
            new.release()
            self._disk.remove(new.path)
            raise
        self._segments.add(new)
        self._sync.rolled(old, new, self.position)
        return new

    # -- reading -----------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool = True
    ) -> list[memoryview]:
        """Whole batches from the one that holds `offset`, up to `max_bytes` and below the limit.

        At least one, however large, if there is one. What was not written by this process is
        checked before it is returned: CorruptLog.
        """
        found = self.read_entries(offset, max_bytes, limit_offset, at_least_one=at_least_one)
        return [batch for _, batch in found]

    def read_entries(
        self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool = True
    ) -> list[tuple[int, memoryview]]:
        """Like `read`, each batch with its append time."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        if max_bytes <= 0 and not at_least_one:
            return []  # without looking: a fetch that is full asks all its other partitions so
        for segment in self._segments.from_offset(offset):
            if segment.base_offset >= limit_offset:
                break
            found = segment.read(offset, max_bytes, limit_offset, at_least_one=at_least_one)
            if found is not None:
                return found
            # Compaction has left nothing from `offset` on in this segment.
        return []

    def read_replica(
        self, epoch: int, offset: int, max_bytes: int, *, at_least_one: bool = True
    ) -> list[memoryview]:
        """Entries as they are stored, markers included, for a replica that ends at a position.

        Up to the log's end, whether committed or not; checked like those of `read`. The pieces
        joined are what `append_entries` takes. OffsetOutOfRange: the replica needs a `snapshot`.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        if max_bytes <= 0 and not at_least_one:
            return []
        pieces = []
        if epoch < self._files.ledger.epochs.last:
            # Made anew: they may lie in a segment that was deleted.
            markers = self._files.ledger.epochs.starting_at(offset, epoch)
            fitting = max(max_bytes // HEADERS_SIZE, at_least_one)
            if markers and fitting:
                pieces.append(encode_markers(markers[:fitting], offset, self.last_hlc)[0])
                max_bytes -= len(pieces[0])
                at_least_one = False
            if len(markers) > fitting or (max_bytes <= 0 and not at_least_one):
                return pieces
        for segment in self._segments.from_offset(offset):
            found = segment.read_raw(offset, max_bytes, at_least_one=at_least_one)
            if found is not None:
                if found:
                    pieces.append(found)
                break
        return pieces

    def offset_for_timestamp(
        self, timestamp_ms: int, limit_offset: int, from_offset: int = 0
    ) -> tuple[int, int] | int | None:
        """(offset, timestamp) of the first record at or after a time; or whence to go on."""
        start = max(from_offset, self.start_offset)
        return lookup.first_at(self._segments, timestamp_ms, start, limit_offset)

    def largest_timestamp(self, limit_offset: int) -> int:
        """As the batches say; -1 if there is none."""
        return lookup.largest_timestamp(self._segments, self.start_offset, limit_offset)

    def offset_for_hlc(self, hlc: int) -> int:
        """The first offset that was appended at or after `hlc`; the log's end if none was."""
        offset = lookup.first_appended_at(self._segments, hlc)
        return self.end_offset if offset is None else max(offset, self.start_offset)

    def spans(
        self, start_offset: int, end_offset: int, most: int = 1
    ) -> list[tuple[int, int, int]]:
        """(first offset, last offset, append time) of batches with an offset in [start, end)."""
        start_offset = max(start_offset, self.start_offset)
        segments = self._segments.from_offset(start_offset)
        return lookup.spans(segments, start_offset, end_offset, most)

    def end_of_epoch(self, epoch: int) -> Position:
        """The largest epoch at or below `epoch`, and where it ends; (-1, -1) if there is none."""
        return self._files.ledger.epochs.end_offset(epoch, self.end_offset)

    def end_offset_for_epoch(self, epoch: int) -> Position:
        return self.end_of_epoch(epoch)

    # -- cutting -----------------------------------------------------------------------------

    def truncate(self, epoch: int, offset: int, now_ms: int) -> None:
        """Cut the log to a position: batches from `offset` on go, and so do later epochs.

        A batch that holds `offset` goes as a whole. Blocking; for followers that diverged. Whoever
        has noted a higher durable end elsewhere must durably note `offset` first: recovery takes a
        log that ends below it for damaged. A crash on the way leaves something in between.
        """
        self._check_usable()
        epochs = self._files.ledger.epochs
        offset = min(offset, epochs.start_after(epoch, self.end_offset))
        if offset < self.start_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        if offset == self.end_offset and epoch >= epochs.last:
            return
        self._rewind(lambda: rewind.truncate(self._files, epoch, offset, now_ms))

    def snapshot(self) -> bytes:
        """What a replica needs to begin where this log starts."""
        start = end = self.start_offset
        data = b""
        for segment in self._segments.from_offset(start):
            found = segment.read_raw(start, 0, at_least_one=True)
            if found is not None:
                header = parse(found, 0, 0, len(found)).header
                if header.base_offset < start:
                    data, end = bytes(found), header.next_offset
                break
        return Seed(start, Snapshot(end, 0, self._files.ledger.as_of(end)), data).encode()

    def reset(self, snapshot: bytes, now_ms: int) -> None:
        """Give up everything and begin anew where another log's `snapshot` starts.

        Blocking. A crash leaves the old log or the new one. For a durable end that is noted
        elsewhere the same holds as with `truncate`. BadSnapshot changes nothing.
        """
        self._check_usable()
        rewind.decide_reset(self._state, snapshot)
        interval = self.config.index_interval_bytes
        self._rewind(lambda: rewind.reset(self._files, interval, now_ms))

    def _rewind(self, work: Callable[[], None]) -> None:
        self._changed = True
        try:
            self._compactor.settle()
            self._sync.synced_now(self._segments.active, self.position)
            self._snapshots.forget()
            work()
        except OSError as error:
            self._sync.fail(error)  # nobody knows how far it got
            raise
        self._sync.restarted(self.position)

    def advance_start(self, offset: int) -> asyncio.Future[None]:
        """Forget everything below `offset`, which must be within the log.

        At once for readers; resolves when a crash can't undo it. Segments of which nothing is left
        are deleted after that.
        """
        self._check_usable()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        self._files.start_offset = offset
        if self._segments.holds_before(offset):
            # What is deleted can't be replayed any more.
            self._take_snapshot()
        return self._front.store(self.sync())

    def has_expired(self, now_ms: int, limit_offset: int) -> bool:
        """Whether `retain` could delete something, if nobody held it back."""
        if self.config.retention_acked:
            return limit_offset > self.start_offset
        limit = min(limit_offset, self.durable_end)
        start = self.start_offset
        return retention.expired_up_to(self._segments, self.config, start, now_ms, limit) > start

    def retain(self, now_ms: int, limit_offset: int, held_offset: int | None = None) -> int:
        """Delete segments that are too old or too much, never beyond `limit_offset`.

        `held_offset` is where the slowest durable subscriber is; None if there is none. Returns
        how many offsets went.
        """
        self._check_usable()
        self.producers.expire(now_ms)
        limit = min(limit_offset, self.durable_end)
        before = self.start_offset
        offset = retention.expired_up_to(
            self._segments, self.config, before, now_ms, limit, held_offset
        )
        if self.config.retention_acked and held_offset is not None:
            offset = max(offset, min(held_offset, limit))
        if offset > before or self._segments.holds_before(before):
            if offset == self.end_offset and self._segments.active.has_offsets:
                self._roll()
            self.advance_start(offset).add_done_callback(ignore)
        return offset - before

    async def compact(
        self, now_ms: int, limit_offset: int, run: Runner = run_in_helper
    ) -> int | None:
        """Compact closed segments below `limit_offset` if it is worth it; cancel before `close`.

        Up to there all transactions have to be decided for good.
        Returns the bytes that it saved, None if there was nothing to do. CorruptLog if it came
        upon damage; OSError if it failed otherwise, and then the log is as it was.
        """
        self._check_usable()
        if "compact" not in self.config.cleanup_policy:
            return None
        limit = min(limit_offset, self.durable_end)
        try:
            ledger = self._files.ledger
            saved = await self._compactor.compact(self.config, ledger, now_ms, limit, run)
        except LogFailed as error:
            self._sync.fail(error)
            raise
        # All records of what was aborted in the clean part are gone.
        self.transactions.forget_before(self._state.state.cleaned_end)
        return saved

    async def _secure_snapshot(self) -> Callable[[], None]:
        """Take a snapshot; the result makes it durable, off the loop."""
        self._take_snapshot()
        await self.sync()
        self._snapshots.write(self.durable_position)
        return self._snapshots.make_durable()

    # -- snapshots, closing ------------------------------------------------------------------

    def _take_snapshot(self) -> None:
        timeline = self._state.state.timeline
        self._snapshots.take(Snapshot(self.end_offset, timeline, self._files.ledger))

    def prepare_to_close(self) -> asyncio.Future[int]:
        """Do what takes long off the loop, so that a `close` right after it is quick."""
        self._check_usable()
        if self._changed:
            active = self._segments.active
            active.file.truncate(active.size)
        return self.sync()

    def close(self) -> None:
        """Make everything durable and leave files that need no recovery. Blocking.

        A log that has failed is only let go of.
        """
        try:
            if self.failed is None and not self._closed:
                if self._changed:
                    active = self._segments.active
                    active.file.truncate(active.size)
                    self._sync.synced_now(active, self.position)
                    active.save_index()
                    self._take_snapshot()
                    self._snapshots.write(self.durable_position)
                # After the log itself: its start must not lie beyond its durable end.
                self._state.close(self._files.start())
        finally:
            self.discard()

    def discard(self) -> None:
        """Let go of the files as they are: they were deleted, or are about to be."""
        self._closed = self._compactor.closed = True
        for segment in self._segments:
            segment.release()

    def _check_usable(self) -> None:
        if self._sync.failed is not None:
            raise self._sync.failed
        if self._closed:
            raise LogClosed(f"{self.directory} was closed")
