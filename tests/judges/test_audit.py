"""The audit of a group's log finds what it is there to find."""

import struct

import pytest

from sapwood.coordinator.group_records import group_key, group_value, offset_key
from sapwood.coordinator.offsets import Position, value_of
from sapwood.wire.codec import Struct
from tests.judges.audit import Audit


def assignment(*partitions: int) -> bytes:
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return b"\0\0" + struct.pack(">i", 1) + b"\0\1t" + numbers + struct.pack(">i", -1)


def generation(number: int, *shares: bytes) -> tuple[bytes, bytes]:
    members = [
        Struct(
            member_id=f"member-{index}",
            group_instance_id=None,
            client_id="",
            client_host="",
            rebalance_timeout=1,
            session_timeout=1,
            subscription=b"",
            assignment=share,
        )
        for index, share in enumerate(shares)
    ]
    value = group_value.encode(
        protocol_type="consumer",
        generation=number,
        protocol="range",
        leader="member-0",
        current_state_timestamp=0,
        members=members,
    )
    return group_key.encode(group="g"), value


def commit(offset: int, group: str = "g") -> tuple[bytes, bytes]:
    position = Position(offset, -1, "", 0, bytes(16))
    return offset_key.encode(group=group, topic="t", partition=0), value_of(position)


GOOD = [
    generation(1, assignment(0, 1), assignment(2)),
    commit(5),
    generation(2, assignment(0), assignment(1, 2)),
    commit(5),
    commit(9),
]


def test_a_clean_log_is_clean() -> None:
    audit = Audit(GOOD, "g")
    assert audit.has_one_owner_each
    assert audit.steps_back == []
    assert audit.generations_only_grow
    assert audit.commits == {0: [5, 5, 9]}
    assert [number for number, _ in audit.generations] == [1, 2]


@pytest.mark.parametrize(
    ("bad", "verdict"),
    [
        (generation(3, assignment(0, 1), assignment(1, 2)), "has_one_owner_each"),
        (generation(1, assignment(0)), "generations_only_grow"),
    ],
)
def test_a_bad_record_is_found(bad: tuple[bytes, bytes], verdict: str) -> None:
    assert not getattr(Audit([*GOOD, bad], "g"), verdict)


def test_a_position_that_goes_back_is_found() -> None:
    assert Audit([*GOOD, commit(8)], "g").steps_back == [(0, 9, 8)]


def test_other_groups_are_not_looked_at() -> None:
    assert Audit([*GOOD, commit(1, group="h")], "g").steps_back == []
