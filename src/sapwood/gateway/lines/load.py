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
from sapwood.gateway.tree import Host, Port, nodes_of
from sapwood.gateway.words import Count

logger = logging.getLogger("sapwood.gateway")

TOPIC = "__sapwood_load"
FEWER = 2
"""A server that has so many clients less than this one is where new ones are sent."""
PAUSE_S = 0.2
LOOK_S = 2.0
AGAIN_S = 5.0
REACHED_S = 0.3
MOST_OTHERS = 10_000


Where = tuple[str, int]


class Load(msgspec.Struct):
    node: int | None
    host: Host
    port: Port
    clients: Count
    is_new: bool = False


def _identity(load: Load) -> Where | int:
    """Of the gateway: it may be elsewhere after a restart."""
    return (load.host, load.port) if load.node is None else load.node


class Loads:
    def __init__(
        self,
        cluster: Cluster,
        listening: Where,
        advertised: Where | None,
        count: Callable[[], int],
    ) -> None:
        """`advertised` is where clients are sent; by default to the host of the node beside it."""
        self._cluster = cluster
        self._listening = listening
        self._place = advertised
        self._count = count
        self._others: dict[Where | int, Load] = {}
        self._news = asyncio.Event()
        self._news.set()
        self._task = asyncio.ensure_future(self._run())

    def changed(self) -> None:
        self._news.set()

    async def better_place(self) -> tuple[str, int] | None:
        """Where a new client is better off, if anywhere."""
        others = sorted(self._others.values(), key=lambda it: it.clients)
        others = [it for it in others if it.clients + FEWER <= self._count()]
        hosts = await self._hosts() if others else frozenset()
        for each in others:
            if each.host not in hosts:
                continue
            if await _is_reached(each.host, each.port):
                return each.host, each.port
            self._others.pop(_identity(each), None)
        return None

    async def _hosts(self) -> frozenset[str]:
        """Of the cluster's nodes. Anybody who reaches a node may say that he has no clients."""
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(REACHED_S):
                return frozenset(it.host for it in await nodes_of(self._cluster))
        return frozenset()

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
                    self._place = self._place or await self._beside_the_node()
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

    async def _beside_the_node(self) -> Where:
        """What it listens at may mean something on its own host only."""
        host, port = self._listening
        nodes = await nodes_of(self._cluster)
        own = (it.host for it in nodes if it.id == self._cluster.node_id)
        return next(own, host), port

    async def _say(self, *, is_new: bool = False) -> None:
        host, port = self._place or self._listening
        load = Load(self._cluster.node_id, host, port, self._count(), is_new)
        await (await self._cluster.talker.send(TOPIC, msgspec.json.encode(load)))

    def _hear(self, message: Message) -> None:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            load = msgspec.json.decode(message.value or b"", type=Load)
            own = Load(self._cluster.node_id, *(self._place or self._listening), 0)
            if _identity(load) == _identity(own):
                return
            self._others[_identity(load)] = load
            if len(self._others) > MOST_OTHERS:
                del self._others[next(iter(self._others))]
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
