"""Compaction by key: what to compact, and how the new segments take the old ones' place.

The swap: (1) the new files are complete and synced, ending in `.cleaned`; (2) the state file says
which segments they replace, durably: from here on the swap will happen; (3) the files are renamed
within one turn of the loop, so that no reader sees half of it; (4) the state says it is done.
Recovery finishes a swap that got past (2) and deletes the files of one that didn't.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import msgspec

from sapwood.disk import Disk
from sapwood.log.cache import SegmentCache
from sapwood.log.cleaner import CLEANED_SUFFIX, Cleaned, CompactionPlan, Source
from sapwood.log.clock import wall_ms
from sapwood.log.config import LogConfig
from sapwood.log.errors import CompactionFailed, CorruptLog, LogFailed
from sapwood.log.ledger import Ledger
from sapwood.log.segment import INDEX_SUFFIX, LOG_SUFFIX, NO_TIMESTAMP, Segment
from sapwood.log.segments import SegmentList
from sapwood.log.state import LogState, StateFile, Swap

DELETED_SUFFIX = ".deleted"
_MOST_MARKS = 64

Runner = Callable[[CompactionPlan], Awaitable[Cleaned]]
Marks = tuple[tuple[int, int], ...]


class Report(msgspec.Struct):
    """What the helper process tells when it is done."""

    cleaned: Cleaned | None = None
    corrupt: tuple[str, int, str] | None = None
    failure: str = ""


def plan(
    segments: SegmentList,
    config: LogConfig,
    state: LogState,
    ledger: Ledger,
    directory: str,
    now_ms: int,
    limit_offset: int,
) -> CompactionPlan | None:
    """Which closed segments to compact now; None if it isn't worth it yet."""
    sources = []
    for segment in segments.closed:
        lag_ms = config.min_compaction_lag_ms
        too_new = lag_ms > 0 and now_ms - _newest_ms(segment) < lag_ms
        if segment.end_offset > limit_offset or too_new:
            break
        sources.append(segment)
    dirty = [segment for segment in sources if segment.end_offset > state.cleaned_end]
    if not dirty:
        return None
    ratio = sum(it.size for it in dirty) / max(1, sum(it.size for it in sources))
    overdue = now_ms - _oldest_ms(dirty[0]) > config.max_compaction_lag_ms
    if ratio < config.min_cleanable_dirty_ratio and not overdue:
        return None
    end_offset = sources[-1].end_offset
    return CompactionPlan(
        directory=directory,
        sources=tuple(Source(it.base_offset, it.size) for it in sources),
        start_offset=state.start_offset,
        dirty_offset=state.cleaned_end,
        end_offset=end_offset,
        tombstone_offset=_tombstone_offset(state.cleaned, config, now_ms),
        max_hlc=max(it.max_hlc for it in sources),
        segment_bytes=config.segment_bytes,
        index_interval_bytes=config.index_interval_bytes,
        aborted=tuple(ledger.transactions.aborted(0, end_offset)),
        told_by=tuple(it for it in ledger.producers.told_by() if 0 <= it < end_offset),
    )


def _newest_ms(segment: Segment) -> int:
    if segment.max_timestamp != NO_TIMESTAMP:
        return segment.max_timestamp
    return wall_ms(segment.max_hlc)


def _oldest_ms(segment: Segment) -> int:
    hlcs = segment.index.hlcs
    return wall_ms(hlcs[0]) if len(hlcs) else 0


def _tombstone_offset(marks: Marks, config: LogConfig, now_ms: int) -> int:
    """A tombstone has to stay for a while after what it deletes has gone: a reader that has seen
    the value must get to see that it was deleted. So it counts when compaction came by first."""
    done = [offset for offset, at in marks if now_ms - at > config.delete_retention_ms]
    return max(done, default=0)


def marked(marks: Marks, config: LogConfig, clean_offset: int, now_ms: int) -> Marks:
    """The marks after a compaction, few and ascending."""
    done = _tombstone_offset(marks, config, now_ms)
    kept = [(offset, at) for offset, at in marks if offset >= done and offset < clean_offset]
    kept.append((clean_offset, now_ms))
    while len(kept) > _MOST_MARKS:
        del kept[0]  # what it covered counts from the next one's time: later, never earlier
    return tuple(kept)


def sources_of(segments: SegmentList, plan: CompactionPlan) -> list[Segment] | None:
    """The segments of a plan, if all of them are still there."""
    known = {(it.base_offset, it.size): it for it in segments.closed}
    found = [known.get((source.base_offset, source.size)) for source in plan.sources]
    return [it for it in found if it is not None] if None not in found else None


def move_files(disk: Disk, directory: str, swap: Swap) -> None:
    """Step 3, which recovery may have to repeat: what was done before is left alone."""
    for base in swap.removed:
        if base not in swap.added:
            for suffix in (INDEX_SUFFIX, LOG_SUFFIX):
                _set_aside(disk, f"{directory}/{base:020d}{suffix}")
    for base in swap.added:
        stem = f"{directory}/{base:020d}"
        if disk.exists(stem + LOG_SUFFIX + CLEANED_SUFFIX):
            for suffix in (INDEX_SUFFIX, LOG_SUFFIX):
                _set_aside(disk, stem + suffix)
            disk.rename(stem + LOG_SUFFIX + CLEANED_SUFFIX, stem + LOG_SUFFIX)
        if disk.exists(stem + INDEX_SUFFIX + CLEANED_SUFFIX):
            disk.rename(stem + INDEX_SUFFIX + CLEANED_SUFFIX, stem + INDEX_SUFFIX)


def _set_aside(disk: Disk, path: str) -> None:
    """To delete a large file takes time; to rename it doesn't."""
    if disk.exists(path):
        disk.rename(path, path + DELETED_SUFFIX)


def _remove(disk: Disk, directory: str, suffix: str) -> None:
    for name in disk.list(directory):
        if name.endswith(suffix):
            disk.remove(f"{directory}/{name}")


class Compactor:
    """Compactions of one log, one at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        cache: SegmentCache,
        segments: SegmentList,
        state: StateFile,
        secure_snapshot: Callable[[], Awaitable[Callable[[], None]]],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._cache = cache
        self._segments = segments
        self._state = state
        self._secure_snapshot = secure_snapshot
        self._running = False
        # The swap may be on disk or not: until that is known its files must stay as they are.
        self._in_doubt = False
        self.swapping = False
        """While this holds no segment may be removed."""
        self.closed = False
        self._moved = False
        self._marks_before: Marks = ()

    async def compact(
        self, config: LogConfig, ledger: Ledger, now_ms: int, limit_offset: int, run: Runner
    ) -> int | None:
        if self._running:
            return None
        state = self._state.state
        work = plan(self._segments, config, state, ledger, self._directory, now_ms, limit_offset)
        if work is None:
            return None
        self._running = True
        try:
            if self._in_doubt:
                await self._state.change(swap=None)
                self._in_doubt = False
            cleaned = await self._cleaned(work, run)
            if cleaned is None or sources_of(self._segments, work) is None:
                return None
            marks = marked(self._state.state.cleaned, config, cleaned.clean_offset, now_ms)
            if cleaned.changed:
                return await self._swap(work, cleaned, marks, config.index_interval_bytes)
            await self._state.change(cleaned=marks)
            return 0
        finally:
            self._running = self.swapping = False
            if not self._in_doubt and not self.closed:
                _remove(self._disk, self._directory, CLEANED_SUFFIX)

    async def _cleaned(self, work: CompactionPlan, run: Runner) -> Cleaned | None:
        try:
            return await run(work)
        except (CorruptLog, OSError):
            if sources_of(self._segments, work) is None:
                return None  # they were cut while they were read
            raise

    def settle(self) -> None:
        """End a swap that is under way, one way or the other, before segments are cut. Blocking."""
        swap = self._state.state.swap
        if swap is None:
            return
        if self._moved:
            self._disk.sync_dir(self._directory)
            self._state.change_now(swap=None)
        else:
            self._state.change_now(swap=None, cleaned=self._marks_before)
        self._in_doubt = self.swapping = False

    async def _swap(
        self, work: CompactionPlan, cleaned: Cleaned, marks: Marks, interval: int
    ) -> int | None:
        # What is compacted away can't be replayed for producers any more.
        secure = await self._secure_snapshot()
        old = sources_of(self._segments, work)
        if old is None or self._is_closed():
            return None
        swap = Swap(
            tuple(it.base_offset for it in old), tuple(base for base, _ in cleaned.segments)
        )
        self.swapping = self._in_doubt = True
        self._moved = False
        before = self._state.state
        self._marks_before = before.cleaned
        try:
            await self._state.change(
                first=secure,
                durable_end=max(before.durable_end, work.end_offset),
                cleaned=marks,
                swap=swap,
            )
        except (OSError, asyncio.CancelledError):
            if self._state.state.swap is swap:
                self._state.take_back(swap=None, cleaned=before.cleaned)
            raise
        if self._is_closed() or self._state.state.swap is not swap:
            return None  # recovery will finish it, or it was taken back
        try:
            move_files(self._disk, self._directory, swap)
        except OSError as error:
            raise LogFailed(f"segments were swapped by half: {error}") from error
        self._moved = True
        new = []
        for base, summary in cleaned.segments:
            segment = Segment(self._disk, self._cache, self._directory, base, interval)
            segment.adopt(summary)
            new.append(segment)
        self._segments.swap(old, new)
        for segment in old:
            segment.release()
        # Not in one: whatever else changes the state meanwhile must not say that it is done.
        await self._disk.offload(self._finish_files)
        await self._state.change(swap=None)
        self._in_doubt = False
        return sum(it.size for it in old) - sum(it.size for it in new)

    def _is_closed(self) -> bool:
        return self.closed

    def _finish_files(self) -> None:
        self._disk.sync_dir(self._directory)
        _remove(self._disk, self._directory, DELETED_SUFFIX)


async def run_in_helper(plan: CompactionPlan) -> Cleaned:
    """Do a plan's work in a process of its own, at low priority."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sapwood.log.compact_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdin is None or process.stdout is None:
        raise CompactionFailed("the helper process has no pipes")
    try:
        # The pipe stays open: when it closes, the helper knows that this process is gone.
        process.stdin.write(msgspec.json.encode(plan) + b"\n")
        # To its end, however long: it has a word on every new segment.
        answer = await process.stdout.read()
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        # Not `wait`: as long as its pipe isn't read to the end, its transport stays open.
        await process.communicate()
    try:
        report = msgspec.json.decode(answer, type=Report)
    except msgspec.DecodeError as error:
        raise CompactionFailed("the helper process ended without a result") from error
    if report.corrupt is not None:
        raise CorruptLog(*report.corrupt)
    if report.cleaned is None:
        raise CompactionFailed(report.failure)
    return report.cleaned
