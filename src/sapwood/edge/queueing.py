"""Produce at an edge with an outbox: up to the cluster, or, if that is away, onto its own disk.

Queued is what asks for one acknowledgement only, or says that it may be. What came before goes
first: as long as something for a partition is in the outbox, more for it goes there, too. What is
numbered by its producer is not queued, since its numbers would be missing above; a message that
goes by a key of its own is, since it is recognised whichever way it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

from sapwood.edge.knowing import Known
from sapwood.edge.outbox import Key, Outbox
from sapwood.log import FIRST_ID
from sapwood.server import Request
from sapwood.wire.apis import Api, can_code
from sapwood.wire.batch import BatchHeader, crc_ok, read_header
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.compression import Compression
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.frames import encode_response_frame
from sapwood.wire.records import decode_batch

MAX_DECOMPRESSED_BYTES = 32 << 20
ONE = 1
QUEUED = -1
"""The base offset of what is in the outbox: it has none yet."""


class _Part(NamedTuple):
    """One partition of a request."""

    topic: Struct
    partition: int
    records: memoryview | None


class Queueing:
    def __init__(self, outbox: Outbox, known: Known) -> None:
        self._outbox = outbox
        self._known = known

    def produce(self, request: Request, *, is_cut_off: bool) -> Awaitable[list[Buffer]] | None:
        """None: it has to go up, or to wait until it can."""
        version = request.header.api_version
        if not (is_cut_off or self._outbox) or not can_code(Api.PRODUCE, version):
            return None
        message = decode_request(Api.PRODUCE, version, request.body, request.body_offset)
        parts = [
            _Part(topic, it.index, it.records)
            for topic in message.topic_data
            for it in topic.partition_data
        ]
        if not self._may_queue(message, parts):
            return None
        if not is_cut_off and not any(self._key(it) in self._outbox for it in parts):
            return None
        # Taken at once, all of it: what a client sends next must not come before it.
        taken = [self._take(it) for it in parts]
        return self._answer(request, parts, taken)

    def _may_queue(self, message: Struct, parts: list[_Part]) -> bool:
        is_content = message.acks == ONE or getattr(message, "may_queue", False)
        if not is_content or message.transactional_id is not None:
            return False
        headers = [_header(it.records) for it in parts]
        return all(it is None or _is_queueable(it) for it in headers)

    def _key(self, part: _Part) -> Key:
        found = self._known.find(
            getattr(part.topic, "name", None), getattr(part.topic, "topic_id", b"")
        )
        return ("", part.partition) if found is None else (found[0], part.partition)

    def _take(self, part: _Part) -> asyncio.Future[None] | KafkaError:
        try:
            key = self._checked_key(part)
            records, header = _checked(part.records)
            return self._outbox.append(key, records, header)
        except KafkaError as error:
            return error

    def _checked_key(self, part: _Part) -> Key:
        name = getattr(part.topic, "name", None)
        found = self._known.find(name, getattr(part.topic, "topic_id", b""))
        if found is None and name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This edge knows no topic of that id")
        if found is None or not 0 <= part.partition < found[1].partition_count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This edge can't reach the cluster, and knows no such topic or partition",
            )
        if found[1].is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{found[0]} is not written to by clients"
            )
        return found[0], part.partition

    async def _answer(
        self, request: Request, parts: list[_Part], taken: list[asyncio.Future[None] | KafkaError]
    ) -> list[Buffer]:
        topics: dict[int, Struct] = {}
        for part, it in zip(parts, taken, strict=True):
            result = Struct(
                index=part.partition,
                error_code=0,
                error_message=None,
                base_offset=QUEUED,
                log_append_time=-1,
                log_start_offset=-1,
                record_errors=[],
            )
            try:
                if isinstance(it, KafkaError):
                    raise it
                await asyncio.shield(it)
            except KafkaError as error:
                result.error_code, result.error_message = int(error.code), error.message
            topic = topics.setdefault(
                id(part.topic),
                Struct(
                    name=getattr(part.topic, "name", None),
                    topic_id=getattr(part.topic, "topic_id", None),
                    partition_responses=[],
                ),
            )
            topic.partition_responses.append(result)
        header = request.header
        answer = Struct(responses=list(topics.values()), throttle_time=0, node_endpoints=[])
        return encode_response_frame(Api.PRODUCE, header.api_version, header.correlation_id, answer)


def _header(records: memoryview | None) -> BatchHeader | None:
    try:
        return read_header(records) if records else None
    except MalformedMessage:
        return None


def _is_queueable(header: BatchHeader) -> bool:
    return not header.has_producer or header.producer_id >= FIRST_ID


def _checked(records: memoryview | None) -> tuple[memoryview, BatchHeader]:
    """What a leader would check, and that it can be read: who accepts it has to deliver it."""
    try:
        if not records:
            raise MalformedMessage("no records were sent for this partition")
        header = read_header(records)
        if header.size != len(records) or not crc_ok(records, 0, header):
            raise MalformedMessage("it isn't one whole batch, or its CRC doesn't match")
        decode_batch(records, max_bytes=MAX_DECOMPRESSED_BYTES)
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Not a record batch: {error}") from error
    is_counted = 0 < header.record_count == header.last_offset_delta + 1
    is_keyed = header.has_producer
    if (
        not is_counted
        or header.is_control
        or header.is_transactional
        or header.timestamp_type
        or header.compression > Compression.ZSTD
        or (is_keyed and (header.record_count != 1 or header.producer_epoch))
        or (is_keyed and header.base_sequence < 0)
    ):
        raise KafkaError(ErrorCode.INVALID_RECORD, "Not a batch that a producer may send")
    return records, header
