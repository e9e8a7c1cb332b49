"""Transactions as a log sees them: what is stable, what was aborted, and what becomes of both."""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import dataclass

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.log import Log, LogConfig, snapshot
from sapwood.log.transactions import AbortedTransaction, TransactionTable
from sapwood.wire.batch import BatchHeader, read_header
from tests.disk.faulty import FaultyDisk
from tests.log.batches import fetched, fill, opened, put, record
from tests.log.committed import end, read_committed, write

SMALL = LogConfig(segment_bytes=700, index_interval_bytes=200)


def test_readers_of_committed_records_stop_at_the_earliest_open_transaction() -> None:
    log = opened(FaultyDisk())
    fill(log, 2)
    assert log.last_stable_offset(2) == 2
    write(log, 7, b"a")
    write(log, 8, b"b")
    fill(log, 1)
    assert log.last_stable_offset(log.end_offset) == 2
    end(log, 7, committed=True)
    assert log.last_stable_offset(log.end_offset) == 3
    end(log, 8, committed=False)
    assert log.last_stable_offset(log.end_offset) == log.end_offset == 7
    assert read_committed(log, log.end_offset) == [0, 1, 2, 4]


def test_a_marker_counts_when_it_is_committed_itself() -> None:
    log = opened(FaultyDisk())
    write(log, 7, b"a")
    write(log, 8, b"b")
    end(log, 8, committed=True)
    end(log, 7, committed=True)
    assert [log.last_stable_offset(it) for it in range(5)] == [0, 0, 0, 0, 4]


def test_markers_without_records_are_no_aborted_transactions() -> None:
    log = opened(FaultyDisk())
    end(log, 7, committed=False)
    fill(log, 1)
    assert log.last_stable_offset(2) == 2
    assert log.transactions.aborted(0, 2) == []


def test_the_aborted_ones_of_a_range_come_in_the_order_of_their_beginning() -> None:
    log = opened(FaultyDisk())
    for producer_id in (1, 2, 3):
        write(log, producer_id, b"x")
    for producer_id in (3, 1, 2):
        end(log, producer_id, committed=False)
    write(log, 1, b"y")
    end(log, 1, committed=False)
    first, second, third = [AbortedTransaction(*it) for it in ((1, 0, 4), (2, 1, 5), (3, 2, 3))]
    last = AbortedTransaction(1, 6, 7)
    assert log.transactions.aborted(0, 8) == [first, second, third, last]
    assert log.transactions.aborted(0, 2) == [first, second]
    assert log.transactions.aborted(4, 5) == [first, second, third][:2]
    assert log.transactions.aborted(6, 7) == [last]
    assert log.transactions.aborted(8, 9) == []


def test_a_marker_tells_the_epochs_of_producer_and_coordinator() -> None:
    disk = FaultyDisk()
    log = opened(disk)
    write(log, 7, b"a", epoch=3)
    end(log, 7, committed=False, epoch=4, coordinator_epoch=9)
    log.close()
    for found in (log, opened(disk, durable_end=2, clean=True)):
        producer = found.producers.find(7)
        assert producer is not None
        assert (producer.epoch, producer.coordinator_epoch) == (4, 9)


def test_the_ledgers_of_earlier_releases_are_read() -> None:
    batch = struct.pack(">qiiq", 5, 0, 0, 1)
    producers = struct.pack(">IqhqqB", 1, 7, 2, 1, 99, 1) + batch
    body = struct.pack(">iqI", 0, 0, 0) + producers
    fields = struct.pack(">qqI", 3, 6, 1)
    crc = crc32c(body, crc32c(fields))
    found = snapshot.decode(struct.pack(">4sHHI", b"SAPP", 2, 0, crc) + fields + body)
    assert found is not None
    producer = found.ledger.producers.find(7)
    assert producer is not None
    assert (producer.epoch, producer.records, producer.coordinator_epoch) == (2, 1, -1)
    assert found.ledger.transactions.earliest > 6


def test_what_is_open_below_the_start_holds_readers_at_the_start() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk(), SMALL)
        write(log, 7, b"a")
        fill(log, 20)
        await log.advance_start(15)
        assert log.last_stable_offset(21) == 15
        end(log, 7, committed=False)
        assert log.last_stable_offset(22) == 22

    asyncio.run(scenario())


def test_aborted_transactions_go_with_their_records() -> None:
    async def scenario() -> None:
        log = opened(FaultyDisk(), SMALL)
        for _ in range(5):
            write(log, 7, b"a")
            end(log, 7, committed=False)
        await log.advance_start(5)
        assert [it.last_offset for it in log.transactions.aborted(0, 10)] == [5, 7, 9]

    asyncio.run(scenario())


def test_a_log_that_begins_anew_knows_what_is_open_and_what_was_aborted() -> None:
    async def scenario() -> None:
        leader = opened(FaultyDisk(), SMALL)
        write(leader, 6, b"open all the time")
        write(leader, 7, b"aborted across the start")
        write(leader, 8, b"committed across the start")
        fill(leader, 12)
        await leader.advance_start(10)
        write(leader, 7, b"more")
        write(leader, 8, b"more")
        end(leader, 7, committed=False)
        end(leader, 8, committed=True)
        fill(leader, 3)
        follower = opened(FaultyDisk(), SMALL)
        follower.reset(leader.snapshot(), 0)
        assert follower.transactions.earliest == 0
        fetched(leader, follower)
        for log in (leader, follower):
            assert log.last_stable_offset(22) == 10
            end(log, 6, committed=True)
            assert read_committed(log, 23) == [10, 11, 12, 13, 14, 16, 19, 20, 21]

    asyncio.run(scenario())


@pytest.mark.parametrize("committed", [True, False])
def test_a_log_that_begins_within_a_batch_knows_its_transaction(committed: bool) -> None:
    async def scenario() -> None:
        leader = opened(FaultyDisk(), SMALL)
        write(leader, 7, b"one", b"two", b"three")
        fill(leader, 1)
        end(leader, 7, committed=committed)
        await leader.advance_start(1)
        follower = opened(FaultyDisk(), SMALL)
        follower.reset(leader.snapshot(), 0)
        assert follower.last_stable_offset(3) == 1
        fetched(leader, follower)
        assert read_committed(follower, 4) == []
        assert read_committed(follower, 5) == ([1, 2, 3] if committed else [3])

    asyncio.run(scenario())


# -- against a naive twin --------------------------------------------------------------------


@dataclass
class Written:
    """A record: of whom, in a transaction or not; or a marker."""

    offset: int
    producer_id: int
    transactional: bool = False
    outcome: bool | None = None


class Twin:
    """All that was written, looked through from the beginning for every question."""

    def __init__(self) -> None:
        self.log: list[Written] = []

    def undecided(self, high_watermark: int) -> dict[int, list[int]]:
        """Producer → offsets in its transaction that is open as of a high watermark."""
        found: dict[int, list[int]] = {}
        for it in self.log:
            if it.offset >= high_watermark:
                break
            if it.outcome is not None:
                found.pop(it.producer_id, None)
            elif it.transactional:
                found.setdefault(it.producer_id, []).append(it.offset)
        return found

    def stable(self, high_watermark: int, start: int) -> tuple[int, int]:
        """The last stable offset, and what it may be if nothing below the start is remembered."""
        undecided = list(self.undecided(high_watermark).values())
        known = min((it[0] for it in undecided), default=high_watermark)
        left = [at for it in undecided for at in it if at >= start]
        return max(start, known), min(left, default=high_watermark)

    def readable(self, offset: int, stable: int) -> list[int]:
        """The records that a reader of committed ones gets from `offset` on."""
        aborted: set[int] = set()
        begun: dict[int, list[int]] = {}
        for it in self.log:
            if it.outcome is not None:
                gone = begun.pop(it.producer_id, [])
                aborted.update(gone if not it.outcome else ())
            elif it.transactional:
                begun.setdefault(it.producer_id, []).append(it.offset)
        return [
            it.offset
            for it in self.log
            if it.outcome is None and offset <= it.offset < stable and it.offset not in aborted
        ]


def headers(log: Log, offset: int) -> list[BatchHeader]:
    return [read_header(it) for it in log.read(max(offset, log.start_offset), 1 << 20, 1 << 40)]


class Life:
    """A log with transactions, to which all kinds of things happen; and its twin."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.disk = FaultyDisk()
        self.log = opened(self.disk, SMALL)
        self.twin = Twin()
        self.high_watermark = 0

    def check(self, log: Log) -> None:
        twin, high_watermark = self.twin, min(self.high_watermark, log.end_offset)
        stable = log.last_stable_offset(high_watermark)
        lower, upper = twin.stable(high_watermark, log.start_offset)
        assert lower <= stable <= max(lower, upper)
        offset = self.chance.randint(log.start_offset, max(stable, log.start_offset))
        max_bytes = self.chance.choice([1, 200, 100_000])
        seen = read_committed(log, high_watermark, offset=offset, max_bytes=max_bytes)
        assert seen == twin.readable(offset, stable)

    def write(self) -> None:
        producer_id = self.chance.randrange(4)
        header = put(
            self.log,
            [record(bytes(self.chance.choice([5, 200])))] * self.chance.randint(1, 3),
            producer=(producer_id, 0, -1),
            transactional=producer_id > 0,
        )
        for offset in range(header.base_offset, header.next_offset):
            self.twin.log.append(Written(offset, producer_id, producer_id > 0))

    def end(self) -> None:
        producer_id, outcome = self.chance.randrange(1, 4), self.chance.random() < 0.5
        offset = end(self.log, producer_id, committed=outcome)
        self.twin.log.append(Written(offset, producer_id, outcome=outcome))

    def commit(self) -> None:
        """Whole batches, as always."""
        ends = [it.next_offset for it in headers(self.log, self.high_watermark)]
        self.high_watermark = self.chance.choice([self.high_watermark, *ends])

    async def restart(self) -> None:
        await self.log.sync()
        clean = self.chance.random() < 0.5
        if clean:
            self.log.close()
        else:
            self.log.discard()
        self.log = opened(self.disk, SMALL, durable_end=self.log.end_offset, clean=clean)

    async def truncate(self) -> None:
        offset = self.chance.randint(
            max(self.high_watermark, self.log.start_offset), self.log.end_offset
        )
        self.log.truncate(self.log.last_epoch, offset, 0)
        self.twin.log = [it for it in self.twin.log if it.offset < self.log.end_offset]

    async def delete(self) -> None:
        start = self.log.start_offset
        await self.log.advance_start(self.chance.randint(start, max(self.high_watermark, start)))

    async def replicate(self) -> None:
        follower = opened(FaultyDisk(), SMALL)
        if self.log.start_offset > 0 or self.chance.random() < 0.5:
            follower.reset(self.log.snapshot(), 0)
        fetched(self.log, follower)
        self.check(follower)

    async def live(self) -> None:
        quick = [self.write] * 8 + [self.end] * 4 + [self.commit] * 4
        slow = [self.restart, self.truncate, self.delete, self.replicate]
        for _ in range(80):
            if self.chance.random() < 0.9:
                self.chance.choice(quick)()
            else:
                await self.chance.choice(slow)()
            self.check(self.log)


@given(seed=st.integers(0, 2**32), interval=st.sampled_from([1, 7, 1000]))
@settings(max_examples=60, deadline=None)
def test_readers_of_committed_records_see_what_a_naive_twin_says(seed: int, interval: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_INTERVAL_BATCHES", interval)
        asyncio.run(Life(random.Random(seed)).live())


@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_table_is_the_same_after_it_was_stored(seed: int) -> None:
    chance, table = random.Random(seed), TransactionTable()
    for offset in range(chance.randrange(60)):
        if chance.random() < 0.6:
            table.begin(chance.randrange(5), offset)
        else:
            table.end(chance.randrange(5), offset, committed=chance.random() < 0.4)
    data = b"before" + table.encode() + b"behind"
    found, position = TransactionTable.decode(data, 6)
    assert data[position:] == b"behind"
    assert found.encode() == table.encode()
    for _ in range(10):
        first, last = sorted((chance.randrange(70), chance.randrange(70)))
        assert found.aborted(first, last) == table.aborted(first, last)
    for offset in range(70):
        assert found.last_stable_offset(offset) == table.last_stable_offset(offset)


def test_a_power_cut_leaves_the_transactions_of_what_it_leaves() -> None:
    """Whatever of the last writes survives, readers of it see no record of an open transaction."""
    for seed in range(30):
        asyncio.run(_power_cut(random.Random(seed)))


async def _power_cut(chance: random.Random) -> None:
    life = Life(chance)
    for _ in range(40):
        chance.choice([life.write, life.write, life.end])()
        if chance.random() < 0.2:
            await life.log.sync()
            life.high_watermark = life.log.end_offset
    durable_end = life.log.durable_end
    life.log = opened(life.disk.after_crash(chance), SMALL, durable_end=durable_end)
    life.twin.log = [it for it in life.twin.log if it.offset < life.log.end_offset]
    life.check(life.log)
    life.high_watermark = life.log.end_offset
    life.check(life.log)
