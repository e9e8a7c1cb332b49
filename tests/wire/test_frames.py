"""Headers, whole frames, and their reassembly from a stream."""

import io
import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioRequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioRequestHeaderV2
from kio.serial import entity_writer

from sapwood.wire.apis import Api
from sapwood.wire.codec import (
    Buffer,
    Struct,
    decode_request,
    decode_response,
    encode_response,
)
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.frames import (
    FrameBuffer,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_frame,
    encode_response_frame,
    response_clock,
    response_frame,
    with_clock,
)
from tests.wire.samples import all_messages


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def feed(buffer: FrameBuffer, data: bytes) -> list[memoryview]:
    """Hand over as much at a time as the buffer has room for."""
    frames: list[memoryview] = []
    while data:
        room = buffer.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        frames += buffer.received(count)
    return frames


@pytest.mark.parametrize("client_id", [None, "", "client", "é" * 100])
def test_every_request_header_is_that_of_kio(client_id: str | None) -> None:
    checked = 0
    for message in all_messages():
        if message.direction != "request" or message.api >= 20000:
            continue
        version = 2 if message.message_class.__flexible__ else 1
        header_class = (KioRequestHeaderV1, KioRequestHeaderV2)[version - 1]
        header = header_class(
            request_api_key=message.api,  # type: ignore[arg-type]
            request_api_version=message.version,  # type: ignore[arg-type]
            correlation_id=-7,  # type: ignore[arg-type]
            client_id=client_id,
        )
        stream = io.BytesIO()
        entity_writer(header_class)(stream, header)
        frame = stream.getvalue() + b"body"
        expected = RequestHeader(message.api, message.version, -7, client_id)
        assert decode_request_header(memoryview(frame)) == (expected, len(frame) - 4)
        checked += 1
    assert checked > 200


def test_unknown_tags_in_headers_are_skipped() -> None:
    tags = b"\2\x00\3abc\x07\0"
    frame = struct.pack(">hhih", Api.METADATA, 12, 5, 2) + b"me" + tags + b"body"
    header, start = decode_request_header(memoryview(frame))
    assert header == RequestHeader(Api.METADATA, 12, 5, "me")
    assert frame[start:] == b"body"
    response = struct.pack(">i", 5) + tags + b"body"
    assert decode_response_header(Api.METADATA, 12, memoryview(response)) == (5, len(response) - 4)


@pytest.mark.parametrize(("api", "version"), [(Api.API_VERSIONS, 99), (999, 0), (Api.PRODUCE, 0)])
def test_the_header_of_an_unknown_request_is_read_as_far_as_all_headers_agree(
    api: int, version: int
) -> None:
    frame = struct.pack(">hhih", api, version, 5, 2) + b"me" + b"\xff\xff\xff\xff\xff\xff"
    assert decode_request_header(memoryview(frame))[0] == RequestHeader(api, version, 5, "me")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_garbage_is_a_header_or_malformed(data: bytes) -> None:
    try:
        _, start = decode_request_header(memoryview(data))
    except MalformedMessage:
        return
    assert start <= len(data)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\0\x12\0\0\0\0\0\1",
        b"\0\x12\0\0\0\0\0\1\0\x05abc",
        b"\0\x12\0\0\0\0\0\1\0\2\xc3\x28",
        b"\0\x12\0\0\0\0\0\1\xff\xfe",
        b"\0\x12\0\3\0\0\0\1\xff\xff",
        b"\0\x12\0\3\0\0\0\1\xff\xff\1\0\5abc",
    ],
)
def test_a_broken_header_is_malformed(header: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_request_header(memoryview(header))


def test_a_broken_response_header_is_malformed() -> None:
    for data in (b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1\0\5"):
        with pytest.raises(MalformedMessage):
            decode_response_header(Api.METADATA, 12, memoryview(data))


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_header_of_an_api_versions_response_never_has_tags(version: int) -> None:
    message = Struct(error_code=0, api_keys=[], throttle_time=0)
    parts = encode_response_frame(Api.API_VERSIONS, version, 77, message)
    [frame] = feed(FrameBuffer(), b"".join(parts))
    assert decode_response_header(Api.API_VERSIONS, version, frame) == (77, 4)
    assert decode_response(Api.API_VERSIONS, version, frame, 4).api_keys == []


@pytest.mark.parametrize("version", [3, 4])
def test_requests_and_responses_survive_the_way_through_a_stream(version: int) -> None:
    request = Struct(group_id="g", generation_id=3, member_id="m", group_instance_id=None)
    parts = encode_request_frame(Api.HEARTBEAT, version, 9, "me", request)
    [frame] = feed(FrameBuffer(), b"".join(parts))
    header, start = decode_request_header(frame)
    assert header == RequestHeader(Api.HEARTBEAT, version, 9, "me")
    assert decode_request(Api.HEARTBEAT, version, frame, start) == request

    response = Struct(throttle_time=1, error_code=2)
    whole = b"".join(encode_response_frame(Api.HEARTBEAT, version, 9, response))
    body = encode_response(Api.HEARTBEAT, version, response)
    assert b"".join(response_frame(Api.HEARTBEAT, version, 9, body)) == whole
    [frame] = feed(FrameBuffer(), whole)
    correlation_id, start = decode_response_header(Api.HEARTBEAT, version, frame)
    assert correlation_id == 9
    assert decode_response(Api.HEARTBEAT, version, frame, start) == response


def test_the_length_of_a_frame_counts_the_records_that_were_passed_by_reference() -> None:
    partition = Struct(index=0, records=[bytes(10_000), bytes(7)])
    request = Struct(
        acks=-1, timeout=100, topic_data=[Struct(name="t", partition_data=[partition])]
    )
    parts = encode_request_frame(Api.PRODUCE, 9, 1, None, request)
    assert len(parts) > 1
    [frame] = feed(FrameBuffer(), b"".join(parts))
    header, start = decode_request_header(frame)
    assert header.client_id is None
    decoded = decode_request(Api.PRODUCE, 9, frame, start)
    assert len(decoded.topic_data[0].partition_data[0].records) == 10_007


def test_frames_that_arrive_byte_by_byte_are_put_together() -> None:
    buffer = FrameBuffer()
    contents = [b"", b"a", b"bcd", bytes(300), b"end"]
    frames = []
    for byte in b"".join(map(framed, contents)):
        buffer.get_buffer(-1)[:1] = bytes([byte])
        frames += buffer.received(1)
    assert frames == contents


@pytest.mark.parametrize("seed", range(8))
def test_frames_of_all_sizes_survive_chunks_of_all_sizes(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [
        chance.choice((0, 1, 3, 100, 5_000, 65_531, 65_532, 65_536, 300_000)) for _ in range(12)
    ]
    contents = [chance.randbytes(size) for size in sizes]
    stream = b"".join(map(framed, contents))
    buffer = FrameBuffer()
    frames = []
    while stream:
        room = buffer.get_buffer(-1)
        assert len(room) > 0
        count = min(len(room), len(stream), chance.choice((1, 4, 1000, 70_000)))
        room[:count] = stream[:count]
        stream = stream[count:]
        frames += buffer.received(count)
    assert frames == contents


def test_many_connections_can_be_fed_in_turns() -> None:
    chance = random.Random(1)
    contents = [[chance.randbytes(chance.randrange(2000)) for _ in range(20)] for _ in range(8)]
    streams = [b"".join(map(framed, content)) for content in contents]
    buffers = [FrameBuffer() for _ in streams]
    frames: list[list[memoryview]] = [[] for _ in streams]
    while any(streams):
        turn = chance.choice([number for number, stream in enumerate(streams) if stream])
        size = chance.randrange(1, 3000)
        frames[turn] += feed(buffers[turn], streams[turn][:size])
        streams[turn] = streams[turn][size:]
    assert frames == contents


def test_a_frame_is_writable_and_nobody_elses() -> None:
    buffer = FrameBuffer()
    first, second = feed(buffer, framed(b"first") + framed(b"second"))
    [large] = feed(buffer, framed(bytes(100_000)))
    first[0] = ord("F")
    large[0] = 1
    feed(buffer, framed(b"x" * 60_000) * 3)
    assert [first, second] == [b"First", b"second"]
    assert bytes(large) == b"\1" + bytes(99_999)


def test_a_frame_beyond_the_limit_is_malformed_before_its_content_arrives() -> None:
    for length in (-1, -(2**31), 101, 2**31 - 1):
        with pytest.raises(MalformedMessage, match=str(length)):
            feed(FrameBuffer(limit=100), struct.pack(">i", length))


def test_the_limit_may_be_raised_on_the_way() -> None:
    buffer = FrameBuffer(limit=10)
    assert feed(buffer, framed(bytes(10))) == [bytes(10)]
    buffer.limit = 1000
    assert feed(buffer, framed(bytes(1000))) == [bytes(1000)]


def test_memory_grows_with_what_has_arrived_and_not_with_what_was_announced() -> None:
    tracemalloc.start()
    try:
        buffers = [FrameBuffer(limit=2**31 - 1) for _ in range(20)]
        for buffer in buffers:
            feed(buffer, struct.pack(">i", 2**31 - 1) + b"a")
            buffer.get_buffer(-1)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2 * FrameBuffer.RECEIVE_SIZE
    finally:
        tracemalloc.stop()


def test_an_idle_connection_holds_no_receive_buffer() -> None:
    buffers = [FrameBuffer() for _ in range(500)]
    tracemalloc.start()
    try:
        for buffer in buffers:
            feed(buffer, framed(b"hello"))
        assert tracemalloc.get_traced_memory()[0] < 20 * FrameBuffer.RECEIVE_SIZE
    finally:
        tracemalloc.stop()


def test_a_clock_goes_along_in_the_headers_of_those_who_send_one() -> None:
    message = Struct(topics=[], allow_auto_topic_creation=False)
    message.include_topic_authorized_operations = False
    message.include_cluster_authorized_operations = False
    for clock in (None, 0, 2**62 + 5):
        frame = b"".join(encode_request_frame(Api.METADATA, 12, 7, "me", message, clock))
        header, body = decode_request_header(memoryview(frame)[4:])
        assert (header.clock, header.client_id) == (clock, "me")
        assert decode_request(Api.METADATA, 12, memoryview(frame)[4:], body).topics == []
    old = b"".join(encode_request_frame(Api.METADATA, 8, 7, "me", message, 5))
    assert decode_request_header(memoryview(old)[4:])[0].clock is None


def test_an_answer_gets_a_clock_whoever_made_it_and_stays_what_it_was() -> None:
    answer = Struct(error_code=0, error_message=None, frame=b"f" * 10_000)
    frame = encode_response_frame(Api.FORWARD, 0, 7, answer)
    joined = b"".join(frame)
    ways: list[list[Buffer]] = [frame, [joined], [joined[:4], memoryview(joined)[4:]]]
    for parts in ways:
        timed = memoryview(b"".join(with_clock(Api.FORWARD, 0, parts, 2**50)))
        assert int.from_bytes(timed[:4], "big") == len(timed) - 4
        number, body = decode_response_header(Api.FORWARD, 0, timed[4:])
        assert number == 7
        assert response_clock(Api.FORWARD, 0, timed[4:]) == 2**50
        assert decode_response(Api.FORWARD, 0, timed[4:], body).frame == b"f" * 10_000
    assert response_clock(Api.FORWARD, 0, memoryview(joined)[4:]) is None
    versions = Struct(error_code=0, api_keys=[], throttle_time=0)
    old = encode_response_frame(Api.API_VERSIONS, 3, 7, versions)
    assert with_clock(Api.API_VERSIONS, 3, old, 5) is old
