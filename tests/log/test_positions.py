"""A log and a copy of it against a list of entries: positions and contents stay exact."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.log import VOTERS_KEY, Log, LogConfig, LogFailed, OffsetOutOfRange, segment, snapshot
from sapwood.log.ledger import KEPT_VOTERS
from sapwood.wire.batch import read_header
from sapwood.wire.records import encode_batch
from tests.disk.faulty import Crashed, FaultyDisk
from tests.log.batches import opened, starts

Position = tuple[int, int]


@dataclass(frozen=True)
class Item:
    """A batch, or a marker, which has no bytes."""

    epoch: int
    base: int
    end: int
    data: bytes = b""
    voters: bytes | None = None
    producer: int = -1


@dataclass
class Model:
    """What was appended, and how much of it must be found again."""

    items: list[Item] = field(default_factory=list)
    durable: Position = (-1, 0)
    noted_end: int = 0
    start: int = 0
    wanted_start: int = 0
    newest_epoch: int = 0

    @property
    def positions(self) -> list[Position]:
        return [(-1, 0), *((it.epoch, it.end) for it in self.items)]

    def found(self, log: Log) -> None:
        """After a crash: a prefix with at least what was durable."""
        assert self.durable <= log.position
        assert log.position in self.positions
        assert self.start <= log.start_offset <= self.wanted_start
        del self.items[self.positions.index(log.position) :]
        self.start = self.wanted_start = log.start_offset
        self.compare(log)

    def compare(self, log: Log) -> None:
        assert log.position == self.positions[-1]
        assert log.durable_position <= log.position
        begins: list[Position] = []
        for it in self.items:
            if it.epoch > (begins[-1][0] if begins else -1):
                begins.append((it.epoch, it.base))
        known = starts(log)
        assert known == begins[len(begins) - len(known) :]
        forgotten = begins[1 : 1 + len(begins) - len(known)]
        assert all(offset < log.start_offset for _, offset in forgotten)
        for epoch in range(self.newest_epoch + 2):
            before = [it for it in begins if it[0] <= epoch]
            if before and before[-1] in known:
                end = next((offset for e, offset in begins if e > epoch), log.end_offset)
                assert log.end_of_epoch(epoch) == (before[-1][0], end)
        said = [(it.base, it.voters) for it in self.items if it.voters is not None]
        assert log.voters[-1:] == said[-1:]
        visible = [it.data for it in self.items if it.data and it.end > log.start_offset]
        assert contents(log) == visible
        self._compare_producers(log)

    def _compare_producers(self, log: Log) -> None:
        last: dict[int, Item] = {}
        for it in self.items:
            if it.producer >= 0 and it.base >= log.start_offset:
                last[it.producer] = it
        for it in last.values():
            assert log.producers.check(read_header(it.data), 0) == it.base


def contents(log: Log, start: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = max(start, log.start_offset)
    while batches := log.read(offset, 700, log.end_offset):
        found += map(bytes, batches)
        offset = read_header(batches[-1]).next_offset
    return found


class Life:
    """One process's time with the log."""

    def __init__(
        self, disk: FaultyDisk, model: Model, follower: Follower, chance: random.Random
    ) -> None:
        self.disk = disk
        self.model = model
        self.follower = follower
        self.chance = chance
        self.task: asyncio.Task[Any] | None = None
        self.config = LogConfig(
            segment_bytes=chance.choice([400, 1500, 10_000]),
            retention_ms=-1,
            index_interval_bytes=chance.choice([1, 300, 4096]),
            preallocate=chance.random() < 0.8,
        )

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        self.task = asyncio.current_task()
        log = opened(self.disk, self.config, durable_end=self.model.noted_end)
        self.model.found(log)
        self._lead(log)
        actions = [self._append] * 6 + [self._sync] * 4 + [self._lead] * 3 + [self._follow] * 2
        actions += [self._control, self._advance, self._note, self._turn, self._truncate]
        for _ in range(100):
            done = self.chance.choice([*actions, self._reopen])(log)
            found = await done if done is not None else None
            log = found or log
            assert log.position == self.model.positions[-1]

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Crashed):
            loop.default_exception_handler(context)
        elif self.task is not None:
            self.task.cancel()

    def _lead(self, log: Log) -> None:
        """As after an election: whatever comes is of a new epoch."""
        self.model.newest_epoch += self.chance.randrange(1, 3)
        epoch = self.model.newest_epoch
        self.model.items.append(Item(epoch, log.end_offset, log.end_offset))
        log.append_marker(epoch, epoch, 0)

    def _append(self, log: Log) -> None:
        chance, base = self.chance, log.end_offset
        producer, count = chance.randrange(2), chance.randrange(1, 4)
        data = encode_batch(
            [(0, None, chance.randbytes(chance.choice([5, 50, 300])), ())] * count,
            base_offset=base,
            leader_epoch=log.last_epoch,
            producer_id=producer,
            producer_epoch=log.last_epoch,
            base_sequence=base,
        )
        item = Item(log.last_epoch, base, base + count, bytes(data), producer=producer)
        self.model.items.append(item)
        log.append(memoryview(data), read_header(data), base, 0)

    def _control(self, log: Log) -> None:
        value, base = self.chance.randbytes(8), log.end_offset
        data = encode_batch(
            [(-1, VOTERS_KEY, value, ())],
            base_offset=base,
            leader_epoch=log.last_epoch,
            control=True,
        )
        self.model.items.append(Item(log.last_epoch, base, base + 1, bytes(data), value))
        assert log.append_control(VOTERS_KEY, value, log.last_epoch, base, 0) == base

    def _sync(self, log: Log) -> Any:
        position = log.position
        synced = log.sync()
        return self._synced(log, position, synced) if self.chance.random() < 0.5 else None

    async def _synced(self, log: Log, position: Position, synced: asyncio.Future[int]) -> None:
        end = await synced
        assert log.durable_position >= position
        assert (log.durable_position[1], log.durable_end) == (end, end)
        self.model.durable = log.durable_position

    async def _turn(self, log: Log) -> None:
        await asyncio.sleep(0)

    def _note(self, log: Log) -> None:
        self.model.noted_end = log.durable_end
        self.model.durable = log.durable_position

    def _advance(self, log: Log) -> Any:
        start = self.chance.randint(log.start_offset, log.end_offset)
        self.model.wanted_start = start
        advanced = log.advance_start(start)
        advanced.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._advanced(advanced, start) if self.chance.random() < 0.5 else None

    async def _advanced(self, advanced: asyncio.Future[None], start: int) -> None:
        await advanced
        self.model.start = start

    def _truncate(self, log: Log) -> None:
        model = self.model
        position = self.chance.choice(model.positions)
        said = [it for it in model.items if it.voters is not None and it.end > position[1]]
        if position[1] < log.start_offset or len(said) >= KEPT_VOTERS:
            return
        model.durable = min(model.durable, position)
        model.noted_end = min(model.noted_end, position[1])
        cut = model.positions.index(position)
        if position < log.position:
            # Until it is done, and after a crash on the way, more may be there.
            log.truncate(*position, 0)
        del model.items[cut:]
        model.compare(log)
        assert log.durable_position <= log.position
        self._lead(log)

    def _follow(self, log: Log) -> None:
        self.follower.follow(log, self.chance)

    async def _reopen(self, log: Log) -> Log | None:
        if self.chance.random() < 0.7:
            return None
        log.close()
        model = self.model
        model.noted_end, model.durable = log.durable_end, log.durable_position
        model.start = log.start_offset
        again = opened(self.disk, self.config, durable_end=model.noted_end, clean=True)
        assert again.durable_position == again.position == model.durable
        model.found(again)
        return again


class Follower:
    """Copies the log as a replica does: cut where it diverges, begin anew where it must."""

    def __init__(self, chance: random.Random) -> None:
        self.disk = FaultyDisk()
        self.config = LogConfig(segment_bytes=chance.choice([500, 5000]), retention_ms=-1)
        self.log = opened(self.disk, self.config)
        self.resets = 0

    def follow(self, leader: Log, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 40)):
            if self._agree(leader) and not self._fetch(leader, chance.choice([0, 200, 5000])):
                self._compare(leader)
                break
            if chance.random() < 0.05:
                self._crash(chance)

    def _agree(self, leader: Log) -> bool:
        position = self.log.position
        if position == (-1, 0) and leader.start_offset == 0:
            return True
        common = leader.end_of_epoch(position[0])
        if common >= position:
            return True
        try:
            if common == (-1, -1) and leader.start_offset == 0:
                common = (-1, 0)
            self.log.truncate(*common, 0)
            assert self.log.position < position
        except OffsetOutOfRange:
            self._reset(leader)
        return False

    def _fetch(self, leader: Log, max_bytes: int) -> bool:
        try:
            pieces = leader.read_replica(*self.log.position, max_bytes)
        except OffsetOutOfRange:
            self._reset(leader)
            return True
        before = self.log.position
        self.log.append_entries(b"".join(pieces), 0)
        assert (self.log.position > before) == bool(pieces)
        return bool(pieces)

    def _reset(self, leader: Log) -> None:
        self.resets += 1
        self.log.reset(leader.snapshot(), 0)

    def _crash(self, chance: random.Random) -> None:
        durable = self.log.durable_position
        self.disk = self.disk.after_crash(chance)
        self.log = opened(self.disk, self.config, durable_end=chance.randint(0, durable[1]))
        assert self.log.position >= durable

    def _compare(self, leader: Log) -> None:
        assert self.log.position == leader.position
        start = max(self.log.start_offset, leader.start_offset)
        assert contents(self.log, start) == contents(leader, start)
        count = min(len(starts(self.log)), len(starts(leader)))
        assert starts(self.log)[-count:] == starts(leader)[-count:]
        assert self.log.voters[-1:] == leader.voters[-1:]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_positions_and_contents_are_exact_after_whatever_happened(seed: int) -> None:
    chance = random.Random(seed)
    patch = pytest.MonkeyPatch()
    patch.setattr(segment, "BLOCK_ROWS", 2)
    patch.setattr(segment, "_FIRST_ALLOCATION", 1000)
    patch.setattr(snapshot, "_INTERVAL_BATCHES", chance.choice([1, 5, 1000]))
    try:
        disk, model, follower = FaultyDisk(), Model(), Follower(chance)
        for _ in range(4):
            disk.crash_at = disk.steps + chance.choice([5, 50, 300]) + chance.randrange(50)
            try:
                asyncio.run(Life(disk, model, follower, chance).live())
            except (Crashed, LogFailed, asyncio.CancelledError):
                assert disk.crashed
            disk = disk.after_crash(chance)
        disk.crash_at = None
        asyncio.run(Life(disk, model, follower, chance).live())
    finally:
        patch.undo()
