"""Whatever happens between two file operations: what was acknowledged is there, once, in order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.log import Log, LogConfig, LogFailed, segment, snapshot
from sapwood.wire.batch import BatchHeader, read_header
from sapwood.wire.control import TransactionMarker, encode_transaction_marker
from sapwood.wire.records import decode_batch, encode_batch
from tests.disk.faulty import Crashed, FaultyDisk
from tests.log.batches import opened
from tests.log.committed import read_committed

TRANSACTIONAL = [1, 2]
"""Producers, of three, that write in transactions."""
ABORT = encode_transaction_marker(TransactionMarker(False, 0))[0]


class History:
    """What was done to the log, and so what may and what must be found in it."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.acknowledged_end = 0
        self.noted_end = 0
        self.acknowledged_start = 0
        self.wanted_start = 0
        self.sequences: dict[int, int] = {}

    @property
    def end(self) -> int:
        return self.batches[-1][0].next_offset if self.batches else 0

    def cut(self, end_offset: int) -> None:
        self.batches = [it for it in self.batches if it[0].next_offset <= end_offset]
        self.sequences = {}
        for header, _ in self.batches:
            if not header.is_control:
                self.sequences[header.producer_id] = header.last_sequence + 1

    def check(self, log: Log) -> None:
        """Compare and go on from what was found."""
        assert self.acknowledged_end <= log.end_offset <= max(self.end, log.start_offset)
        assert self.acknowledged_start <= log.start_offset <= self.wanted_start
        self.acknowledged_start = self.wanted_start = log.start_offset
        self.compare(log)

    def compare(self, log: Log) -> None:
        self.cut(log.end_offset)
        visible = [it for it in self.batches if it[0].last_offset >= log.start_offset]
        found: list[bytes] = []
        offset = log.start_offset
        while batches := log.read(offset, 700, log.end_offset):
            found += map(bytes, batches)
            offset = read_header(batches[-1]).next_offset
        assert found == [batch for _, batch in visible]
        self._check_producers(log)
        self._check_transactions(log)
        if visible:
            assert log.last_epoch == visible[-1][0].leader_epoch

    def _check_producers(self, log: Log) -> None:
        last_ones: dict[int, list[BatchHeader]] = {}
        for header, _ in self.batches:
            if not header.is_control:
                last_ones.setdefault(header.producer_id, []).append(header)
        for headers in last_ones.values():
            # What retention has deleted may be forgotten, but need not.
            for header in headers[-5:]:
                if header.base_offset >= log.start_offset:
                    assert log.producers.check(header, 0) == header.base_offset
            if headers[-1].base_offset >= log.start_offset:
                following = headers[-1]._replace(base_sequence=headers[-1].last_sequence + 1)
                assert log.producers.check(following, 0) is None

    def _check_transactions(self, log: Log) -> None:
        """Of all that is there nothing may be read that is aborted or undecided, all else may."""
        undecided: dict[int, list[range]] = {}
        readable: list[int] = []
        aborted: set[int] = set()
        for header, batch in self.batches:
            its = range(header.base_offset, header.next_offset)
            if header.is_control:
                ended = undecided.pop(header.producer_id, [])
                if decode_batch(batch)[0].key == ABORT:
                    aborted.update(offset for each in ended for offset in each)
                continue
            if header.is_transactional:
                undecided.setdefault(header.producer_id, []).append(its)
            readable += its
        stable = log.last_stable_offset(log.end_offset)
        left = [each for its in undecided.values() for each in its if each[-1] >= log.start_offset]
        # One whose records were all deleted may be remembered as open, but need not.
        limits = [each.start for each in left]
        assert stable <= max(log.start_offset, min(limits, default=log.end_offset))
        if not undecided:
            assert stable == log.end_offset
        assert read_committed(log, log.end_offset, max_bytes=700) == [
            offset
            for offset in readable
            if log.start_offset <= offset < stable and offset not in aborted
        ]


class Life:
    """One process's time with the log."""

    def __init__(self, disk: FaultyDisk, history: History, chance: random.Random) -> None:
        self.disk = disk
        self.history = history
        self.chance = chance
        self.epoch = 0
        # Batches of one size fit into the gaps that a crash leaves: what lies behind may come back.
        self.sizes, self.most_records = chance.choice([([5, 50, 500], 3), ([440], 1)])
        self.task: asyncio.Task[Any] | None = None
        self.config = LogConfig(
            segment_bytes=chance.choice([600, 2000, 10_000]),
            segment_ms=1 << 40,
            retention_ms=-1,
            retention_bytes=chance.choice([-1, 5000]),
            index_interval_bytes=chance.choice([1, 300, 4096]),
            preallocate=chance.random() < 0.8,
        )

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        self.task = asyncio.current_task()
        log = self._open(clean=False)
        self.epoch = log.last_epoch + 1
        actions = [self._append] * 8 + [self._end] * 2 + [self._sync] * 4
        actions += [self._start, self._retain, self._note, self._turn, self._truncate, self._reopen]
        for _ in range(120):
            log = await self.chance.choice(actions)(log)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A crash inside a callback ends everything, too."""
        if not isinstance(context.get("exception"), Crashed):
            loop.default_exception_handler(context)
        elif self.task is not None:
            self.task.cancel()

    def _open(self, *, clean: bool) -> Log:
        log = opened(self.disk, self.config, durable_end=self.history.noted_end, clean=clean)
        self.history.check(log)
        return log

    async def _append(self, log: Log) -> Log:
        history, chance = self.history, self.chance
        producer = chance.randrange(3)
        sequence = history.sequences.get(producer, 0)
        count = chance.randrange(1, self.most_records + 1)
        value = chance.randbytes(chance.choice(self.sizes))
        batch = encode_batch(
            [(0, None, value, ())] * count,
            base_offset=log.end_offset,
            leader_epoch=self.epoch,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=producer in TRANSACTIONAL,
        )
        header = read_header(batch)
        assert log.producers.check(header, 0) is None
        history.batches.append((header, bytes(batch)))
        history.sequences[producer] = sequence + count
        log.append(memoryview(batch), header, log.end_offset + 1, 0)
        return log

    async def _end(self, log: Log) -> Log:
        marker = TransactionMarker(self.chance.random() < 0.5, 0)
        batch = encode_batch(
            [(-1, *encode_transaction_marker(marker), ())],
            base_offset=log.end_offset,
            leader_epoch=self.epoch,
            producer_id=self.chance.choice(TRANSACTIONAL),
            producer_epoch=0,
            transactional=True,
            control=True,
        )
        header = read_header(batch)
        self.history.batches.append((header, bytes(batch)))
        log.append(memoryview(batch), header, log.end_offset + 1, 0)
        return log

    async def _sync(self, log: Log) -> Log:
        synced = log.sync()
        if self.chance.random() < 0.5:
            self.history.acknowledged_end = await synced
        return log

    async def _turn(self, log: Log) -> Log:
        await asyncio.sleep(0)
        return log

    async def _note(self, log: Log) -> Log:
        self.history.noted_end = log.durable_end
        return log

    async def _start(self, log: Log) -> Log:
        start = self.chance.randint(log.start_offset, log.end_offset)
        self.history.wanted_start = start
        advanced = log.advance_start(start)
        advanced.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.chance.random() < 0.5:
            await advanced
            self.history.acknowledged_start = start
        return log

    async def _retain(self, log: Log) -> Log:
        log.retain(0, self.history.acknowledged_end)
        self.history.wanted_start = log.start_offset
        return log

    async def _truncate(self, log: Log) -> Log:
        if self.chance.random() < 0.7:
            return log
        offset = self.chance.randint(log.start_offset, log.end_offset)
        base = max(
            (h.base_offset for h, _ in self.history.batches if h.base_offset <= offset), default=0
        )
        history = self.history
        history.acknowledged_end = min(history.acknowledged_end, base)
        history.noted_end = min(history.noted_end, base)
        if base < log.start_offset:
            return log
        log.truncate(log.last_epoch, base, 0)
        assert log.end_offset == base
        history.compare(log)
        return log

    async def _reopen(self, log: Log) -> Log:
        if self.chance.random() < 0.7:
            return log
        log.close()
        self.history.noted_end = self.history.acknowledged_end = log.durable_end
        return self._open(clean=True)


@settings(max_examples=180, deadline=None)
@given(st.integers(0, 2**32))
def test_after_any_crash_the_log_has_what_was_acknowledged_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    patch = pytest.MonkeyPatch()
    patch.setattr(segment, "BLOCK_ROWS", 2)
    patch.setattr(segment, "_FIRST_ALLOCATION", 1000)
    patch.setattr(snapshot, "_INTERVAL_BATCHES", chance.choice([1, 5, 1000]))
    try:
        disk, history = FaultyDisk(), History()
        for _ in range(4):
            disk.crash_at = disk.steps + chance.choice([5, 50, 300]) + chance.randrange(50)
            try:
                asyncio.run(Life(disk, history, chance).live())
            except (Crashed, LogFailed, asyncio.CancelledError):
                assert disk.crashed
            disk = disk.after_crash(chance)
        disk.crash_at = None
        asyncio.run(Life(disk, history, chance).live())
    finally:
        patch.undo()
