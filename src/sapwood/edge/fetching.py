"""Fetch: from the cache, or, what lies before it or isn't there, from above; and waiting for more.

Whether an offset is out of range only a leader can say. A client may come from a sibling that was
ahead of this cache: it waits, and if that was in vain the question goes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from sapwood.edge.cache import Cache, CachedPartition, Fenced, Key
from sapwood.edge.filling import Filling
from sapwood.edge.topics import Topics
from sapwood.edge.uplink import Lost
from sapwood.server import Request, Unanswerable
from sapwood.wire.apis import Api
from sapwood.wire.batch import read_header
from sapwood.wire.codec import Buffer, Struct, decode_request, decode_response
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import (
    decode_response_header,
    encode_request_frame,
    encode_response_frame,
)

MAX_WAIT_MS = 60_000
MAX_BYTES = 8 << 20
"""Of one answer. Clients ask for up to 50 MiB at once; giving less bounds memory."""
LOOK_S = 0.05
READ_COMMITTED = 1
_LENGTH_BYTES = 4

AskUp = Callable[[Request, Buffer], Awaitable[Struct]]
"""Has a frame answered as if the request's client had sent it."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """One partition of a request."""

    topic: Struct
    request: Struct
    partition: CachedPartition | None = None


class Fetching:
    def __init__(self, cache: Cache, filling: Filling, topics: Topics, ask_up: AskUp) -> None:
        self.cache = cache
        self.filling = filling
        self.topics = topics
        self.ask_up = ask_up
        self.cached_bytes_total = 0
        self.passed_total = 0

    def fetch(self, request: Request) -> list[Buffer] | Awaitable[list[Buffer]]:
        version = request.header.api_version
        message = decode_request(Api.FETCH, version, request.body, request.body_offset)
        if getattr(message, "session_id", 0) != 0:
            # Sessions are never opened: whoever names one confuses this node with another.
            return _encoded(request, [], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        attempt = _Attempt(self, request, message)
        if attempt.read():
            return attempt.encoded()
        return attempt.wait()


class _Attempt:
    """The partitions that a request names, read as often as it takes."""

    def __init__(self, fetching: Fetching, request: Request, message: Struct) -> None:
        self._fetching = fetching
        self._request = request
        self._message = message
        self._stable = message.isolation_level == READ_COMMITTED
        self._loop = asyncio.get_running_loop()
        wait_ms = min(max(message.max_wait, 0), MAX_WAIT_MS)
        self._deadline = self._loop.time() + wait_ms / 1000
        self._news = asyncio.Event()
        self._wanted = [_Wanted(topic, it) for topic in message.topics for it in topic.partitions]
        self._answers: dict[_Wanted, Struct] = {}
        self._passed: dict[_Wanted, Struct] = {}
        self._read_bytes = 0
        self._is_fenced = False

    # -- from the cache ----------------------------------------------------------------------

    def read(self) -> bool:
        """Whether what is there is enough for an answer."""
        self._answers.clear()
        self._passed.clear()
        self._read_bytes = 0
        self._is_fenced = False
        now = self._loop.time()
        budget = max(0, min(self._message.max_bytes, MAX_BYTES))
        is_complete = True
        for wanted in self._wanted:
            partition = self._find(wanted)
            if partition is None:
                is_complete = False
                continue
            partition.wanted_at = now
            self._answers[wanted] = self._read_one(
                partition, wanted.request, budget - self._read_bytes
            )
        enough = self._read_bytes >= self._message.min_bytes or not self._wanted
        enough = enough or self._is_fenced  # bad news don't wait
        return is_complete and enough

    def _find(self, wanted: _Wanted) -> CachedPartition | None:
        key = self._key(wanted)
        partition = None if key is None else self._fetching.cache.partitions.get(key)
        if partition is not None and not partition.holds(wanted.request.fetch_offset):
            partition = None
        wanted.partition = partition
        return partition

    def _key(self, wanted: _Wanted) -> Key | None:
        topic_id = getattr(wanted.topic, "topic_id", None)
        if topic_id is None:
            topic_id = self._fetching.topics.ids.get(wanted.topic.topic)
        return None if topic_id is None else (topic_id, wanted.request.partition)

    def _read_one(self, partition: CachedPartition, request: Struct, budget: int) -> Struct:
        offset = request.fetch_offset
        # The first batch is given however large it is: a client whose limit is smaller than a
        # batch would else ask for it for ever.
        result = Struct(
            partition_index=request.partition,
            error_code=0,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log_start_offset,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=[],
        )
        try:
            views = partition.read(
                offset,
                min(request.partition_max_bytes, max(budget, 0)),
                at_least_one=self._read_bytes == 0,
                stable=self._stable,
                epoch=getattr(request, "current_leader_epoch", -1),
            )
        except Fenced:
            # As a leader would: the client looks who leads, makes sure that what it has is what
            # they have, and goes on. If it got these first, it would hold them against what it
            # is told of the epoch before, and think that the log was cut.
            result.error_code = int(ErrorCode.FENCED_LEADER_EPOCH)
            self._is_fenced = True
            return result
        size = sum(map(len, views))
        self._read_bytes += size
        self._fetching.cached_bytes_total += size
        result.records = views
        if self._stable:
            result.aborted_transactions = (
                partition.aborted(offset, _end_offset(views)) if views else []
            )
        return result

    # -- waiting, and asking above -----------------------------------------------------------

    async def wait(self) -> list[Buffer]:
        try:
            await self._fetching.topics.resolve(
                {it.topic.topic for it in self._wanted if getattr(it.topic, "topic", None)}
            )
            while not self.read():
                missing = [it for it in self._wanted if it.partition is None]
                if missing and await self._pass_up(missing):
                    break
                if self._loop.time() >= self._deadline:
                    await self._ask_about_those_ahead()
                    break
                await self._await_news()
        except Lost as error:
            raise Unanswerable(str(error)) from error
        return self.encoded()

    async def _await_news(self) -> None:
        """Until a partition has more, or the time is up; or for a moment, if one isn't cached."""
        found = [self._find(it) for it in self._wanted]  # some are cached only now
        partitions = [it for it in found if it is not None]
        left_s = max(0.0, self._deadline - self._loop.time())
        if len(partitions) < len(found):
            left_s = min(left_s, LOOK_S)
        self._news.clear()
        for partition in partitions:
            partition.listen(self)
        timer = self._loop.call_later(left_s, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()
            for partition in partitions:
                partition.unlisten(self)

    def changed(self, partition: CachedPartition) -> None:
        self._news.set()

    async def _ask_about_those_ahead(self) -> None:
        if self._request.connection.node is not None:
            return  # an edge asks for itself
        ahead = [
            it
            for it in self._wanted
            if it.partition is not None and it.request.fetch_offset > it.partition.high_watermark
        ]
        if ahead:
            await self._pass_up(ahead)

    async def _pass_up(self, wanted: list[_Wanted]) -> bool:
        """Answers from above; whether there is anything in them that can't wait."""
        fetching, header = self._fetching, self._request.header
        fetching.passed_total += 1
        message = Struct(
            **{
                **vars(self._message),
                "max_wait": 0,
                "max_bytes": min(self._message.max_bytes, MAX_BYTES),
                "topics": _grouped(wanted),
                "forgotten_topics_data": [],
                "rack_id": "",  # nobody is to be sent to a replica that it can't see
            }
        )
        frame = b"".join(
            encode_request_frame(
                Api.FETCH, header.api_version, header.correlation_id, header.client_id, message
            )
        )
        answer = await fetching.ask_up(self._request, memoryview(frame)[_LENGTH_BYTES:])
        if answer.error_code or not answer.frame:
            raise Unanswerable(answer.error_message or "no answer from above")
        _, body = decode_response_header(Api.FETCH, header.api_version, answer.frame)
        found = decode_response(Api.FETCH, header.api_version, answer.frame, body)
        by_place = {_place(it.topic, it.request.partition): it for it in wanted}
        is_urgent = False
        for topic in found.responses:
            for it in topic.partitions:
                known = by_place.get(_place(topic, it.partition_index))
                if known is not None:
                    is_urgent |= self._take_passed(known, it)
        return is_urgent

    def _take_passed(self, wanted: _Wanted, answer: Struct) -> bool:
        self._passed[wanted] = answer
        answer.preferred_read_replica = -1
        if hasattr(answer, "current_leader"):
            del answer.current_leader
        if answer.error_code:
            return True
        size = len(answer.records or b"")
        self._read_bytes += size
        self._begin(wanted, answer)
        return size > 0

    def _begin(self, wanted: _Wanted, answer: Struct) -> None:
        """Cache what comes after the end that this reader has now reached."""
        key, fetching = self._key(wanted), self._fetching
        if key is None:
            return
        offset = wanted.request.fetch_offset
        if answer.records:
            offset = max(offset, _end_offset([answer.records]))
        limit = answer.last_stable_offset if self._stable else answer.high_watermark
        known = fetching.cache.partitions.get(key)
        if offset < limit or offset > answer.high_watermark:
            return
        if known is not None:
            return
        partition = fetching.cache.begin(key, offset, self._loop.time())
        partition.learn(answer)
        fetching.filling.add(partition)

    # -- the answer --------------------------------------------------------------------------

    def encoded(self) -> list[Buffer]:
        topics = _grouped(self._wanted, self._answers | self._passed)
        return _encoded(self._request, topics, ErrorCode.NONE)


def _place(topic: Struct, index: int) -> tuple[object, object, int]:
    return getattr(topic, "topic", None), getattr(topic, "topic_id", None), index


def _grouped(
    wanted: Iterable[_Wanted], answers: dict[_Wanted, Struct] | None = None
) -> list[Struct]:
    """By topic: the partitions as they were asked for, or the answers that there are to them."""
    topics: dict[int, Struct] = {}
    for it in wanted:
        part = it.request if answers is None else answers.get(it)
        if part is None:
            continue
        topic = topics.get(id(it.topic))
        if topic is None:
            topic = topics[id(it.topic)] = Struct(**{**vars(it.topic), "partitions": []})
        topic.partitions.append(part)
    return list(topics.values())


def _end_offset(views: list[memoryview]) -> int:
    """Behind the last batch."""
    view, position, next_offset = views[-1], 0, -1
    while position < len(view):
        header = read_header(view, position)
        position, next_offset = position + header.size, header.next_offset
    return next_offset


def _encoded(request: Request, topics: list[Struct], error_code: int) -> list[Buffer]:
    return encode_response_frame(
        Api.FETCH,
        request.header.api_version,
        request.header.correlation_id,
        Struct(
            throttle_time=0,
            error_code=int(error_code),
            session_id=0,
            responses=topics,
            node_endpoints=[],
        ),
    )
