"""A journal forgets nothing that was flushed and takes nothing for true that was damaged."""

import asyncio
import errno
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.disk import Journal, JournalCorrupt, SyncFailed, journal
from tests.disk.faulty import Crashed, FaultyDisk

PATH = "/node/journal"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def fresh() -> FaultyDisk:
    disk = FaultyDisk()
    disk.makedirs("/node")
    return disk


def test_what_was_flushed_is_there_after_reopening() -> None:
    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        it.put(b"a", b"1")
        it.put(b"b", b"2")
        await it.flush()
        it.put(b"a", None)
        it.put(b"b", b"")
        it.put(b"c", b"3")
        await it.flush()
        it.put(b"d", b"never flushed")
        again = Journal.open(disk, PATH)
        assert again.items() == [(b"b", b""), (b"c", b"3")]
        assert again.items(b"c") == [(b"c", b"3")]
        assert (again.get(b"a"), again.get(b"c")) == (None, b"3")

    run(scenario())


def test_one_sync_serves_all_who_flush_while_the_one_before_runs() -> None:
    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        disk.syncs.clear()
        disk.holds_syncs = True
        it.put(b"a", b"1")
        first, same = it.flush(), it.flush()
        it.put(b"b", b"2")
        later = [it.flush() for _ in range(3)]
        disk.release_syncs()
        await asyncio.gather(first, same)
        assert not any(future.done() for future in later)
        disk.release_syncs()
        await asyncio.gather(*later)
        assert len(disk.syncs) == 2
        await it.flush()
        assert len(disk.syncs) == 2

    run(scenario())


def test_a_journal_is_compacted_when_most_of_it_is_outdated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "_COMPACT_BYTES", 2000)
    monkeypatch.setattr(journal, "_GROWTH", 100)

    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        for number in range(500):
            it.put(b"key%d" % (number % 3), b"value %d" % number)
            await it.flush()
        assert len(disk.contents()[PATH]) < 3000
        assert Journal.open(disk, PATH).items() == it.items()

    run(scenario())


def test_a_failed_sync_is_told_to_everybody_and_never_retried() -> None:
    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        disk.syncs.clear()
        disk.fails_sync = lambda path: True
        it.put(b"a", b"1")
        first = it.flush()
        it.put(b"b", b"1")
        for future in (first, it.flush()):
            with pytest.raises(SyncFailed):
                await future
        disk.fails_sync = lambda path: False
        with pytest.raises(SyncFailed):
            await it.flush()
        assert disk.syncs == [PATH]

    run(scenario())


@pytest.mark.parametrize("step", ["sync of the directory", "opening"])
def test_a_journal_that_was_replaced_but_not_to_the_end_takes_nothing_more(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that it had open has no name any more: what is written there is on no disk."""
    monkeypatch.setattr(journal, "_COMPACT_BYTES", 500)

    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        if step == "opening":
            disk.fails_open = lambda path: path == PATH
        else:
            disk.fails_sync = lambda path: path == "/node"
        flushed, failure = 0, None
        while failure is None:
            it.put(b"key", b"%d" % (flushed + 1))
            (failure,) = await asyncio.gather(it.flush(), return_exceptions=True)
            flushed += failure is None
        assert isinstance(failure, SyncFailed)
        disk.fails_open = disk.fails_sync = lambda path: False
        it.put(b"later", b"1")
        with pytest.raises(SyncFailed):
            await it.flush()
        for seed in range(10):
            found = Journal.open(disk.after_crash(random.Random(seed)), PATH).get(b"key")
            assert int(found or 0) in (flushed, flushed + 1)

    run(scenario())


def test_a_full_disk_fails_the_flush_and_the_next_one_writes_everything() -> None:
    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        disk.capacity = 100
        it.put(b"a", bytes(50))
        it.put(b"b", bytes(50))
        with pytest.raises(OSError, match="No space") as refused:
            await it.flush()
        assert refused.value.errno == errno.ENOSPC
        disk.capacity = None
        it.put(b"b", b"2")
        await it.flush()
        assert Journal.open(disk, PATH).items() == [(b"a", bytes(50)), (b"b", b"2")]

    run(scenario())


def test_a_full_disk_postpones_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_COMPACT_BYTES", 500)
    monkeypatch.setattr(journal, "_GROWTH", 4000)

    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        failures = 0
        for number in range(60):
            it.put(b"key", b"%d" % number)
            if disk.capacity is None:
                await it.flush()
                disk.capacity = len(disk.contents()[PATH]) + 100
                continue
            try:
                await it.flush()
            except OSError:
                failures += 1
        assert 0 < failures < 10
        assert Journal.open(disk, PATH).items() == [(b"key", b"59")]

    run(scenario())


async def journal_of(frames: int) -> tuple[FaultyDisk, list[int]]:
    disk = fresh()
    it = Journal.open(disk, PATH)
    ends = []
    for number in range(frames):
        it.put(b"key%d" % number, b"value %d" % number)
        await it.flush()
        ends.append(it._end)
    return disk, ends


def test_damage_before_a_good_frame_is_corruption_and_nothing_is_changed() -> None:
    async def scenario() -> None:
        disk, ends = await journal_of(5)
        for position in range(0, ends[3], 7):
            disk.flip(PATH, position)
            before = disk.contents()
            with pytest.raises(JournalCorrupt) as found:
                Journal.open(disk, PATH)
            assert found.value.position <= position
            assert disk.contents() == before
            disk.flip(PATH, position)

    run(scenario())


def test_a_last_frame_whose_end_is_missing_is_a_torn_write_and_is_cut_off() -> None:
    async def scenario() -> None:
        for kept in range(0, 24, 3):
            disk, ends = await journal_of(5)
            for content in (disk.live[PATH].live, disk.live[PATH].durable):
                content[ends[3] + kept :] = bytes(len(content) - ends[3] - kept)
            it = Journal.open(disk, PATH)
            assert len(it.items()) == 4
            it.put(b"next", b"1")
            await it.flush()
            assert len(Journal.open(disk, PATH).items()) == 5

    run(scenario())


def test_a_last_frame_that_has_changed_is_corruption() -> None:
    """It may be a vote that others count on."""

    async def scenario() -> None:
        disk, ends = await journal_of(5)
        length = range(ends[3] + 4, ends[3] + 8)
        for position in range(ends[3], ends[4]):
            if position in length:
                continue  # one that says it is longer looks cut short
            disk.flip(PATH, position)
            with pytest.raises(JournalCorrupt):
                Journal.open(disk, PATH)
            disk.flip(PATH, position)
        assert len(Journal.open(disk, PATH).items()) == 5

    run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_what_a_killed_process_left_unsynced_is_durable_once_the_next_one_has_read_it(
    seed: int,
) -> None:
    """Else a power cut takes back what was told of it, or leaves a younger frame behind a hole."""

    async def scenario() -> None:
        disk = fresh()
        it = Journal.open(disk, PATH)
        disk.holds_syncs = True
        it.put(b"vote", bytes(600))
        it.flush()
        again = Journal.open(disk, PATH)
        assert again.get(b"vote") == bytes(600)
        again.put(b"other", bytes(600))
        again.flush()
        after = Journal.open(disk.after_crash(random.Random(seed)), PATH)
        assert after.get(b"vote") == bytes(600)

    run(scenario())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_after_any_crash_the_journal_has_what_was_flushed_last(seed: int, compacts: bool) -> None:
    chance = random.Random(seed)
    patch = pytest.MonkeyPatch()
    patch.setattr(journal, "_COMPACT_BYTES", 600 if compacts else 1 << 20)
    patch.setattr(journal, "_GROWTH", 1000)

    async def life(disk: FaultyDisk, facts: list[dict[bytes, bytes]]) -> None:
        """Appends to `facts` every state that may be found; the first one is acknowledged."""
        it = Journal.open(disk, PATH)
        assert dict(it.items()) in facts
        facts[:] = [dict(it.items())]
        for _ in range(40):
            state = dict(facts[-1])
            for _ in range(chance.randrange(1, 4)):
                key = b"key%d" % chance.randrange(5)
                value = chance.choice([None, chance.randbytes(chance.randrange(900))])
                it.put(key, value)
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
            facts.append(state)
            await it.flush()
            facts[:] = [state]

    try:
        disk = fresh()
        facts: list[dict[bytes, bytes]] = [{}]
        for _ in range(4):
            disk.crash_at = disk.steps + chance.randrange(1, 100)
            try:
                asyncio.run(life(disk, facts))
            except Crashed:
                pass
            disk = disk.after_crash(chance)
    finally:
        patch.undo()
