"""Frames: a 4-byte length, a header, a message; and their reassembly from a stream of bytes."""

import struct
from typing import NamedTuple

from sapwood.wire.apis import Api, is_flexible, is_known_and_flexible
from sapwood.wire.codec import Buffer, Struct, encode_request_into, encode_response_into
from sapwood.wire.decoder import skip_tags, varint_rest
from sapwood.wire.errors import MalformedMessage

_LENGTH = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhih")
_RESPONSE_HEADER = struct.Struct(">i")
_FRAME_AND_REQUEST_HEADER = struct.Struct(">ihhih")
_FRAME_AND_RESPONSE_HEADER = struct.Struct(">ii")

DEFAULT_FRAME_LIMIT = 100 * 1024 * 1024

# A tagged field of both headers: the hybrid clock of whoever sends it, for those who send theirs.
CLOCK_TAG = 20021
_CLOCK = struct.Struct(">q")
_TAGS_BEFORE_CLOCK = b"\x01" + bytes([CLOCK_TAG & 0x7F | 0x80, CLOCK_TAG >> 7 & 0x7F | 0x80])
_TAGS_BEFORE_CLOCK += bytes([CLOCK_TAG >> 14, _CLOCK.size])
_NO_TAGS = b"\0"


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    clock: int | None = None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header, and where the body starts.

    Of a key or a version without a schema only the part that all headers share is read: whoever
    answers it needs the correlation id and can't read the body anyway.
    """
    try:
        api, version, correlation_id, size = _REQUEST_HEADER.unpack_from(frame)
        position = _REQUEST_HEADER.size
        client_id = clock = None
        if size >= 0:
            end = position + size
            if end > len(frame):
                raise MalformedMessage("client id is cut short")
            client_id = str(frame[position:end], "utf-8")
            position = end
        elif size != -1:
            raise MalformedMessage(f"client id has the length {size}")
        if is_known_and_flexible(api, version):
            count = frame[position]
            position += 1
            if count:
                clock = _find_clock(frame, position, count)
                position = skip_tags(frame, position, count)
    except (struct.error, IndexError) as error:
        raise MalformedMessage("request header is cut short") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage("client id is not UTF-8") from error
    return RequestHeader(api, version, correlation_id, client_id, clock), position


def decode_response_header(api: int, version: int, frame: memoryview) -> tuple[int, int]:
    """The correlation id, and where the body starts."""
    try:
        (correlation_id,) = _RESPONSE_HEADER.unpack_from(frame)
        position = _RESPONSE_HEADER.size
        if has_response_tags(api, version):
            count = frame[position]
            position += 1
            if count:
                position = skip_tags(frame, position, count)
    except (struct.error, IndexError) as error:
        raise MalformedMessage("response header is cut short") from error
    return correlation_id, position


def response_clock(api: int, version: int, frame: memoryview) -> int | None:
    """The clock in a response's header; after `decode_response_header`, which checks the rest."""
    at = _RESPONSE_HEADER.size
    if not has_response_tags(api, version) or not frame[at]:
        return None
    return _find_clock(frame, at + 1, frame[at])


def _find_clock(data: memoryview, position: int, count: int) -> int | None:
    if count > 127:
        count, position = varint_rest(data, position, count)
    for _ in range(count):
        tag, position = data[position], position + 1
        if tag > 127:
            tag, position = varint_rest(data, position, tag)
        size, position = data[position], position + 1
        if size > 127:
            size, position = varint_rest(data, position, size)
        if tag == CLOCK_TAG and size == _CLOCK.size:
            clock: int = _CLOCK.unpack_from(data, position)[0]
            return clock
        position += size
    return None


def has_response_tags(api: int, version: int) -> bool:
    # A client that asks for ApiVersions doesn't know yet what the broker speaks, so the header of
    # the answer never changes.
    return api != Api.API_VERSIONS and is_flexible(api, version)


def encode_request_frame(
    api: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    message: Struct,
    clock: int | None = None,
) -> list[Buffer]:
    """A whole request, its length first."""
    name = None if client_id is None else client_id.encode()
    size = -1 if name is None else len(name)
    buffer = bytearray(_FRAME_AND_REQUEST_HEADER.pack(0, api, version, correlation_id, size))
    if name:
        buffer += name
    if is_flexible(api, version):
        if clock is None:
            buffer.append(0)
        else:
            buffer += _TAGS_BEFORE_CLOCK + _CLOCK.pack(clock)
    parts: list[Buffer] = []
    encode_request_into(parts, buffer, api, version, message)
    _LENGTH.pack_into(buffer, 0, sum(map(len, parts)) - _LENGTH.size)
    return parts


def encode_response_frame(
    api: int, version: int, correlation_id: int, message: Struct
) -> list[Buffer]:
    """A whole response, its length first."""
    buffer = bytearray(_FRAME_AND_RESPONSE_HEADER.pack(0, correlation_id))
    if has_response_tags(api, version):
        buffer.append(0)
    parts: list[Buffer] = []
    encode_response_into(parts, buffer, api, version, message)
    _LENGTH.pack_into(buffer, 0, sum(map(len, parts)) - _LENGTH.size)
    return parts


def response_frame(api: int, version: int, correlation_id: int, body: list[Buffer]) -> list[Buffer]:
    """A whole response around a body that was encoded already."""
    tags = b"\0" if has_response_tags(api, version) else b""
    size = _RESPONSE_HEADER.size + len(tags) + sum(map(len, body))
    return [_FRAME_AND_RESPONSE_HEADER.pack(size, correlation_id) + tags, *body]


def with_clock(api: int, version: int, frame: list[Buffer], clock: int) -> list[Buffer]:
    """A whole response, with a clock in its header if that has a place for one."""
    head = memoryview(frame[0])
    at = _FRAME_AND_RESPONSE_HEADER.size
    if len(head) <= at and len(frame) > 1:  # the length alone, in front of what somebody else made
        second = memoryview(frame[1])
        missing = at + 1 - len(head)
        head = memoryview(bytes(head) + bytes(second[:missing]))
        frame = [head, second[missing:], *frame[2:]]
    if not has_response_tags(api, version) or bytes(head[at : at + 1]) != _NO_TAGS:
        return frame
    size, correlation_id = _FRAME_AND_RESPONSE_HEADER.unpack_from(head)
    tags = _TAGS_BEFORE_CLOCK + _CLOCK.pack(clock)
    size += len(tags) - len(_NO_TAGS)
    start = _FRAME_AND_RESPONSE_HEADER.pack(size, correlation_id) + tags
    rest = head[at + 1 :]
    return [start, rest, *frame[1:]] if rest else [start, *frame[1:]]


class FrameBuffer:
    """Cuts a stream into frames; made for asyncio.BufferedProtocol.

    Bytes are received into a buffer that all connections take from one pool, so that an idle or a
    slow connection holds none. What is whole is copied out: a frame owns its memory. A frame that
    is not whole yet gets memory of its own, into which the rest is received directly and which
    grows with what has arrived, whatever length was announced.
    """

    RECEIVE_SIZE = 64 * 1024
    _pool: list[bytearray] = []
    _POOL_SIZE = 16
    _SMALLEST = 1024
    _GROWTH = 4

    def __init__(self, limit: int = DEFAULT_FRAME_LIMIT) -> None:
        self.limit = limit
        self._receiving: bytearray | None = None
        self._length_start = b""  # up to three bytes of a length
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._frame_filled = 0

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Where to receive to; void once `received` was called."""
        frame = self._frame
        if frame is not None:
            if self._frame_filled == len(frame):
                # Not extended in place: the event loop may still hold a view of the old memory.
                self._frame = bytearray(min(self._frame_size, self._GROWTH * len(frame)))
                self._frame[: self._frame_filled] = frame
                frame = self._frame
            return memoryview(frame)[self._frame_filled :]
        if self._receiving is None:
            try:
                self._receiving = FrameBuffer._pool.pop()
            except IndexError:  # asked for, not looked up first: threads share the pool
                self._receiving = bytearray(self.RECEIVE_SIZE)
            self._receiving[: len(self._length_start)] = self._length_start
        return memoryview(self._receiving)[len(self._length_start) :]

    def received(self, count: int) -> list[memoryview]:
        """Note that `count` bytes were received; the frames that are whole now."""
        if self._frame is not None:
            self._frame_filled += count
            if self._frame_filled < self._frame_size:
                return []
            frame, self._frame = memoryview(self._frame), None
            return [frame]
        buffer, self._receiving = self._receiving, None
        if buffer is None:
            return []
        frames = self._cut(buffer, len(self._length_start) + count)
        if len(FrameBuffer._pool) < self._POOL_SIZE:
            FrameBuffer._pool.append(buffer)
        return frames

    def _cut(self, buffer: bytearray, end: int) -> list[memoryview]:
        frames: list[memoryview] = []
        position = 0
        self._length_start = b""
        while end - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, position)
            if not 0 <= size <= self.limit:
                raise MalformedMessage(f"a frame of {size} bytes; {self.limit} are allowed")
            position += _LENGTH.size
            whole = position + size
            if whole > end:
                self._start_frame(memoryview(buffer)[position:end], size)
                return frames
            frames.append(memoryview(buffer[position:whole]))
            position = whole
        self._length_start = bytes(buffer[position:end])
        return frames

    def _start_frame(self, arrived: memoryview, size: int) -> None:
        self._frame_size = size
        self._frame_filled = len(arrived)
        self._frame = bytearray(min(size, max(self._SMALLEST, self._GROWTH * len(arrived))))
        self._frame[: len(arrived)] = arrived
