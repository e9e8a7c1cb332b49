"""The small parts that logs are made of."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sapwood.log import HybridClock
from sapwood.log.clock import wall_ms
from sapwood.log.epochs import EpochList
from sapwood.log.index import Index, Summary
from sapwood.log.ranges import Ranges
from sapwood.log.state import LogState, StateFile, Swap
from tests.disk.faulty import FaultyDisk


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**40))))
def test_a_hybrid_clock_only_grows_and_exceeds_what_it_observed(
    steps: list[tuple[bool, int]],
) -> None:
    clock, last = HybridClock(), 0
    for observes, value in steps:
        if observes:
            clock.observe(value)
            last = max(last, value)
        else:
            reading = clock.now(value)
            assert reading > last
            assert wall_ms(reading) >= value
            last = reading


def test_a_hybrid_clock_follows_the_wall_clock_and_survives_a_jump_back() -> None:
    clock = HybridClock()
    assert wall_ms(clock.now(1000)) == 1000
    readings = [clock.now(500) for _ in range(70_000)]
    assert readings == sorted(set(readings))
    assert wall_ms(readings[-1]) == 1001  # the counter ran over
    assert wall_ms(clock.now(2000)) == 2000


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30), st.integers(0, 60))
def test_ranges_agree_with_a_set(pairs: list[tuple[int, int]], cut: int) -> None:
    ranges, known = Ranges(), set[int]()
    for start, end in pairs:
        ranges.add(start, end)
        known |= set(range(start, end))
    for _ in range(2):
        for position in range(62):
            end = position
            while end in known:
                end += 1
            assert ranges.end_of(position) == end
        ranges.cut(cut)
        known &= set(range(cut))


def test_ranges_are_bounded() -> None:
    ranges = Ranges()
    for position in range(0, 10_000, 2):
        ranges.add(position, position + 1)
    assert len(ranges._starts) <= 64
    assert ranges.end_of(9998) == 9999


def test_an_index_is_saved_in_parts_and_loads_as_it_was() -> None:
    disk = FaultyDisk()
    disk.makedirs("/d")
    index = Index()
    for row in range(1000):
        index.add(row * 2, row * 100, row // 3, row * 5)
        if row % 300 == 0:
            index.save(disk, "/d/i")
    assert Index.load_summary(disk, "/d/i") is None
    summary = Summary(100_000, 2000, 333, 5000)
    index.save(disk, "/d/i", summary)
    loaded, found = Index.load(disk, "/d/i")
    assert found == Index.load_summary(disk, "/d/i") == summary
    for column in ("offsets", "positions", "timestamps", "hlcs"):
        assert getattr(loaded, column) == getattr(index, column)
    assert [loaded.floor(offset) for offset in (-1, 0, 1, 2, 1999, 5000)] == [
        0, 0, 0, 100, 99_900, 99_900,
    ]  # fmt: skip
    assert loaded.before_timestamp(0) == 0
    assert loaded.before_timestamp(1) == 200
    assert loaded.before_timestamp(10_000) == 99_900
    assert loaded.before_hlc(11) == 200


def test_an_index_that_was_cut_is_written_anew() -> None:
    disk = FaultyDisk()
    disk.makedirs("/d")
    index = Index()
    for row in range(10):
        index.add(row, row * 10, 0, 0)
    index.save(disk, "/d/i")
    index.cut(50)
    assert len(index) == 5
    index.add(7, 70, 0, 0)
    index.save(disk, "/d/i")
    loaded, _ = Index.load(disk, "/d/i")
    assert list(loaded.offsets) == [0, 1, 2, 3, 4, 7]
    loaded.cut_offsets(3)
    assert list(loaded.positions) == [0, 10, 20]


@given(st.integers(0, 2**32))
def test_damage_to_an_index_costs_rows_but_never_gives_wrong_ones(seed: int) -> None:
    chance = random.Random(seed)
    disk = FaultyDisk()
    disk.makedirs("/d")
    index = Index()
    for row in range(50):
        index.add(row, row * 10, row, row)
        if row % 10 == 9:
            index.save(disk, "/d/i")
    content = disk.live["/d/i"].live
    if chance.random() < 0.5:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    else:
        del content[chance.randrange(len(content)) :]
    loaded, _ = Index.load(disk, "/d/i")
    assert loaded.offsets == index.offsets[: len(loaded)]
    assert loaded.hlcs == index.hlcs[: len(loaded)]


def test_epochs_are_forgotten_when_they_ended_before_the_start() -> None:
    epochs = EpochList()
    for epoch, start in ((1, 0), (3, 10), (3, 15), (2, 17), (5, 20)):
        epochs.note(epoch, start)
    assert epochs.starts == [(1, 0), (3, 10), (5, 20)]
    epochs.advance(10)
    assert epochs.starts == [(1, 0), (3, 10), (5, 20)]
    assert epochs.end_offset(2, 30) == (1, 10)
    epochs.advance(11)
    assert epochs.starts == [(3, 10), (5, 20)]
    assert epochs.end_offset(2, 30) == (-1, -1)


def test_of_several_state_files_the_highest_number_counts() -> None:
    disk = FaultyDisk()
    disk.makedirs("/d")
    first = StateFile.load(disk, "/d", [])
    assert first.state == LogState()
    first.change_now(start_offset=5)
    late = first._prepare({"start_offset": 7})
    first.change_now(swap=Swap((1, 2), (1,)), cleaned=((3, 4),))
    late()
    found = StateFile.load(disk, "/d", disk.list("/d"))
    assert found.state == first.state
    assert found.state.start_offset == 7
    assert found.state.cleaned_end == 3
    found.change_now(start_offset=9)
    assert len(disk.list("/d")) == 1
