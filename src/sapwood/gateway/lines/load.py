"""Who has how many clients: each gateway says so when it changes, and hears of the others.

The topic for it is made for the first client of all. A gateway that is new says so, and the others
repeat what they have. What was said holds until it is said anew: whether somebody is still there is
seen when a client is to be sent there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from sapwood.client import ClientClosed, KafkaError, Message
from sapwood.client.admin import NewTopic
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.lines.feed import Listener

logger = logging.getLogger("sapwood.gateway")

TOPIC = "__sapwood_load"
FEWER = 2
"""A server that has so many clients less than this one is where new ones are sent."""
PAUSE_S = 0.2
LOOK_S = 2.0
AGAIN_S = 5.0
REACHED_S = 0.3


class Load(msgspec.Struct):
    node: int | None
    host: str
    port: int
    clients: int
    is_new: bool = False


class Loads:
    def __init__(self, cluster: Cluster, host: str, port: int, count: Callable[[], int]) -> None:
        self._cluster = cluster
        self._place = host, port
        self._count = count
        self._others: dict[tuple[str, int], Load] = {}
        self._news = asyncio.Event()
        self._news.set()
        self._task = asyncio.ensure_future(self._run())

    def changed(self) -> None:
        self._news.set()

    async def better_place(self) -> tuple[str, int] | None:
        """Where a new client is better off, if anywhere."""
        others = sorted(self._others.values(), key=lambda it: it.clients)
        for each in others:
            if each.clients + FEWER > self._count():
                break
            if await _is_reached(each.host, each.port):
                return each.host, each.port
            self._others.pop((each.host, each.port), None)
        return None

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        listener: Listener | None = None
        while True:
            try:
                if listener is None:
                    while not (self._count() or await self._is_there()):  # noqa: ASYNC110 - others say
                        await asyncio.sleep(LOOK_S)
                    with contextlib.suppress(KafkaError):  # it is there already
                        await self._cluster.talker.create_topics([NewTopic(TOPIC, 1)])
                    found = Listener(self._hear)
                    await self._cluster.feed.listen(TOPIC, found)
                    listener = found
                    await self._say(is_new=True)
                await self._news.wait()
                self._news.clear()
                await self._say()
                await asyncio.sleep(PAUSE_S)
            except (KafkaError, ClientClosed) as error:
                logger.debug("the load isn't announced: %s", error)
                self._news.set()
                await asyncio.sleep(AGAIN_S)

    async def _is_there(self) -> bool:
        return not (await self._cluster.metadata([TOPIC])).topics[TOPIC].error_code

    async def _say(self, *, is_new: bool = False) -> None:
        host, port = self._place
        load = Load(self._cluster.node_id, host, port, self._count(), is_new)
        await (await self._cluster.talker.send(TOPIC, msgspec.json.encode(load)))

    def _hear(self, message: Message) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            load = msgspec.json.decode(message.value or b"", type=Load)
            if (load.host, load.port) == self._place:
                return
            self._others[load.host, load.port] = load
            if load.is_new:
                self._news.set()


async def _is_reached(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(REACHED_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
