"""Giving up what a log holds: its end, or all of it. Blocking, and safe against crashes.

Truncation goes backwards step by step: what a crash leaves is a prefix of what was there.

A reset is decided by the state file: (1) it says what the log shall begin with, durably; from here
on the reset will happen; (2) the files go; (3) the state says where the log starts now. Recovery
finishes a reset that got past (1).
"""

from __future__ import annotations

from sapwood.disk import Disk, replace
from sapwood.log import seed, snapshot
from sapwood.log.index import Index
from sapwood.log.replay import LogFiles, replay
from sapwood.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment
from sapwood.log.snapshot import Snapshot
from sapwood.log.state import StateFile


def truncate(log: LogFiles, epoch: int, offset: int, now_ms: int) -> None:
    """Cut a log that is durable to a position that lies within it."""
    disk, segments, state = log.disk, log.segments, log.state
    segment = next(segments.from_offset(offset))
    position, end_offset = segment.place_after(epoch, offset)
    # From here on a snapshot of what is cut doesn't count, even if a crash brings it back.
    state.change_now(
        durable_end=min(state.state.durable_end, end_offset),
        timeline=state.state.timeline + 1,
        cut_epoch=epoch,
        cut_offset=offset,
        cut_end=end_offset,
    )
    previous = segments.previous(segment)
    if previous is not None and segment.base_offset == offset:
        # Markers at its end. The segment has the same ones: first these, so that of markers that
        # follow each other a crash never leaves the later one alone.
        end = previous.place_after(epoch, offset)[0]
        if end < previous.size:
            previous.trim(end)
    for later in reversed(segments.remove_after(segment)):
        later.release()
        disk.remove(later.index_path)
        disk.remove(later.path)
    disk.sync_dir(log.directory)
    segment.cut(position, now_ms)
    # Last: a log whose first markers are only in the state must not lose them before the rest.
    epochs = tuple(it for it in state.state.epochs if it[0] <= epoch)
    voters = tuple(it for it in state.state.voters if it[0] < offset)
    if (epochs, voters) != (state.state.epochs, state.state.voters):
        state.change_now(epochs=epochs, voters=voters)
    log.ledger = replay(disk, log.directory, list(segments), state.state, now_ms)
    log.ledger.cut_voters(offset)


def decide_reset(state: StateFile, data: bytes) -> None:
    """Step 1. OSError: it won't happen."""
    seed.decode(data)
    try:
        state.change_now(reset=data)
    except OSError:
        # It may have reached the disk all the same: then it must not happen some day.
        state.change_now(reset=b"")
        raise


def reset(log: LogFiles, index_interval_bytes: int, now_ms: int) -> None:
    """The rest, in a log that is in use."""
    for segment in log.segments:
        segment.release()
    base = finish_reset(log.disk, log.directory, log.state)
    segment = Segment(log.disk, log.cache, log.directory, base, index_interval_bytes)
    segment.activate(Index())
    segment.scan(segment.file.size, now_ms)
    log.segments.restart(segment)
    state = log.state.state
    log.ledger = replay(log.disk, log.directory, [segment], state, now_ms)
    log.start_offset = state.start_offset


def finish_reset(disk: Disk, directory: str, state: StateFile) -> int:
    """Steps 2 and 3 of a reset that was decided; returns where the log's first segment begins."""
    begin = seed.decode(state.state.reset)
    for name in disk.list(directory):
        if name.endswith((LOG_SUFFIX, INDEX_SUFFIX, snapshot.SUFFIX)):
            disk.remove(f"{directory}/{name}")
    disk.sync_dir(directory)
    if begin.data:
        path = f"{directory}/{begin.base_offset:020d}{LOG_SUFFIX}"
        replace(disk, path, [begin.data])
    ledger, end_offset = begin.snapshot.ledger, begin.snapshot.offset
    timeline = state.state.timeline + 1
    snapshot.write(disk, directory, Snapshot(end_offset, timeline, ledger))
    state.change_now(
        start_offset=begin.start_offset,
        first_segment=begin.base_offset,
        durable_end=end_offset,
        timeline=timeline,
        cut_epoch=ledger.epochs.last,
        cut_offset=end_offset,
        cut_end=end_offset,
        cleaned=(),
        swap=None,
        epochs=tuple(ledger.epochs.starts),
        voters=tuple(ledger.voters),
        reset=b"",
    )
    return begin.base_offset
