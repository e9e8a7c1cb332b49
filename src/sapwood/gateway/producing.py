"""`/producer/produce` and `/logs`: messages in, each to a partition; and a look into their logs."""

from __future__ import annotations

import secrets
from itertools import islice
from typing import Annotated, ClassVar

from msgspec import Meta

from sapwood.client import ErrorCode
from sapwood.client.fetcher import Unreadable, read_what_can_be
from sapwood.client.messages import message_key, outgoing, received
from sapwood.client.partitioner import partition_of_key
from sapwood.client.peek import peek
from sapwood.client.procedures import wait_for
from sapwood.gateway.clients import subscriber
from sapwood.gateway.cluster import Cluster, find
from sapwood.gateway.problems import Refused
from sapwood.gateway.sending import check_is_for_clients
from sapwood.gateway.words import (
    Answer,
    Body,
    ClientName,
    Count,
    Encoding,
    MessageAnswer,
    MessageId,
    PartitionNumber,
    Query,
    TopicName,
    content,
    shown,
)

PEEK_BYTES = 64 * 1024
NOBODY = "rest"
"""The sender of messages whose producer has no name."""


class ProduceBody(Body):
    topic: TopicName
    message: str | None
    """null is a message without a value, which deletes its key in a compacted topic."""
    partition: PartitionNumber | None = None
    """By default each partition in turn, or what the key says."""
    producer: ClientName | None = None
    """A registered one."""
    key: str | None = None
    id: MessageId | None = None
    """Of the message. Repeated with the same id it is stored once."""
    encoding: Encoding = "utf-8"
    headers: dict[str, str] = {}


class AppendBody(Body):
    topic: TopicName
    partition: PartitionNumber
    message: str | None
    encoding: Encoding = "utf-8"


class StoredAnswer(Answer):
    id: str
    topic: str
    partition: int
    offset: int
    timestamp: int


class QueuedAnswer(Answer):
    """The edge that this gateway talks to can't reach the cluster: the message is on the edge's own
    disk, and nowhere else, and is delivered once as soon as that is possible."""

    http_status: ClassVar[int | None] = 202

    id: str
    topic: str
    partition: int
    timestamp: int
    queued: bool = True


class LogsQuery(Query):
    topic: TopicName
    partition: PartitionNumber
    consumer: ClientName | None = None
    """From what this consumer has yet to acknowledge on."""
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """From here on; by default from the beginning, or the consumer's position."""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class LogsAnswer(Answer):
    topic: str
    partition: int
    start: Count
    end: Count
    position: int | None
    """The consumer's."""
    messages: list[MessageAnswer]


async def produce(cluster: Cluster, body: ProduceBody) -> StoredAnswer | QueuedAnswer:
    """Answered when it is safe: on disk at a quorum; or, through an edge with an outbox that is cut
    off, with 202 when it is on that edge's disk."""
    check_is_for_clients(body.topic)
    partition = body.partition
    if body.producer is not None:
        known = find((await cluster.known_clients()).producers, body.producer, body.topic)
        if known is None:
            raise Refused(404, f"producer {body.producer} is not registered for {body.topic}")
        if known.partition >= 0:
            if partition not in (None, known.partition):
                raise Refused(
                    409, f"producer {body.producer} is registered for partition {known.partition}"
                )
            partition = known.partition
    message_id = body.id or secrets.token_hex(16)
    out = outgoing(
        body.topic,
        content(body.message, body.encoding),
        body.key,
        body.headers,
        message_id,
        sender=body.producer or NOBODY,
        fresh_id=message_id,
    )
    key = None if body.key is None else body.key.encode()
    if partition is None and key is None:
        count = await _partition_count(cluster, body.topic)
        # What is repeated must get to where it was.
        partition = (
            cluster.turns.take(body.topic, count)
            if body.id is None
            else partition_of_key(body.id.encode(), count)
        )
    stored, is_queued = await cluster.writing.send(
        body.topic,
        message_id,
        out.value,
        key,
        out.headers,
        partition,
        known_id=None if body.id is None else message_key(body.topic, body.id),
    )
    if is_queued:
        return QueuedAnswer(
            id=message_id,
            topic=stored.topic,
            partition=stored.partition,
            timestamp=stored.timestamp,
        )
    return StoredAnswer(**{**stored._asdict(), "id": message_id})


async def append(cluster: Cluster, body: AppendBody) -> StoredAnswer | QueuedAnswer:
    return await produce(
        cluster,
        ProduceBody(
            topic=body.topic,
            partition=body.partition,
            message=body.message,
            encoding=body.encoding,
        ),
    )


async def look(cluster: Cluster, query: LogsQuery) -> LogsAnswer:
    (key,) = await cluster.partitions(query.topic, query.partition)
    position: int | None = None
    if query.consumer is not None:
        group = subscriber(cluster, query.topic, query.consumer).group
        core, now_ms = cluster.reader.core, cluster.reader.now_ms()
        committed = (await cluster.run(wait_for(core.groups.positions(group, [key], now_ms))))[key]
        if committed.offset < 0:
            raise Refused(404, f"{query.consumer} is no consumer of {query.topic}")
        position = committed.offset
    ends = (await cluster.ends([key]))[key]
    offset = max(ends.start, position or 0) if query.offset is None else query.offset
    messages: list[MessageAnswer] = []
    size = 0
    while len(messages) < query.limit and ends.start <= offset < ends.end and size < PEEK_BYTES:
        core, clock = cluster.reader.core, cluster.reader.now_ms
        chunk = await cluster.run(peek(core, clock, key, offset, PEEK_BYTES))
        if chunk is None:
            break
        for found in islice(read_what_can_be(chunk), query.limit - len(messages)):
            if isinstance(found, Unreadable):
                if not messages:
                    told = f"{found}: go on at offset {found.next_offset}"
                    raise Refused(410, told, code=ErrorCode.CORRUPT_MESSAGE.name)
                size = PEEK_BYTES  # what is before it is answered first
                break
            messages.append(shown(received(found)))
        offset, size = chunk.next_offset, size + len(chunk.data)
    return LogsAnswer(
        topic=query.topic,
        partition=query.partition,
        start=ends.start,
        end=ends.end,
        position=position,
        messages=messages,
    )


async def _partition_count(cluster: Cluster, topic: str) -> int:
    """As the writer knows it, who keeps the topics that it writes to in view."""
    core = cluster.writer.core
    known = core.usable_topic(topic, None)
    if known is None:
        waiting = wait_for(core.await_topic(topic, None, cluster.writer.now_ms()))
        known = await cluster.writer.run(waiting)
    return len(known.partitions)
