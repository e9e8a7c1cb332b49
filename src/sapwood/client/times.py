"""When batches were appended by the cluster's clock, and which times are over.

Times are readings of the cluster's hybrid clock: milliseconds, then a 16-bit counter, in one
number. Within a partition every batch has a later one than the batch before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sapwood.client.calls import Call, Controller, Router
from sapwood.client.cluster import TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Ticket
from sapwood.client.errors import error_for
from sapwood.client.offsets import EARLIEST
from sapwood.client.pool import MAIN_LANE
from sapwood.client.procedures import Procedure, wait_for
from sapwood.client.scatter import Scatter, Scatterer, Verdict
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from sapwood.wire.private.times import NO_TIME

if TYPE_CHECKING:
    from sapwood.client.core import ClientCore

CLOSING_MS = 500
"""How long a leader may wait for a time to be closed before it answers."""

Clock = Callable[[], float]


class Asked(NamedTuple):
    """About the batches with an offset in [start, end), and those appended after a time."""

    start: int = 0
    end: int = 0
    after: int = NO_TIME


class Wanted(NamedTuple):
    """The answer may wait for a while until this time is closed.

    Brokers answer in order: what may have to wait needs a lane of its own.
    """

    time: int = 0
    max_wait_ms: int = 0
    lane: int = MAIN_LANE


class Timed(NamedTuple):
    """No record at `closed_offset` or behind it has, or will ever have, `closed_time` or less."""

    topic_id: bytes
    closed_time: int
    closed_offset: int
    spans: bytes
    """First offset, last offset and time of each batch: see `wire.private.times.unpack_spans`."""
    next_offset: int
    """Where to ask on; the end that was asked for if that was all."""
    following_offset: int
    """Where the first batch behind the asked ones begins, or the closed offset."""
    after_offset: int


class TopicTimes(NamedTuple):
    """What else these topics may ever have has no record of `closed_time` or before."""

    closed_time: int
    topics: dict[str, tuple[bytes, int]]
    """Id, and number of partitions; -1 if there is no such topic."""


def append_times(
    config: ClientConfig,
    scatterer: Scatterer,
    asked: Mapping[TopicPartition, Asked],
    wanted: Wanted,
    now_ms: float,
) -> Ticket[dict[TopicPartition, Timed]]:
    def build(items: dict[TopicPartition, Asked]) -> Struct:
        topics: dict[str, list[Struct]] = {}
        for (topic, partition), it in items.items():
            topics.setdefault(topic, []).append(
                Struct(
                    partition=partition, start_offset=it.start, end_offset=it.end, after=it.after
                )
            )
        return Struct(
            isolation_level=config.isolation_level,
            wanted=wanted.time,
            max_wait_ms=wanted.max_wait_ms,
            topics=[Struct(name=name, partitions=each) for name, each in topics.items()],
        )

    def read(answer: Struct) -> Iterator[Verdict[Timed]]:
        for topic in answer.topics:
            for it in topic.partitions:
                timed = Timed(
                    topic.topic_id,
                    it.closed_time,
                    it.closed_offset,
                    it.spans,
                    it.next_offset,
                    it.following_offset,
                    it.after_offset,
                )
                yield Verdict(topic.name, it.partition, it.error_code, timed)

    ticket: Ticket[dict[TopicPartition, Timed]] = Ticket()
    deadline_ms = now_ms + config.api_timeout_ms
    scatterer.submit(
        Scatter(
            Api.APPEND_TIMES, dict(asked), build, read, ticket, now_ms, deadline_ms, wanted.lane
        )
    )
    return ticket


def topic_times(
    config: ClientConfig, router: Router, topics: Iterable[str], wanted: Wanted, now_ms: float
) -> Ticket[TopicTimes]:
    message = Struct(
        wanted=wanted.time, max_wait_ms=wanted.max_wait_ms, topics=list(dict.fromkeys(topics))
    )

    def read(answer: Struct) -> TopicTimes:
        if answer.error_code:
            raise error_for(answer.error_code, "closed times", answer.error_message)
        counted = {it.name: (it.topic_id, it.partitions) for it in answer.topics}
        return TopicTimes(answer.closed_time, counted)

    ticket: Ticket[TopicTimes] = Ticket()
    deadline_ms = now_ms + config.api_timeout_ms
    router.submit(
        Call(
            Api.TOPIC_TIMES,
            message,
            Controller(),
            read,
            ticket,
            now_ms,
            deadline_ms,
            lane=wanted.lane,
        )
    )
    return ticket


# -- for programs: procedures over the core


class ClosedTimes(NamedTuple):
    """Up to where the order of some topics is settled for good.

    All records of `time` or before, of these topics, are in these partitions, below these offsets.
    """

    time: int
    offsets: dict[TopicPartition, int]
    topic_ids: dict[str, bytes]


def closed_times(
    core: ClientCore, clock: Clock, topics: Iterable[str], *, wait_ms: int = CLOSING_MS
) -> Procedure[ClosedTimes]:
    """Now, or as of a moment ago: it waits that long for what the cluster's clock shows."""
    lane = core.new_lane()
    try:
        wanted = Wanted(core.cluster_clock.last, wait_ms, lane)
        listed = yield from wait_for(core.topic_times(topics, wanted, clock()))
        for topic, (_, count) in listed.topics.items():
            if count < 0:
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        keys = [(it, n) for it, (_, count) in listed.topics.items() for n in range(count)]
        timed = yield from wait_for(
            core.append_times(dict.fromkeys(keys, Asked()), wanted, clock())
        )
    finally:
        core.close_lane(lane, clock())
    return ClosedTimes(
        min([listed.closed_time, *(it.closed_time for it in timed.values())]),
        {key: timed[key].closed_offset for key in keys},
        {topic: topic_id for topic, (topic_id, _) in listed.topics.items()},
    )


def offsets_after(
    core: ClientCore, clock: Clock, keys: Iterable[TopicPartition], time: int
) -> Procedure[dict[TopicPartition, int]]:
    """Where the records begin that were appended after a time. If that is closed, for good."""
    if time <= 0:
        asked = dict.fromkeys(keys, EARLIEST)
        found = yield from wait_for(core.list_offsets(asked, clock()))
        return {key: it.offset for key, it in found.items()}
    timed = yield from wait_for(
        core.append_times(dict.fromkeys(keys, Asked(after=time)), Wanted(), clock())
    )
    return {key: it.after_offset for key, it in timed.items()}


def spans(
    core: ClientCore, clock: Clock, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> Procedure[dict[TopicPartition, bytes]]:
    """All batches with an offset in these ranges, packed; see `unpack_spans`."""
    found = dict.fromkeys(ranges, b"")
    left = {key: Asked(*each) for key, each in ranges.items() if each[0] < each[1]}
    while left:
        timed = yield from wait_for(core.append_times(left, Wanted(), clock()))
        asked, left = left, {}
        for key, it in timed.items():
            found[key] += it.spans
            if it.next_offset < asked[key].end:
                left[key] = Asked(it.next_offset, asked[key].end)
    return found
