"""AppendTimes and TopicTimes: when batches were appended, and which times are over.

Nothing here runs unless somebody asks: then followers are told to promise times, and the answer
waits for them a moment if it has to. See `replica.clock`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sapwood.broker.fetch import READ_COMMITTED
from sapwood.broker.state import BrokerState
from sapwood.metadata.controller import find_topic
from sapwood.metadata.image import Topic
from sapwood.replica import Partition, closed
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.private.times import NO_TIME, Span, pack_spans

MAX_WAIT_MS = 1_000
PAUSE_S = 0.005
"""Between two looks at what followers have promised: theirs may have to be synced first."""
MOST_SPANS = 2_000
"""In one answer."""
AT_ONCE = 200
"""Batches, each of which may cost a look into a file, between two turns for others."""


@dataclass(slots=True)
class _Asked:
    result: Struct
    request: Struct
    partition: Partition | None


async def append_times(state: BrokerState, request: Request, message: Struct) -> Struct:
    stable = message.isolation_level == READ_COMMITTED
    asked: list[_Asked] = []
    topics = []
    for topic in message.topics:
        of_topic = [_asked(state, topic, it) for it in topic.partitions]
        asked += of_topic
        topics.append(
            Struct(
                name=topic.name,
                topic_id=_topic_id(state, topic.name),
                partitions=[it.result for it in of_topic],
            )
        )
    led = [it.partition for it in asked if it.partition is not None]
    await _until_agreed(state, led, message.wanted, message.max_wait_ms)
    own = _own_time(state)
    found = turn = 0
    for it in asked:
        if it.partition is None:
            continue
        try:
            found += _answer(it.partition, it, own, MOST_SPANS - found, stable=stable)
        except KafkaError as error:
            it.result.error_code = int(error.code)
        if found - turn >= AT_ONCE:
            turn = found
            await asyncio.sleep(0)
    return Struct(topics=topics)


def _asked(state: BrokerState, topic: Struct, wanted: Struct) -> _Asked:
    result = Struct(partition=wanted.partition, error_code=0, spans=b"")
    try:
        partition = state.partition(topic.name, b"", wanted.partition)
        partition.check_confirmed()
    except KafkaError as error:
        result.error_code = int(error.code)
        return _Asked(result, wanted, None)
    return _Asked(result, wanted, partition)


def _topic_id(state: BrokerState, name: str) -> bytes:
    try:
        return find_topic(state.image, name, b"").topic_id
    except KafkaError:
        return bytes(16)


def _own_time(state: BrokerState) -> int:
    clock = state.replicas.clock
    clock.now()
    return clock.promised


async def topic_times(state: BrokerState, request: Request, message: Struct) -> Struct:
    """By the active controller: what the topics have, and until when they had nothing else."""
    log = state.store.partition
    try:
        await _until_agreed(state, [log], message.wanted, message.max_wait_ms)
        closed_time, closed_offset = closed(log, _own_time(state))
        if state.store.applied < closed_offset:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the controller isn't ready yet")
    except KafkaError as error:
        # To be asked again, of whoever is the controller by then.
        return Struct(error_code=int(ErrorCode.NOT_CONTROLLER), error_message=str(error))
    return Struct(
        closed_time=closed_time,
        topics=[_counted(state.image.topics.get(name), name) for name in message.topics],
    )


def _counted(topic: Topic | None, name: str) -> Struct:
    if topic is None:
        return Struct(name=name, topic_id=bytes(16), partitions=-1)
    return Struct(name=name, topic_id=topic.topic_id, partitions=len(topic.partitions))


async def _until_agreed(
    state: BrokerState, partitions: list[Partition], wanted: int, max_wait_ms: int
) -> None:
    """Until that time is closed for all of them, as far as clocks go, or there is no more time."""
    if not partitions:
        return
    deadline = state.loop_now() + min(max(max_wait_ms, 0), MAX_WAIT_MS) / 1000
    # It came along as the client's clock, too. If that wasn't believed, nobody will ever be there.
    wanted = min(wanted, state.replicas.clock.last)

    def is_agreed() -> bool:
        own = _own_time(state)
        return all(it.group.agreed_time(own) >= wanted for it in partitions if it.is_confirmed)

    while True:
        news = state.replicas.exchange.close_times(wanted)
        left_s = deadline - state.loop_now()
        if is_agreed() or left_s <= 0:
            return
        await asyncio.wait([news], timeout=left_s)
        if not is_agreed():
            await asyncio.sleep(PAUSE_S)


def _answer(partition: Partition, asked: _Asked, own: int, most: int, *, stable: bool) -> int:
    """How many batches it tells of."""
    result, request = asked.result, asked.request
    closed_time, limit = closed(partition, own, stable=stable)
    result.closed_time, result.closed_offset = closed_time, limit
    start, end = request.start_offset, min(request.end_offset, limit)
    found: list[tuple[int, int, int]] = []
    result.next_offset = request.end_offset
    if start < end:
        found = partition.look_up(lambda log: log.spans(start, end, most))
        result.spans = pack_spans(Span(*it) for it in found)
        if len(found) >= most:
            result.next_offset = found[-1][1] + 1 if found else start
    behind = partition.look_up(lambda log: log.spans(request.end_offset, limit))
    result.following_offset = behind[0][0] if behind else max(limit, request.end_offset)
    if request.after != NO_TIME:
        offset = partition.look_up(lambda log: log.offset_for_hlc(request.after + 1))
        result.after_offset = min(offset, limit)
    return len(found)
