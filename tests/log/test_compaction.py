"""Compaction keeps the last record of every key, at its offset, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.disk import OsDisk
from sapwood.log import CompactionFailed, CorruptLog, Log, LogConfig
from sapwood.log.cleaner import Cleaned, CompactionPlan, Source, clean
from sapwood.log.compact import run_in_helper
from sapwood.wire.batch import patch_append_time, read_header
from sapwood.wire.records import Record, decode_batch, encode_batch
from tests.disk.faulty import Crashed, FaultyDisk
from tests.log.batches import DIRECTORY, fill, offsets, opened, put, read_all, record

COMPACTED = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=600,
    min_cleanable_dirty_ratio=0.0,
    index_interval_bytes=200,
)


def inline(
    disk: FaultyDisk, max_keys: int = 1000
) -> Callable[[CompactionPlan], Coroutine[Any, Any, Cleaned]]:
    async def run(plan: CompactionPlan) -> Cleaned:
        values = {name: getattr(plan, name) for name in plan.__slots__}
        return clean(disk, CompactionPlan(**{**values, "max_keys": max_keys}))

    return run


async def filled(disk: FaultyDisk, keys: str, config: LogConfig = COMPACTED) -> Log:
    """One record per letter, the letter being its key, and then a segment that isn't closed."""
    log = opened(disk, config)
    for letter in keys:
        key = letter.lower().encode()
        value = None if letter.isupper() else b"%d" % log.end_offset + bytes(100)
        put(log, [record(value, key)], hlc=(log.end_offset + 1) << 16)
    await log.sync()
    return log


def keys(log: Log) -> str:
    return "".join(
        (it.key or b"?").decode().upper() if it.value is None else (it.key or b"?").decode()
        for it in read_all(log)
    )


def test_of_each_key_the_last_record_stays_at_its_offset() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, "abacabadabacabaxyz")
        end, size = log.end_offset, log.size_bytes
        saved = await log.compact(0, end, inline(disk))
        assert saved is not None
        assert saved > 0
        assert log.size_bytes == size - saved
        assert keys(log).startswith("dcba")
        assert offsets(log)[:4] == [7, 11, 13, 14]
        assert (log.start_offset, log.end_offset) == (0, end)
        assert log.read(0, 1, end)
        assert [
            name for name in disk.list(DIRECTORY) if name.endswith(("cleaned", "deleted"))
        ] == []
        again = opened(disk, COMPACTED, durable_end=end)
        assert (read_all(again), again.end_offset) == (read_all(log), end)

    asyncio.run(scenario())


def test_a_reader_between_two_records_gets_the_next_one() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, "aaaaaaaaaaaaaaaaaaab")
        await log.compact(0, log.end_offset, inline(disk))
        first = read_header(log.read(0, 1, log.end_offset)[0])
        assert first.base_offset > 10
        assert log.read(first.base_offset - 1, 1, log.end_offset) == log.read(0, 1, log.end_offset)

    asyncio.run(scenario())


def test_only_closed_segments_below_the_limit_and_older_than_the_lag_are_compacted() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, "aaaaaaaaaaaa")
        assert await log.compact(0, 0, inline(disk)) is None
        assert await log.compact(0, 2, inline(disk)) is None
        await log.compact(0, 8, inline(disk))
        assert offsets(log) == [5, 6, 7, 8, 9, 10, 11]
        await log.compact(0, 12, inline(disk))
        assert offsets(log) == [8, 9, 10, 11]
        log = await filled(FaultyDisk(), "aaaaaaaaaaaa", LogConfig(segment_bytes=600))
        assert await log.compact(0, 12, inline(disk)) is None

    asyncio.run(scenario())


def test_the_lag_and_the_share_of_dirty_bytes_decide_when_it_is_worth_it() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        config = LogConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=600,
            min_cleanable_dirty_ratio=0.9,
            min_compaction_lag_ms=1000,
            max_compaction_lag_ms=50_000,
        )
        log = await filled(disk, "abcdefghijabcdefghij", config)
        assert await log.compact(999, 20, inline(disk)) is None
        assert await log.compact(1000, 20, inline(disk)) is not None
        for _ in range(6):
            put(log, [record(bytes(100), b"a")], hlc=30_000 << 16)
        await log.sync()
        assert await log.compact(2000, 26, inline(disk)) is None
        assert await log.compact(90_000, 26, inline(disk)) is not None

    asyncio.run(scenario())


def test_a_tombstone_stays_until_readers_had_time_to_see_it() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        day = COMPACTED.delete_retention_ms
        log = await filled(disk, "abcAxxxxxxyyyy")
        await log.compact(1, log.end_offset, inline(disk))
        assert keys(log)[:3] == "bcA"
        for now_ms in (day, day + 2):
            fill_keys(log, b"z", 8)
            await log.sync()
            log = opened(disk, COMPACTED, durable_end=log.end_offset)
            await log.compact(now_ms, log.end_offset, inline(disk))
            assert keys(log)[:3] == ("bcA" if now_ms == day else "bcx")

    asyncio.run(scenario())


def fill_keys(log: Log, key: bytes, count: int) -> None:
    for _ in range(count):
        put(log, [record(bytes(100), key)], hlc=(log.end_offset + 1) << 16)


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_with_fewer_records_is_otherwise_as_it_was(codec: int) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        records = [
            (1000 + n, key, b"value" * 20, (("h", b"1"), ("n", None)))
            for n, key in enumerate([b"a", b"b", b"a", b"c", b"b"])
        ]
        original = put(log, records, compression=codec, producer=(7, 1, 40), epoch=3, hlc=99)
        for _ in range(2):
            fill_keys(log, b"b", 8)
        await log.sync()
        await log.compact(2000, log.end_offset, inline(disk))
        hlc, batch = log.read_entries(0, 1, log.end_offset)[0]
        header = read_header(batch)
        assert hlc == 99
        assert header == original._replace(
            length=header.length,
            crc=header.crc,
            record_count=2,
            base_timestamp=1002,
            max_timestamp=1003,
        )
        assert decode_batch(batch) == [Record(n, *records[n]) for n in (2, 3)]

    asyncio.run(scenario())


def test_append_times_survive_compaction() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        batch = encode_batch([(1, b"a", b"1", ()), (2, b"b", bytes(600), ())])
        patch_append_time(batch, 0, 5000)
        log.append(memoryview(batch), read_header(batch), 1, 0)
        fill_keys(log, b"a", 9)
        await log.sync()
        await log.compact(9000, log.end_offset, inline(disk))
        assert next((it.offset, it.timestamp) for it in read_all(log)) == (1, 5000)

    asyncio.run(scenario())


def test_what_has_no_key_or_is_no_list_of_records_stays() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        put(log, [record(b"no key"), record(b"1", b"a")])
        control = encode_batch([(0, b"\0\0\0\0", b"", ())], base_offset=2, control=True)
        log.append(memoryview(control), read_header(control), 1, 0)
        rubbish = encode_batch([(0, b"a", bytes(50), ())], base_offset=3, compression=0)
        rubbish[61:] = b"\xff" * (len(rubbish) - 61)
        patch_append_time(rubbish, 0, 1)  # gives it a CRC that is right
        log.append(memoryview(rubbish), read_header(rubbish), 2, 0)
        fill_keys(log, b"a", 12)
        await log.sync()
        await log.compact(10, log.end_offset, inline(disk))
        found = log.read(0, 1 << 20, log.end_offset)
        assert [read_header(batch).base_offset for batch in found][:3] == [0, 2, 3]
        assert found[1:3] == [control, rubbish]

    asyncio.run(scenario())


def test_with_more_keys_than_fit_into_memory_compaction_goes_on_next_time() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, "abcdefgh" * 5)
        rounds = 0
        while await log.compact(0, log.end_offset, inline(disk, max_keys=3)) is not None:
            rounds += 1
        assert rounds > 5
        closed = [it.key for it in read_all(log) if it.offset < 39]
        assert sorted(filter(None, closed)) == [letter.encode() for letter in "abcdefgh"]

    asyncio.run(scenario())


def test_damage_found_while_compacting_is_reported_and_nothing_is_touched() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, "abacabadabacaba")
        disk.flip(f"{DIRECTORY}/{0:020d}.log", 300)
        before = disk.contents()
        with pytest.raises(CorruptLog) as found:
            await log.compact(0, log.end_offset, inline(disk))
        assert found.value.path.endswith(f"{0:020d}.log")
        assert disk.contents() == before

    asyncio.run(scenario())


def test_segments_that_retention_took_meanwhile_stay_gone() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, "abacabadabacaba")

        async def slow(plan: CompactionPlan) -> Cleaned:
            cleaned = clean(disk, plan)
            await log.advance_start(8)
            return cleaned

        assert await log.compact(0, log.end_offset, slow) is None
        assert log.start_offset == 8
        assert offsets(log) == list(range(8, 15))
        assert opened(disk, COMPACTED, durable_end=15).start_offset == 8

    asyncio.run(scenario())


def test_a_full_disk_fails_the_compaction_and_nothing_else() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await filled(disk, "abacabadabacaba")
        before = read_all(log)
        disk.capacity = sum(map(len, disk.contents().values())) + 300
        with pytest.raises(OSError, match="No space"):
            await log.compact(0, log.end_offset, inline(disk))
        assert read_all(log) == before
        disk.capacity = None
        assert await log.compact(0, log.end_offset, inline(disk))
        assert keys(opened(disk, COMPACTED, durable_end=15)) == keys(log)

    asyncio.run(scenario())


def test_producers_are_known_after_their_batches_were_compacted_away() -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        last = [put(log, [record(bytes(100), b"k")], producer=(5, 0, n)) for n in range(12)][-1]
        fill_keys(log, b"k", 12)
        await log.sync()
        await log.compact(0, log.end_offset, inline(disk))
        assert offsets(log)[0] > last.base_offset
        for survivor in (disk, *(disk.after_crash(random.Random(n)) for n in range(5))):
            again = opened(survivor, COMPACTED, durable_end=log.durable_end)
            assert again.producers.check(last, 0) == last.base_offset

    asyncio.run(scenario())


def test_a_helper_process_does_the_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        log = Log.open(disk, str(tmp_path), COMPACTED, durable_end=0, clean=False, now_ms=0)
        for n in range(40):
            fill_keys(log, b"key%d" % (n % 4), 1)
        await log.sync()
        expected = {it.key: it for it in read_all(log)}
        saved = await log.compact(0, log.end_offset)
        assert saved is not None
        assert saved > 0
        assert {it.key: it for it in read_all(log)} == expected
        assert len(offsets(log)) < 12
        log.close()
        again = Log.open(disk, str(tmp_path), COMPACTED, durable_end=40, clean=True, now_ms=0)
        assert {it.key: it for it in read_all(again)} == expected

    asyncio.run(scenario())


def test_the_helper_process_may_leave_a_thousand_segments_and_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = Log.open(OsDisk(), str(tmp_path), LogConfig(), durable_end=0, clean=True, now_ms=0)
        now_ms = 1_700_000_000_000
        for n in range(1500):
            put(log, [record(b"value", b"key%d" % n, now_ms + n)], hlc=(now_ms + n) << 16)
        await log.sync()
        whole = Source(0, log.size_bytes)
        log.close()
        plan = CompactionPlan(str(tmp_path), (whole,), 0, 0, 1500, 0, 0, 1, 100)
        cleaned = await run_in_helper(plan)
        assert [base for base, _ in cleaned.segments] == [*range(1500)]

    asyncio.run(scenario())


def test_the_helper_process_reports_damage_and_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = OsDisk()
        log = Log.open(disk, str(tmp_path), COMPACTED, durable_end=0, clean=False, now_ms=0)
        fill(log, 20)
        await log.sync()
        path = f"{tmp_path}/{0:020d}.log"
        disk.open(path).pwrite([b"?"], 150)
        with pytest.raises(CorruptLog, match="checksum is wrong"):
            await log.compact(0, log.end_offset)
        disk.remove(path)
        with pytest.raises(CompactionFailed, match="No such file"):
            await log.compact(0, log.end_offset)

    asyncio.run(scenario())


def endless(directory: Path) -> CompactionPlan:
    """A plan whose work never ends: its sources are pipes that nobody opens for writing.

    Whoever opens the first one knows that the helper has come so far, and now waits for the second.
    """
    for base in (0, 5):
        os.mkfifo(directory / f"{base:020d}.log")
    return CompactionPlan(str(directory), (Source(0, 0), Source(5, 100)), 0, 0, 10, 0, 0, 1000, 100)


def test_the_helper_process_ends_when_the_node_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "sapwood.log.compact_worker"], stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(endless(tmp_path)) + b"\n")
        process.stdin.close()
        assert process.wait(timeout=30) == 1


def test_a_cancelled_compaction_ends_its_helper_process(tmp_path: Path) -> None:
    plan = endless(tmp_path)

    async def scenario() -> None:
        running = asyncio.create_task(run_in_helper(plan))
        # Opening blocks until the helper has opened the other end.
        opening = asyncio.to_thread(os.open, f"{tmp_path}/{0:020d}.log", os.O_WRONLY)
        os.close(await opening)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(OSError, match="No such device"):  # nobody is there to read
            os.open(f"{tmp_path}/{5:020d}.log", os.O_WRONLY | os.O_NONBLOCK)

    asyncio.run(scenario())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_compaction_agrees_with_a_dictionary(seed: int) -> None:
    chance = random.Random(seed)

    async def scenario() -> None:
        disk = FaultyDisk()
        log = opened(disk, COMPACTED)
        written: list[Record] = []
        for _ in range(3):
            for _ in range(chance.randrange(5, 30)):
                records = []
                for letter in chance.choices("abcdeABCDE", k=chance.randrange(1, 6)):
                    key = letter.lower().encode()
                    value = None if letter.isupper() else b"%d" % len(written) + bytes(40)
                    records.append(record(value, key))
                    written.append(Record(len(written), 0, key, value, ()))
                put(log, records)
            await log.sync()
            run = inline(disk, chance.choice([2, 1000]))
            await log.compact(chance.randrange(1 << 33), log.end_offset, run)
            found = read_all(log)
            assert set(found) <= set(written)
            assert [it.offset for it in found] == sorted(it.offset for it in found)
            latest = {it.key: it for it in written if it.value is not None}
            for it in written:
                if it.value is None and latest.get(it.key, it).offset < it.offset:
                    latest.pop(it.key, None)
            state = {it.key: it for it in found}
            assert {key: it for key, it in state.items() if it.value is not None} == latest

    asyncio.run(scenario())


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_after_any_crash_every_key_has_its_last_acknowledged_value(seed: int) -> None:
    chance = random.Random(seed)
    written: list[Record] = []
    acknowledged = 0

    async def life(disk: FaultyDisk) -> None:
        nonlocal acknowledged
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        loop.set_exception_handler(lambda loop, context: task.cancel() if task else None)
        log = opened(disk, COMPACTED, durable_end=chance.choice([0, acknowledged]))
        assert acknowledged <= log.end_offset <= len(written)
        del written[log.end_offset :]
        found = read_all(log)
        assert set(found) <= set(written)
        assert {it.key: it for it in found} == {it.key: it for it in written}
        for _ in range(15):
            for _ in range(chance.randrange(1, 12)):
                key = b"%d" % chance.randrange(4)
                value = chance.randbytes(80)
                written.append(Record(len(written), 0, key, value, ()))
                put(log, [record(value, key)])
            acknowledged = await log.sync()
            run = inline(disk, chance.choice([2, 1000]))
            compaction = asyncio.create_task(log.compact(0, acknowledged, run))
            if chance.random() < 0.3:
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                compaction.cancel()
            await asyncio.wait([compaction])
            if not compaction.cancelled():
                compaction.result()
            assert {it.key: it for it in read_all(log)} == {it.key: it for it in written}
            if chance.random() < 0.2:
                log.close()
                log = opened(disk, COMPACTED, durable_end=acknowledged, clean=True)

    disk = FaultyDisk()
    for _ in range(4):
        disk.crash_at = disk.steps + chance.randrange(1, 400)
        try:
            asyncio.run(life(disk))
        except (Crashed, OSError, asyncio.CancelledError):
            assert disk.crashed
        disk = disk.after_crash(chance)
    asyncio.run(life(disk))
