"""Topics as they grow, each read once for all who listen to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sapwood.client import AsyncKafkaClient, KafkaError, Message
from sapwood.client.cluster import TopicPartition
from sapwood.client.fetcher import Chunk, Fetcher, Unreadable, read_what_can_be
from sapwood.client.messages import received
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.client.procedures import Procedure, Wait, wait_for

logger = logging.getLogger("sapwood.gateway")

LOOK_S = 5.0
"""How often topics are looked at for partitions that are new."""
TURN_RECORDS = 500
AGAIN_S = 0.5


class Listener:
    """Who is told of a topic's messages, from its first offsets on, and of what can't be read."""

    def __init__(
        self,
        tell: Callable[[Message], None],
        warn: Callable[[Unreadable], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._warn = warn
        self._first: dict[TopicPartition, int] | None = None
        self._early: list[Message | Unreadable] = []

    def hear(self, news: Message | Unreadable) -> None:
        if self._first is None:
            self._early.append(news)
        elif news.offset < self._first.get((news.topic, news.partition), 0):
            pass
        elif isinstance(news, Unreadable):
            self._warn(news)
        else:
            self._tell(news)

    def begin(self, first: dict[TopicPartition, int]) -> None:
        """What has come meanwhile comes now, if it isn't from before."""
        self._first = first
        early, self._early = self._early, []
        for news in early:
            self.hear(news)


class Feed:
    def __init__(self, kafka: AsyncKafkaClient) -> None:
        self._kafka = kafka
        self._listeners: dict[str, set[Listener]] = {}
        self._fetcher: Fetcher | None = None
        self._read: dict[TopicPartition, int] = {}
        """What is read, and up to where it was told."""
        self._left: dict[TopicPartition, int] = {}
        """The same of what can't be read at the moment."""
        self._ids: dict[str, bytes] = {}
        self._followed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def listen(self, topic: str, listener: Listener) -> None:
        """On return, whatever is sent from then on will be told."""
        ends = await self._ends(topic)
        listeners = self._listeners.setdefault(topic, set())
        listeners.add(listener)
        if not self._tasks:
            self._tasks = [
                asyncio.ensure_future(_without_end(self._deliver)),
                asyncio.ensure_future(_without_end(self._look)),
            ]
        # Others may have listened before what was read had to be left, and are to miss nothing.
        self._follow({key: min(end, self._left.get(key, end)) for key, end in ends.items()})
        try:
            listener.begin(ends if len(listeners) == 1 else await self._ends(topic))
        except BaseException:
            self.leave(topic, listener)
            raise

    def leave(self, topic: str, listener: Listener) -> None:
        listeners = self._listeners.get(topic, set())
        listeners.discard(listener)
        if not listeners:
            self._listeners.pop(topic, None)
            self._forget(topic)
            for key in [it for it in self._read if it[0] == topic]:
                del self._read[key]
                if self._fetcher is not None:
                    self._fetcher.release(key)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _follow(self, ends: dict[TopicPartition, int]) -> None:
        if self._fetcher is None:
            self._fetcher = self._kafka.core.fetch({}, {})
        for key, offset in ends.items():
            if key not in self._read:
                self._read[key] = offset
                self._left.pop(key, None)
                self._fetcher.seek(key, offset)
        self._followed.set()
        self._kafka.schedule()

    def _forget(self, topic: str) -> None:
        self._ids.pop(topic, None)
        for key in [it for it in self._left if it[0] == topic]:
            del self._left[key]

    async def _ends(self, topic: str) -> dict[TopicPartition, int]:
        core, now_ms = self._kafka.core, self._kafka.now_ms
        known = core.usable_topic(topic, None)
        if known is None:
            known = await self._kafka.run(wait_for(core.await_topic(topic, None, now_ms())))
        self._ids.setdefault(topic, known.topic_id)
        keys = [(topic, each) for each in known.partitions]
        found = await self._kafka.list_offsets(dict.fromkeys(keys, LATEST))
        return {key: each.offset for key, each in found.items()}

    async def _deliver(self) -> None:
        while True:
            fetcher = self._fetcher
            try:
                chunk = None if fetcher is None else fetcher.take()
                if chunk is not None:
                    self._kafka.schedule()
                    await self._tell(chunk)
            except KafkaError as error:
                await self._begin_anew(error)
                continue
            if fetcher is None or chunk is None:
                await self._more(fetcher)

    async def _tell(self, chunk: Chunk) -> None:
        """KafkaError at a batch that was damaged on the way: it is to be fetched again."""
        key = chunk.topic, chunk.partition
        for count, found in enumerate(read_what_can_be(chunk), 1):
            news: Message | Unreadable
            if isinstance(found, Unreadable):
                logger.warning("%s: what is behind them is told", found)
                news, end = found, found.next_offset
            else:
                news, end = received(found), found.offset + 1
            for listener in tuple(self._listeners.get(chunk.topic, ())):
                try:
                    listener.hear(news)
                except Exception:  # the others have done nothing
                    logger.exception("a listener to %s can't be told", chunk.topic)
            if key in self._read:
                self._read[key] = end
            if count % TURN_RECORDS == 0:  # others want to be served, too
                await asyncio.sleep(0)
        if key in self._read:
            self._read[key] = chunk.next_offset

    async def _more(self, fetcher: Fetcher | None) -> None:
        """Until there may be something to take."""
        if fetcher is None or not self._read:
            # Who reads nothing is at its end, and has arrived there whenever it is asked: to wait
            # for that would be to wait for nothing, for ever, and let nobody else run.
            self._followed.clear()
            await self._followed.wait()
            return
        until_ms = self._kafka.now_ms() + 1000 * LOOK_S
        await self._kafka.run(_first(Wait((fetcher.arrival(),), until_ms)))

    async def _begin_anew(self, error: KafkaError) -> None:
        """A topic was deleted, or records were before they were read: go on with what is there."""
        logger.warning("listening anew: %s", error)
        if self._fetcher is not None:
            self._kafka.core.stop_fetching(self._fetcher, self._kafka.now_ms())
        self._fetcher, self._left, self._read = None, {**self._left, **self._read}, {}
        await asyncio.sleep(AGAIN_S)
        await self._look_again()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look_again()

    async def _look_again(self) -> None:
        """For partitions that aren't read: new ones, and those that were lost from sight."""
        for topic in list(self._listeners):
            try:
                await self._follow_all(topic)
            except KafkaError as error:
                logger.debug("nobody hears of %s now: %s", topic, error)

    async def _follow_all(self, topic: str) -> None:
        found = (await self._kafka.metadata([topic])).topics[topic]
        if self._ids.setdefault(topic, found.topic_id) != found.topic_id and found.partitions:
            # It was deleted, and what is there under its name is new, from the first message on.
            self._forget(topic)
            self._ids[topic] = found.topic_id
            for listener in self._listeners.get(topic, ()):
                listener.begin({})
        keys = [key for each in found.partitions if (key := (topic, each)) not in self._read]
        if not keys:
            return
        starts = await self._kafka.list_offsets(dict.fromkeys(keys, EARLIEST))
        ends = await self._kafka.list_offsets(dict.fromkeys(keys, LATEST))
        if topic in self._listeners:
            self._follow(
                {
                    key: max(starts[key].offset, min(self._left.get(key, 0), ends[key].offset))
                    for key in keys
                }
            )


async def _without_end(task: Callable[[], Awaitable[None]]) -> None:
    """All who listen depend on it."""
    while True:
        try:
            await task()
        except Exception:
            logger.exception("listening anew")
            await asyncio.sleep(AGAIN_S)


def _first(wait: Wait) -> Procedure[None]:
    yield wait
