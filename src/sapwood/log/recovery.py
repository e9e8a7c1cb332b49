"""From the files in a directory to a log that can be used.

What is known: everything below the durable end was synced. So below it a bad entry is corruption
and nothing is touched. Above it the first bad entry is where a crash cut the last writes short:
the log ends there, and whatever lies behind was never acknowledged. Unless no part of that entry
is missing: then it was written as a whole, may have been acknowledged, and is corrupt as well.

Only the tail is read: index rows are trusted up to the durable end (the entry under the last one
is checked), and closed segments are known by the summaries of their sealed indexes.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass

from sapwood.disk import Disk, may_be_torn, unfinished
from sapwood.log.cache import SegmentCache
from sapwood.log.cleaner import CLEANED_SUFFIX
from sapwood.log.compact import DELETED_SUFFIX, move_files
from sapwood.log.config import LogConfig
from sapwood.log.entry import (
    HEADERS_SIZE,
    BadEntry,
    encode_markers,
    is_unwritten,
    parse,
    walk,
)
from sapwood.log.errors import CorruptLog
from sapwood.log.index import BLOCK_ROWS, Index
from sapwood.log.ledger import Ledger
from sapwood.log.replay import LogFiles, replay
from sapwood.log.rewind import finish_reset
from sapwood.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment
from sapwood.log.segments import SegmentList
from sapwood.log.state import LogState, StateFile
from sapwood.log.syncing import Position

logger = logging.getLogger(__name__)

_LEFTOVERS = (CLEANED_SUFFIX, DELETED_SUFFIX)


@dataclass(slots=True)
class Recovered:
    files: LogFiles
    durable: Position
    unsynced: list[Segment]
    """Closed segments that may not be durable yet."""


def recover(
    disk: Disk,
    directory: str,
    config: LogConfig,
    cache: SegmentCache,
    *,
    durable_end: int,
    clean: bool,
    now_ms: int,
) -> Recovered:
    disk.makedirs(directory)
    state = StateFile.load(disk, directory, disk.list(directory))
    if state.state.reset:
        finish_reset(disk, directory, state)
    _finish_swap(disk, directory, state)
    bases = _segments_from_start(disk, directory, state)
    start_offset = state.state.start_offset
    if 0 <= state.state.cut_end < durable_end <= state.state.cut_offset:
        # Noted before a truncation, which had to cut deeper than it was asked to.
        durable_end = state.state.cut_end
    durable_end = max(durable_end, state.state.durable_end, start_offset)
    if not bases or bases[0] > max(start_offset, state.state.cleaned_end):
        if durable_end > start_offset:
            raise CorruptLog(directory, 0, f"no segment with offset {start_offset} is left")
        _remove_segments(disk, directory, bases)
        bases = [start_offset]
    if start_offset > 0 and state.state.first_segment < 0:
        state.change_now(first_segment=bases[0])
    segments = [Segment(disk, cache, directory, b, config.index_interval_bytes) for b in bases]
    try:
        unsynced = _open_segments(
            disk, directory, segments, state.state, durable_end, clean=clean, now_ms=now_ms
        )
        ledger = replay(disk, directory, segments, state.state, now_ms)
        _complete_markers(segments, ledger)
    except BaseException:
        for segment in segments:
            segment.release()
        raise
    durable = position = (ledger.epochs.last, segments[-1].end_offset)
    if not clean:
        # A marker at the durable end itself may have come after the sync.
        stored = [epoch for epoch, _ in state.state.epochs]
        durable = (max(ledger.epochs.before(durable_end), *stored, -1), durable_end)
    if durable >= position:
        unsynced = []
    files = LogFiles(
        disk, directory, cache, state, SegmentList(segments), ledger, state.state.start_offset
    )
    return Recovered(files, durable, unsynced)


def _open_segments(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    state: LogState,
    durable_end: int,
    *,
    clean: bool,
    now_ms: int,
) -> list[Segment]:
    """Returns those of the closed ones that may not be durable yet."""
    # One that ends at the durable end is not durable as a whole: it may have markers there.
    tail = max(i for i, it in enumerate(segments) if i == 0 or it.base_offset < durable_end)
    for segment, following in itertools.pairwise(segments[: tail + 1]):
        _open_closed(disk, segment, following.base_offset, state.cleaned_end)
    kept = _open_tail(disk, directory, segments[tail:], durable_end, clean=clean, now_ms=now_ms)
    segments[tail:] = kept
    last = kept[-1]
    if last.index.unsaved >= BLOCK_ROWS:
        last.save_index()
    return kept[:-1]


def _complete_markers(segments: list[Segment], ledger: Ledger) -> None:
    """Give the last segment what a crash took of the markers that the one before ends with."""
    last = segments[-1]
    if len(segments) > 1 and not last.has_offsets:
        held = max((entry.header.leader_epoch for entry in last.entries()), default=-1)
        missing = ledger.epochs.starting_at(last.base_offset, held)
        if missing:
            data, entries = encode_markers(missing, last.base_offset, segments[-2].max_hlc)
            last.append_entries(data, entries, 0, 0)


def _finish_swap(disk: Disk, directory: str, state: StateFile) -> None:
    """Do the rest of a swap that was decided."""
    swap = state.state.swap
    if swap is not None:
        move_files(disk, directory, swap)
        disk.sync_dir(directory)
        state.change_now(swap=None)


def _segments_from_start(disk: Disk, directory: str, state: StateFile) -> list[int]:
    """Base offsets, after what an interrupted deletion, swap or snapshot left is gone."""
    names = disk.list(directory)
    bases = [int(name[:20]) for name in names if name.endswith(LOG_SUFFIX)]
    doomed = [name for name in names if unfinished(name) or name.endswith(_LEFTOVERS)]
    first = state.state.first_segment
    if first < 0:
        first = state.state.start_offset
    while len(bases) > 1 and bases[1] <= first:
        doomed.append(f"{bases.pop(0):020d}{LOG_SUFFIX}")
    stems = {f"{base:020d}" for base in bases}
    doomed += [n for n in names if n.endswith(INDEX_SUFFIX) and n[:20] not in stems]
    if doomed:
        # The state that permits this must not go back after the files have gone.
        disk.sync_dir(directory)
        for name in doomed:
            disk.remove(f"{directory}/{name}")
    return bases


def _remove_segments(disk: Disk, directory: str, bases: list[int]) -> None:
    """Durably remove segments of which nothing was durable."""
    for base in reversed(bases):
        for suffix in (INDEX_SUFFIX, LOG_SUFFIX):
            disk.remove(f"{directory}/{base:020d}{suffix}")
    if bases:
        disk.sync_dir(directory)


def _open_closed(disk: Disk, segment: Segment, end_offset: int, cleaned_end: int) -> None:
    """A segment that lies below the durable end as a whole."""
    file = disk.open(segment.path)
    try:
        summary = Index.load_summary(disk, segment.index_path)
        if summary is not None and (summary.size, summary.end_offset) == (file.size, end_offset):
            segment.adopt(summary)
            return
        index = Index()
        try:
            for entry in walk(file, 0, file.size, whole=False):
                segment.note(entry.position, entry.header, entry.hlc, index)
        except BadEntry as bad:
            if segment.end_offset != end_offset:
                raise CorruptLog(segment.path, bad.position, bad.reason) from bad
            # Complete: the crash came before the room ahead was given back.
            file.truncate(segment.size)
    finally:
        file.close()
    if segment.end_offset != end_offset and segment.base_offset >= cleaned_end:
        raise CorruptLog(
            segment.path,
            segment.size,
            f"it ends at offset {segment.end_offset}, the next segment begins at {end_offset}",
        )
    segment.end_offset = end_offset
    try:
        index.save(disk, segment.index_path, segment.summary())
    except OSError as error:
        logger.warning("index %s was not written: %s", segment.index_path, error)


def _open_tail(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    durable_end: int,
    *,
    clean: bool,
    now_ms: int,
) -> list[Segment]:
    """The segments that may hold what was not durable; the last one becomes active."""
    for number, segment in enumerate(segments):
        following = segments[number + 1 :]
        segment.activate(_trusted_index(disk, segment, durable_end))
        bad = segment.scan(segment.file.size, now_ms)
        torn = bad is not None and not bad.unwritten
        gap = bool(following) and segment.end_offset != following[0].base_offset
        changed = bad is not None and torn and _was_written(segment, bad)
        if segment.end_offset < durable_end or changed or (clean and (torn or gap)):
            reason = f"the log ends at offset {segment.end_offset} here, it was longer"
            if bad is not None and torn:
                reason = bad.reason
            raise CorruptLog(segment.path, segment.size, reason)
        # Zeros alone at the place of the next entry don't prove that nothing follows: of two
        # writes that weren't synced the second may have reached the disk, and would come back
        # behind a new first one.
        if gap or (bad is not None and not is_unwritten(segment.file, segment.size)):
            _cut(disk, directory, segment, following)
            return segments[: number + 1]
        if following:
            segment.close()
    return segments


def _was_written(segment: Segment, bad: BadEntry) -> bool:
    """As a whole, as far as can be told."""
    data = segment.file.pread(bad.checked, bad.position)
    return bool(data) and not may_be_torn(data, bad.position)


def _trusted_index(disk: Disk, segment: Segment, durable_end: int) -> Index:
    """The rows below the durable end, if they belong to this file."""
    index, _ = Index.load(disk, segment.index_path)
    index.cut_offsets(max(0, durable_end - segment.base_offset))
    if not len(index) or not disk.exists(segment.path):
        return Index()
    position = index.positions[-1]
    file = disk.open(segment.path, write=False)
    try:
        head = file.pread(HEADERS_SIZE, position)
        entry = parse(head, 0, position, file.size - position)
    except BadEntry:
        return Index()
    finally:
        file.close()
    if entry.header.base_offset != segment.base_offset + index.offsets[-1]:
        return Index()
    return index


def _cut(disk: Disk, directory: str, segment: Segment, following: list[Segment]) -> None:
    """End the log here, durably: bytes that were cut off must not come back behind new ones."""
    logger.warning(
        "%s: a crash cut the last writes short; the log ends at offset %d",
        segment.path,
        segment.end_offset,
    )
    _remove_segments(disk, directory, [later.base_offset for later in following])
    segment.file.truncate(segment.size)
    segment.file.sync()
