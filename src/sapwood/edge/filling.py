"""What fills the cache: fetches at the parent that wait there for more, a few at a time.

A partition is in at most one of them. One that comes to be wanted later gets a fetch of its own,
and goes along with others when one of those returns.
"""

import asyncio
import logging
from collections.abc import Callable

from sapwood.edge.cache import Cache, CachedPartition
from sapwood.edge.uplink import Lost, Uplink
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, MalformedMessage

log = logging.getLogger("sapwood.edge")

MAX_WAIT_MS = 500
MAX_BYTES = 8 << 20
PARTITION_MAX_BYTES = 1 << 20
MOST_FETCHES = 4
ANSWER_S = 10.0
PAUSE_S = 0.05
GATHER_S = 0.01
"""Between an answer and the next fetch: at high rates a parent is asked for many records at a
time, not once for each. At low rates nothing waits for it: the next fetch is there before them."""
MUCH = 64 << 10
"""Bytes of an answer after which there is no such break: this edge is behind."""
UNWANTED_AFTER_S = 30.0
SWEEP_S = 5.0

_GONE = {
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OFFSET_OUT_OF_RANGE,
}
"""What is cached is not what is asked for any more. Who reads it is told why from above."""


class Filling:
    def __init__(self, cache: Cache, uplink: Uplink, on_gone: Callable[[bytes], None]) -> None:
        """`on_gone` is told of topics that don't exist any more."""
        self._cache = cache
        self._on_gone = on_gone
        self._uplink = uplink
        self._loop = asyncio.get_running_loop()
        self._idle: dict[CachedPartition, None] = {}
        self._fetches: dict[asyncio.Task[None], None] = {}
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        self.fetches_total = 0

    def add(self, partition: CachedPartition) -> None:
        self._idle[partition] = None
        self._loop.call_soon(self._start)  # others may come in the same turn

    async def close(self) -> None:
        self._sweeper.cancel()
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)

    def _start(self) -> None:
        wanted = [it for it in self._idle if not it.is_gone]
        if not wanted or len(self._fetches) >= MOST_FETCHES:
            return
        self._idle.clear()
        task = asyncio.ensure_future(self._fetch(wanted))
        self._fetches[task] = None
        task.add_done_callback(lambda _: self._ended(task, wanted))

    def _ended(self, task: "asyncio.Task[None]", wanted: list[CachedPartition]) -> None:
        self._fetches.pop(task, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a fetch at the parent failed", exc_info=error)
        self._idle.update(dict.fromkeys(it for it in wanted if not it.is_gone))
        self._start()

    async def _fetch(self, wanted: list[CachedPartition]) -> None:
        self.fetches_total += 1
        try:
            answer = await self._uplink.ask(
                Api.FETCH, _request(wanted), timeout_s=ANSWER_S, repeatable=False
            )
        except Lost:
            await asyncio.sleep(PAUSE_S)
            return
        by_key = {it.key: it for it in wanted}
        is_refused = answer.error_code != 0
        size = 0
        for topic in answer.responses:
            for it in topic.partitions:
                partition = by_key.get((topic.topic_id, it.partition_index))
                if partition is not None and not partition.is_gone:
                    is_refused |= not self._take(partition, it)
                    size += len(it.records or b"")
        if is_refused:
            await asyncio.sleep(PAUSE_S)
        elif 0 < size < MUCH:
            await asyncio.sleep(GATHER_S)

    def _take(self, partition: CachedPartition, answer: Struct) -> bool:
        """False: not now."""
        if answer.error_code:
            if answer.error_code in _GONE:
                log.info("%s is not cached any more: error %d", partition, answer.error_code)
                self._cache.drop(partition)
                self._on_gone(partition.key[0])
            return False
        before = (partition.end_offset, partition.high_watermark, partition.last_stable_offset)
        try:
            if answer.records:
                self._cache.extend(partition, answer.records)
        except MalformedMessage:
            log.exception("the parent sent what can't be cached")
            self._cache.drop(partition)
            return False
        partition.learn(answer)
        if before != (
            partition.end_offset,
            partition.high_watermark,
            partition.last_stable_offset,
        ):
            partition.wake()
        return True

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        unwanted_since = self._loop.time() - UNWANTED_AFTER_S
        for partition in list(self._cache.partitions.values()):
            if partition.wanted_at < unwanted_since and not partition.is_awaited:
                self._cache.drop(partition)
                self._idle.pop(partition, None)


def _request(wanted: list[CachedPartition]) -> Struct:
    topics: dict[bytes, list[Struct]] = {}
    for partition in wanted:
        topic_id, index = partition.key
        topics.setdefault(topic_id, []).append(
            Struct(
                partition=index,
                current_leader_epoch=-1,
                fetch_offset=partition.end_offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=PARTITION_MAX_BYTES,
            )
        )
    return Struct(
        max_wait=MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=MAX_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic_id=it, partitions=partitions) for it, partitions in topics.items()],
        forgotten_topics_data=[],
        rack_id="",
    )
