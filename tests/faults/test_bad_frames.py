"""Frames that no client sends: the sender gets an error or is cut off, and nobody else notices."""

import struct

import pytest

from sapwood.wire.codec import decode_response
from tests.faults.raw import Wire, framed, request
from tests.helpers import port_of

API_VERSIONS = 18
METADATA = 3
UNSUPPORTED_VERSION = 35


@pytest.fixture
def port(bootstrap: str) -> int:
    return port_of(bootstrap)


def is_well(port: int) -> bool:
    with Wire(port) as wire:
        return wire.ask(request(API_VERSIONS, 0, b"")) is not None


@pytest.mark.parametrize("length", [-1, -2, -(2**31), 2**31 - 1, 2**30, 0x47455420])
def test_an_impossible_length_costs_the_sender_its_connection(port: int, length: int) -> None:
    """The last one is how an HTTP request begins."""
    with Wire(port) as wire:
        wire.send(struct.pack(">i", length) + b" / HTTP/1.1\r\n\r\n" * 10)
        wire.finish()
        assert wire.receive() is None
    assert is_well(port)


WHOLE = request(METADATA, 12, b"\x01\x00\x00\x00\x00")


@pytest.mark.parametrize("kept", range(len(WHOLE)))
def test_a_frame_that_breaks_off_is_forgotten(port: int, kept: int) -> None:
    with Wire(port) as wire:
        wire.send(WHOLE[:kept])
        wire.finish()
        assert wire.receive() is None
    assert is_well(port)


def test_a_frame_that_arrives_byte_by_byte_is_answered(port: int) -> None:
    with Wire(port) as wire:
        for byte in request(API_VERSIONS, 0, b""):
            wire.send(bytes([byte]))
        assert wire.receive() is not None


def test_many_frames_in_one_piece_are_answered_in_their_order(port: int) -> None:
    with Wire(port) as wire:
        wire.send(b"".join(request(API_VERSIONS, 0, b"", number) for number in range(300)))
        for number in range(300):
            answer = wire.receive()
            assert answer is not None
            assert struct.unpack_from(">i", answer) == (number,)


@pytest.mark.parametrize("size", range(11))
def test_a_frame_too_short_for_a_header_costs_the_sender_its_connection(
    port: int, size: int
) -> None:
    with Wire(port) as wire:
        assert wire.ask(framed(bytes(size))) is None
    assert is_well(port)


@pytest.mark.parametrize("api", [-1, -(2**15), 4, 5, 6, 7, 999, 2**15 - 1])
def test_an_unknown_api_costs_the_sender_its_connection(port: int, api: int) -> None:
    with Wire(port) as wire:
        assert wire.ask(request(api, 0, b"")) is None
    assert is_well(port)


@pytest.mark.parametrize(
    ("api", "version"), [(0, 2), (0, 99), (1, 3), (3, -1), (3, 32767), (19, 0)]
)
def test_a_version_that_is_not_served_costs_the_sender_its_connection(
    port: int, api: int, version: int
) -> None:
    with Wire(port) as wire:
        assert wire.ask(request(api, version, b"")) is None
    assert is_well(port)


@pytest.mark.parametrize("version", [5, 100, 32767])
def test_a_future_api_versions_request_is_told_what_is_served(port: int, version: int) -> None:
    with Wire(port) as wire:
        answer = wire.ask(request(API_VERSIONS, version, b"\x00\x02a\x02b\x00"))
        assert answer is not None
        told = decode_response(API_VERSIONS, 0, answer, 4)
        assert told.error_code == UNSUPPORTED_VERSION
        assert API_VERSIONS in [it.api_key for it in told.api_keys]
        again = wire.ask(request(API_VERSIONS, 0, b""))
        assert again is not None, "the same connection goes on"


@pytest.mark.parametrize("body", [struct.pack(">i", 0) + b"and more", struct.pack(">i", -7)])
def test_a_body_with_more_or_less_than_it_says_is_answered_or_ends_the_connection(
    port: int, body: bytes
) -> None:
    with Wire(port) as wire:
        answer = wire.ask(request(METADATA, 1, body))
        if answer is not None:
            decode_response(METADATA, 1, answer, 4)
    assert is_well(port)


def test_a_count_far_beyond_the_frame_costs_the_sender_its_connection(port: int) -> None:
    with Wire(port) as wire:
        assert wire.ask(request(METADATA, 1, struct.pack(">i", 2**31 - 1))) is None
    assert is_well(port)
