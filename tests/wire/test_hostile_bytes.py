"""Bytes from strangers: a valid message or MalformedMessage, nothing else, and little memory."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.wire.apis import Api
from sapwood.wire.codec import decode_request, decode_response
from sapwood.wire.errors import MalformedMessage
from tests.wire.samples import (
    ALL_APIS,
    Message,
    comparable,
    messages_of,
    naive_bytes,
    random_message,
)

HUGE_COUNTS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x00",
    b"\x80",
)


def names(api: int) -> str:
    return Api(api).name


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(changed) + 1)
        end = min(len(changed), start + chance.randrange(6))
        match chance.randrange(4):
            case 0:
                changed[start:end] = chance.randbytes(end - start)
            case 1:
                del changed[start:end]
            case 2:
                changed[start:start] = chance.randbytes(chance.randrange(6))
            case _:
                count = chance.choice(HUGE_COUNTS)
                changed[start : start + len(count)] = count
    return bytes(changed)


def decode_hostile(kind: Message, data: bytes) -> None:
    """Whatever is understood must be a message that survives being sent on."""
    try:
        message = kind.decode(data)
    except MalformedMessage:
        return
    assert comparable(kind.decode(kind.encode(message))) == comparable(message), str(kind)


@pytest.mark.parametrize("api", ALL_APIS, ids=names)
def test_mutated_messages_are_understood_or_malformed(api: int) -> None:
    chance = random.Random(api)
    for kind in messages_of(api):
        data = naive_bytes(random_message(kind.message_class, chance))[:2000]
        for _ in range(12):
            decode_hostile(kind, mutated(data, chance))
        decode_hostile(kind, chance.randbytes(chance.randrange(60)))


@pytest.mark.parametrize("api", ALL_APIS, ids=names)
def test_a_message_that_is_cut_short_is_malformed_and_what_follows_one_is_ignored(api: int) -> None:
    chance = random.Random(api)
    for kind in messages_of(api)[-4:]:
        data = naive_bytes(random_message(kind.message_class, chance, width=2))
        kind.decode(data)
        lengths = range(len(data))
        for length in lengths if len(data) < 60 else chance.sample(lengths, 60):
            with pytest.raises(MalformedMessage):
                kind.decode(data[:length])
        assert kind.decode(data + b"\0later") == kind.decode(data)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(0, 9), (0, 3), (1, 4), (1, 12), (3, 9), (8, 2), (18, 3), (68, 0), (75, 0)]),
    st.binary(max_size=100),
)
def test_garbage_is_understood_or_malformed(message: tuple[int, int], data: bytes) -> None:
    for decode in (decode_request, decode_response):
        try:
            decode(*message, data)
        except MalformedMessage:
            pass


@pytest.mark.parametrize("count", HUGE_COUNTS)
def test_a_count_allocates_nothing_before_it_was_held_against_the_bytes_that_are_there(
    count: bytes,
) -> None:
    messages = [kind for api in (0, 1, 3, 9, 18, 68) for kind in messages_of(api)[-2:]]
    samples = [
        (kind, naive_bytes(random_message(kind.message_class, random.Random(7)))[:300])
        for kind in messages
    ]
    for kind, data in samples:  # compiled before anything is measured
        decode_hostile(kind, data)
    tracemalloc.start()
    try:
        for kind, data in samples:
            for start in range(len(data)):
                try:
                    kind.decode(data[:start] + count + data[start + len(count) :])
                except MalformedMessage:
                    pass
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        (b"\2\x05\0\x05\0", "tag 5 follows tag 5"),
        (b"\2\x06\0\x05\0", "tag 5 follows tag 6"),
        (b"\1\x05\x04abc", "cut short"),
        (b"\1\x05", "ends too early"),
        (b"\1", "ends too early"),
        (b"\2\x05\0", "ends too early"),
        (b"", "ends too early"),
        (b"\xff\xff\xff\xff\x1f", "varint"),
        (b"\1\xff\xff\xff\xff\xff\xff\0", "varint"),
    ],
)
def test_a_broken_section_of_tagged_fields_is_malformed(tags: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode_request(Api.API_VERSIONS, 3, b"\2a\2b" + tags)  # an entity without tags of its own
    with pytest.raises(MalformedMessage, match=reason):
        decode_response(Api.API_VERSIONS, 3, b"\0\0\1" + bytes(4) + tags)  # one that has some


def test_a_known_tag_must_be_filled_exactly() -> None:
    body = b"\0\0\1" + bytes(4)
    epoch = (5).to_bytes(8, "big")
    decoded = decode_response(Api.API_VERSIONS, 3, body + b"\1\1\x08" + epoch)
    assert decoded.finalized_features_epoch == 5
    for size, content in ((9, epoch + b"\0"), (7, epoch), (7, epoch[:7])):
        with pytest.raises(MalformedMessage):
            decode_response(Api.API_VERSIONS, 3, body + bytes([1, 1, size]) + content)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, b"\xff\xff"),  # a group id must not be null
        (0, b"\xff\xfe"),
        (0, b"\0\2\xc3\x28"),  # not UTF-8
        (0, b"\0\5abc"),
        (3, b"\0\0\0"),
        (3, b"\3\xc3\x28\0\0"),
    ],
)
def test_a_bad_string_is_malformed(version: int, data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_request(Api.FIND_COORDINATOR, version, data)
