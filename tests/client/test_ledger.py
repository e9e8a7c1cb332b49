"""What a subscriber has acknowledged, against a plain set of offsets."""

from hypothesis import given
from hypothesis import strategies as st

from sapwood.client.groups import Committed
from sapwood.client.ledger import MAX_RANGES, Ledger

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=30)


def lowest_missing(start: int, offsets: set[int]) -> int:
    while start in offsets:
        start += 1
    return start


@given(st.integers(0, 20), RANGES)
def test_a_ledger_is_a_set_of_offsets_and_survives_its_commit(
    start: int, ranges: list[tuple[int, int]]
) -> None:
    ledger = Ledger(Committed(start, ""))
    acknowledged = set(range(start))
    for first, length in ranges:
        ledger.acknowledge(first, first + length)
        acknowledged.update(range(first, first + length))
        assert ledger.position == max(start, lowest_missing(start, acknowledged))
        loaded = Ledger(ledger.committed("me.1"))
        for each in (ledger, loaded):
            assert {offset for offset in range(80) if each.is_acknowledged(offset)} == {
                offset for offset in range(80) if offset in acknowledged
            }


def test_a_partition_without_a_position_begins_at_its_first_offset() -> None:
    assert Ledger(Committed(-1, "")).position == 0


def test_the_metadata_of_a_full_ledger_is_what_a_coordinator_takes() -> None:
    ledger = Ledger(Committed(2**62, ""))
    for number in range(20):
        ledger.tokens = Ledger(ledger.committed(f"{number:016x}.{10**9}")).tokens
    out = 0
    for offset in range(2**62 + 2**31 - 2 * MAX_RANGES, 2**62 + 2**31 + 2, 2):
        if ledger.has_room_for(offset, out):
            ledger.acknowledge(offset, offset + 1)
    assert not ledger.has_room_for(2**62 + 1, out)
    assert len(ledger.committed("me.1").metadata) <= 4096


def test_an_owner_finds_its_last_token_behind_those_of_later_owners() -> None:
    first = Ledger(Committed(0, ""))
    first.committed("first.1")
    second = Ledger(first.committed("first.2"))
    for count in range(5):
        second.acknowledge(count, count + 1)
        second.committed(f"second.{count}")
    third = Ledger(second.committed("second.9"))
    assert Ledger(third.committed("third.1")).tokens == ["third.1", "second.9", "first.2"]
