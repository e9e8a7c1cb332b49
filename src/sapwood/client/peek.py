"""One look into a partition: what is there from an offset on, now, without a fetcher of its own."""

from __future__ import annotations

from collections.abc import Callable

from sapwood.client.calls import Leader
from sapwood.client.cluster import TopicPartition
from sapwood.client.core import ClientCore
from sapwood.client.errors import error_for
from sapwood.client.fetcher import Chunk, read_chunk
from sapwood.client.procedures import Procedure, wait_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct


def peek(
    core: ClientCore,
    clock: Callable[[], float],
    key: TopicPartition,
    offset: int,
    max_bytes: int,
) -> Procedure[Chunk | None]:
    """At least one batch if there is any; None if there is nothing at or behind the offset.

    It never waits for records: a request that is parked would hold up all others behind it.
    """
    topic, partition = key
    place = Struct(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    message = Struct(
        replica_id=-1,
        max_wait=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=core.config.isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic=topic, partitions=[place])],
        forgotten_topics_data=[],
        rack_id="",
    )
    target = Leader(topic, partition)
    answer = yield from wait_for(core.request(Api.FETCH, message, target, None, clock(), _read))
    return read_chunk(key, offset, None, answer.responses[0].partitions[0])


def _read(answer: Struct) -> Struct:
    code, subject = answer.error_code, "the broker refuses to fetch"
    for topic in answer.responses:
        for each in topic.partitions:
            code = code or each.error_code
            subject = f"topic {topic.topic}, partition {each.partition_index}"
    if code:
        raise error_for(code, subject)
    return answer
