"""When batches were appended, by the cluster's clock, and which times are over for a partition."""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from sapwood.wire.private.words import Message, binary, int8, int16, int32, int64, string, uuid

_SPAN = struct.Struct(">qqq")
NO_TIME = -1


class Span(NamedTuple):
    """The offsets of one batch, and when it was appended."""

    first_offset: int
    last_offset: int
    time: int


def pack_spans(spans: Iterable[Span]) -> bytes:
    """Big-endian 64-bit numbers, three to a batch, so that numpy can take them as they are."""
    return b"".join(_SPAN.pack(*it) for it in spans)


def unpack_spans(packed: bytes) -> list[Span]:
    return [Span(*it) for it in _SPAN.iter_unpack(packed)]


class AskedPartition(Message):
    """About batches that have an offset in [start, end), of which there are none if these are
    equal; and, unless it is -1, where those begin that were appended after a time."""

    partition: int = int32()
    start_offset: int = int64(0)
    end_offset: int = int64(0)
    after: int = int64(NO_TIME)


class AskedTopic(Message):
    name: str = string()
    partitions: tuple[AskedPartition, ...]


class AppendTimesRequest(Message):
    """`wanted`: the answer may wait for so long until that time is closed."""

    isolation_level: int = int8(0)
    wanted: int = int64(0)
    max_wait_ms: int = int32(0)
    topics: tuple[AskedTopic, ...]


class TimedPartition(Message):
    """No record at `closed_offset` or behind it is, or ever will be, of `closed_time` or before.

    `spans` hold what was asked for below `next_offset`: if that is less than the end, ask on.
    `following_offset` is where the first batch behind the end begins, or the closed offset if none
    does before that: compaction and retention leave gaps.
    """

    partition: int = int32()
    error_code: int = int16(0)
    closed_time: int = int64(NO_TIME)
    closed_offset: int = int64(-1)
    next_offset: int = int64(-1)
    following_offset: int = int64(-1)
    after_offset: int = int64(-1)
    spans: bytes = binary(b"")


class TimedTopic(Message):
    name: str = string()
    topic_id: bytes = uuid()
    partitions: tuple[TimedPartition, ...]


class AppendTimesResponse(Message):
    topics: tuple[TimedTopic, ...]


class TopicTimesRequest(Message):
    wanted: int = int64(0)
    max_wait_ms: int = int32(0)
    topics: tuple[str, ...] = string()


class CountedTopic(Message):
    name: str = string()
    topic_id: bytes = uuid()
    partitions: int = int32()


class TopicTimesResponse(Message):
    """Partitions that aren't counted have no records of `closed_time` or before, nor ever will:
    nobody leads one who has not heard from the controller that there is one."""

    error_code: int = int16(0)
    error_message: str | None = string(None)
    closed_time: int = int64(NO_TIME)
    topics: tuple[CountedTopic, ...] = ()
