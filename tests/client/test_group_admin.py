"""What a classic consumer was given, read from what its leader wrote."""

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

from sapwood.client.group_admin import read_assignment


def test_an_assignment_of_another_client_is_read() -> None:
    given = [("orders", [0, 2]), ("päckchen", [1])]
    stored = ConsumerProtocolMemberAssignment(0, given, b"").encode()
    assert list(read_assignment(stored)) == [("orders", 0), ("orders", 2), ("päckchen", 1)]


def test_what_cannot_be_read_is_nothing() -> None:
    stored = ConsumerProtocolMemberAssignment(0, [("orders", [0, 2])], b"").encode()
    for length in range(len(stored) - 4):
        assert list(read_assignment(stored[:length])) == []
    assert list(read_assignment(b"\0\0\x7f\xff\xff\xff")) == []
    assert list(read_assignment(b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff")) == []
