"""The audit of a group's log finds what it is there to find."""

import struct

import pytest

from sapwood.coordinator.consumer_member import Current
from sapwood.coordinator.consumer_records import ConsumerRecord, GroupMetadata, Kind, encode
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


def moved(
    member_id: str, *partitions: int, giving_up: int | None = None, group: str = "g"
) -> tuple[bytes, bytes | None]:
    """Where a member of the newer protocol stands."""
    gives_up = [] if giving_up is None else [giving_up]
    assigned, pending = ([(bytes(16), it) for it in each] for each in (partitions, gives_up))
    current = Current(assigned=frozenset(assigned), pending_revocation=frozenset(pending))
    return encode(ConsumerRecord(Kind.CURRENT_ASSIGNMENT, group, member_id, current))


def gone(member_id: str) -> tuple[bytes, None]:
    return encode(ConsumerRecord(Kind.CURRENT_ASSIGNMENT, "g", member_id, None))[0], None


def epoch(number: int) -> tuple[bytes, bytes | None]:
    return encode(ConsumerRecord(Kind.GROUP_METADATA, "g", "", GroupMetadata(number, 0)))


GOOD = [
    generation(1, assignment(0, 1), assignment(2)),
    commit(5),
    generation(2, assignment(0), assignment(1, 2)),
    commit(5),
    commit(9),
]


NEWER = [
    epoch(1),
    moved("a", 0, 1),
    epoch(2),
    moved("a", 0, giving_up=1),
    moved("a", 0),
    moved("b", 1),
    gone("a"),
    epoch(3),
    moved("b", 0, 1),
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


def test_a_clean_log_of_the_newer_protocol_is_clean() -> None:
    audit = Audit([*NEWER, commit(5), commit(9)], "g")
    assert audit.faults == []
    assert audit.epochs == [1, 2, 3]


@pytest.mark.parametrize("bad", [moved("c", 1), moved("c", 2, giving_up=0)])
def test_two_owners_in_the_newer_protocol_are_found(bad: tuple[bytes, bytes | None]) -> None:
    audit = Audit([*NEWER, bad], "g")
    assert audit.double_owners == ["c"]
    assert audit.faults == ["two owners of a partition"]


def test_what_a_member_has_yet_to_give_up_is_its_own() -> None:
    assert Audit([*NEWER[:4], moved("b", 1)], "g").faults == ["two owners of a partition"]


def test_an_epoch_that_goes_back_is_found() -> None:
    assert Audit([*NEWER, epoch(2)], "g").faults == ["a generation came twice"]


def test_a_log_that_says_nothing_of_a_group_is_no_proof() -> None:
    assert Audit([*NEWER, commit(5)], "h").faults == ["nobody ever owned a partition"]


def test_a_position_that_goes_back_is_found() -> None:
    assert Audit([*GOOD, commit(8)], "g").steps_back == ["partition 0: 9 (), then 8 ()"]


def test_other_groups_are_not_looked_at() -> None:
    others = [commit(1, group="h"), moved("c", 0, 1, group="h")]
    assert Audit([*GOOD, *NEWER, *others], "g").faults == []
