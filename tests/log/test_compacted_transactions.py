"""Compaction and transactions: what was aborted goes, what is undecided and what is known stay."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.disk import OsDisk
from sapwood.log import Log, snapshot
from sapwood.log.compact import run_in_helper
from sapwood.wire.batch import BatchHeader, read_header
from tests.disk.faulty import Crashed, FaultyDisk
from tests.log.batches import fetched, fill, first_at, opened, put, read_all, record
from tests.log.committed import end, read_committed
from tests.log.test_compaction import COMPACTED, inline

DAY_MS = COMPACTED.delete_retention_ms


def headers(log: Log) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    offset = log.start_offset
    while batches := log.read(offset, 1 << 20, log.end_offset):
        found += map(read_header, batches)
        offset = found[-1].next_offset
    return found


def markers(log: Log) -> list[int]:
    return [it.base_offset for it in headers(log) if it.is_control]


def keyed(log: Log, key: bytes, value: bytes | None, producer_id: int = -1) -> None:
    """One record; of a transaction, if there is a producer."""
    put(
        log,
        [record(value, key)],
        producer=(producer_id, 0 if producer_id >= 0 else -1, -1),
        transactional=producer_id >= 0,
    )


async def closed(log: Log) -> None:
    """Have all that was written so far in closed segments."""
    fill(log, 1, size=700)
    fill(log, 1, size=700)
    await log.sync()


def test_aborted_records_go_and_supersede_nothing() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        keyed(log, b"k", b"stays")
        keyed(log, b"k", b"aborted", 7)
        keyed(log, b"j", b"aborted", 7)
        end(log, 7, committed=False)
        keyed(log, b"j", b"stays", 8)
        end(log, 8, committed=True)
        await closed(log)
        await log.compact(0, log.end_offset, inline(disk))
        assert [it.base_offset for it in headers(log)][:4] == [0, 3, 4, 5]
        assert log.transactions.aborted(0, log.end_offset) == []
        again = opened(disk, COMPACTED, durable_end=log.end_offset)
        for it in (log, again):
            assert read_committed(it, it.end_offset)[:2] == [0, 4]
            assert it.last_stable_offset(it.end_offset) == it.end_offset

    asyncio.run(scenario())


def test_it_goes_the_same_way_in_the_helper_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def scenario() -> None:
        place = str(tmp_path_factory.mktemp("log"))
        log = Log.open(OsDisk(), place, COMPACTED, durable_end=0, clean=False, now_ms=0)
        keyed(log, b"k", b"aborted", 7)
        end(log, 7, committed=False)
        await closed(log)
        assert await log.compact(0, log.end_offset, run_in_helper)
        assert [it.base_offset for it in headers(log)][:1] == [1]
        log.close()

    asyncio.run(scenario())


def test_a_marker_stays_until_all_records_of_its_transaction_are_gone_for_a_while() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        keyed(log, b"k", b"superseded some day", 7)
        end(log, 7, committed=True)
        keyed(log, b"j", b"aborted", 8)
        end(log, 8, committed=False)
        log.producers.expire(1 << 60)  # nobody needs the markers for the producers' sake
        await closed(log)
        await log.compact(0, log.end_offset, inline(disk))
        assert markers(log) == [1, 3]
        await closed(log)
        await log.compact(DAY_MS, log.end_offset, inline(disk))
        assert markers(log) == [1, 3]
        await closed(log)
        await log.compact(DAY_MS + 1, log.end_offset, inline(disk))
        assert markers(log) == [1]
        keyed(log, b"k", b"superseding")
        for _ in range(2):
            await closed(log)
            await log.compact(DAY_MS + 1, log.end_offset, inline(disk))
        assert markers(log) == []
        follower = opened(FaultyDisk(), COMPACTED)
        fetched(log, follower)
        assert follower.last_stable_offset(follower.end_offset) == follower.end_offset

    asyncio.run(scenario())


def test_what_is_known_of_producers_is_known_to_whoever_reads_the_compacted_log() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        put(log, [record(b"1", b"k"), record(b"2", b"k")], producer=(7, 0, 0))
        put(log, [record(b"3", b"k")], producer=(7, 0, 2), compression=1)
        keyed(log, b"k", b"of a transaction", 8)
        end(log, 8, committed=False, epoch=4, coordinator_epoch=2)
        keyed(log, b"k", b"last")
        for _ in range(2):
            await closed(log)
            await log.compact(2 * DAY_MS, log.end_offset, inline(disk))
        follower = opened(FaultyDisk(), COMPACTED)
        fetched(log, follower)
        for it in (log, follower):
            last = read_header(it.read(2, 1, 3)[0])
            assert (last.record_count, last.producer_id, last.base_sequence) == (0, 7, 2)
            assert it.producers.check(last, 0) == 2
            producer = it.producers.find(8)
            assert producer is not None
            assert (producer.epoch, producer.coordinator_epoch) == (4, 2)
            assert it.last_stable_offset(it.end_offset) == it.end_offset
            # By time it isn't found, and nothing is in its way.
            assert first_at(it, 0, 6) == (5, 0)
        # Once nobody needs it, it goes.
        log.producers.expire(1 << 60)
        for _ in range(2):
            await closed(log)
            await log.compact(4 * DAY_MS, log.end_offset, inline(disk))
        assert headers(log)[0].base_offset == 5

    asyncio.run(scenario())


class Life:
    """A compacted log with transactions; beside it, what was said and what was meant."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.disk = FaultyDisk()
        self.config = replace(COMPACTED, delete_retention_ms=chance.choice([0, 3, 1000]))
        self.log = opened(self.disk, self.config)
        self.now_ms = 0
        self.values: dict[bytes, tuple[int, bytes]] = {}
        self.open: dict[int, dict[bytes, tuple[int, bytes]]] = {}

    def write(self) -> None:
        producer_id = self.chance.choice([-1, 1, 2, 3])
        key, value = b"%d" % self.chance.randrange(8), b"%d" % self.chance.randrange(10**6)
        said = self.values if producer_id < 0 else self.open.setdefault(producer_id, {})
        said[key] = self.log.end_offset, value
        keyed(self.log, key, value, producer_id)

    def end(self) -> None:
        producer_id, committed = self.chance.randrange(1, 4), self.chance.random() < 0.5
        end(self.log, producer_id, committed=committed, now_ms=self.now_ms)
        said = self.open.pop(producer_id, {})
        for key, (offset, value) in said.items() if committed else ():
            # Readers go by offsets, whenever a transaction ended.
            if self.values.get(key, (-1, b""))[0] < offset:
                self.values[key] = offset, value

    def end_all(self) -> None:
        for producer_id in list(self.open):
            end(self.log, producer_id, committed=False)
            del self.open[producer_id]

    async def compact(self) -> None:
        await self.log.sync()
        limit = self.log.last_stable_offset(self.log.end_offset)
        max_keys = self.chance.choice([2, 1000])
        await self.log.compact(self.now_ms, limit, inline(self.disk, max_keys))
        self.now_ms += self.chance.choice([1, 2, 5])

    async def restart(self) -> None:
        await self.log.sync()
        if self.chance.random() < 0.5:
            self.log.discard()
            self.log = opened(self.disk, self.config, durable_end=self.log.end_offset)
        else:
            self.log.close()
            end_offset = self.log.end_offset
            self.log = opened(self.disk, self.config, durable_end=end_offset, clean=True)

    async def replicate(self) -> None:
        follower = opened(FaultyDisk(), self.config)
        fetched(self.log, follower)
        self.check(follower)

    def check(self, log: Log) -> None:
        earliest = min((it[0] for said in self.open.values() for it in said.values()), default=None)
        stable = log.last_stable_offset(log.end_offset)
        assert stable <= (log.end_offset if earliest is None else earliest)
        if not self.open:
            assert stable == log.end_offset
            seen = set(read_committed(log, log.end_offset, max_bytes=200))
            found = {it.key: (it.offset, it.value) for it in read_all(log) if it.offset in seen}
            assert found == self.values

    async def live(self) -> None:
        for _ in range(100):
            if self.chance.random() < 0.9:
                self.chance.choice([self.write, self.write, self.end])()
            else:
                await self.chance.choice([self.compact, self.compact, self.restart])()
                self.check(self.log)
        self.end_all()
        for step in (self.compact, self.restart, self.replicate):
            await step()
            self.check(self.log)


@given(seed=st.integers(0, 2**32), interval=st.sampled_from([1, 7, 1000]))
@settings(max_examples=60, deadline=None)
def test_of_each_key_the_last_committed_record_stays(seed: int, interval: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_INTERVAL_BATCHES", interval)
        asyncio.run(Life(random.Random(seed)).live())


@given(seed=st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_a_crash_during_compaction_brings_nothing_aborted_back(seed: int) -> None:
    chance = random.Random(seed)
    life = Life(chance)

    async def until_it_crashes() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for _ in range(3):
            for _ in range(40):
                chance.choice([life.write, life.write, life.end])()
            life.end_all()
            await life.log.sync()
            life.disk.crash_at = life.disk.steps + chance.randrange(1, 120)
            await life.compact()
            life.disk.crash_at = None

    try:
        asyncio.run(until_it_crashes())
    except (Crashed, OSError, asyncio.CancelledError):
        assert life.disk.crashed

    async def after() -> None:
        life.disk = life.disk.after_crash(chance)
        life.log = opened(life.disk, life.config, durable_end=life.log.end_offset)
        life.check(life.log)
        for _ in range(2):
            await life.compact()
            life.check(life.log)
        await life.replicate()

    asyncio.run(after())
