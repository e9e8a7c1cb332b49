"""The cluster behind the gateway: protocol clients, and what handlers ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from sapwood.client import AsyncKafkaClient, ErrorCode, KafkaError
from sapwood.client.cluster import Metadata, Topic, TopicPartition
from sapwood.client.config import READ_COMMITTED
from sapwood.client.errors import error_for
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.client.own import (
    KnownClient,
    KnownClients,
    known_clients,
    node_status,
    offers_outbox,
    outbox,
)
from sapwood.client.procedures import Procedure, wait_for
from sapwood.gateway.lines.feed import Feed
from sapwood.gateway.problems import Refused
from sapwood.gateway.sending import Sender
from sapwood.gateway.supervised import Supervised

T = TypeVar("T")

ANSWER_MS = 5_000
"""How long the cluster may take for one step; a request may be made of several."""

_PATIENCE: dict[str, Any] = {
    "client_id": "sapwood-gateway",
    "allow_auto_create": False,
    "isolation_level": READ_COMMITTED,
    "bootstrap_timeout_ms": 2_000,
    "connect_timeout_ms": 2_000,
    "request_timeout_ms": ANSWER_MS,
    "api_timeout_ms": ANSWER_MS,
    "delivery_timeout_ms": ANSWER_MS,
    "metadata_max_age_ms": 10_000,  # for partitions that are new
    "topic_wait_ms": 200,  # a topic is known everywhere once its creation is acknowledged
}


@dataclass(slots=True)
class Ends:
    """Where a partition begins and ends, for readers of committed records."""

    start: int
    end: int


class Cluster:
    """`node_id` is the node beside which this gateway runs, if it runs beside one."""

    def __init__(
        self, bootstrap: Sequence[str], node_id: int | None, supervised: Supervised | None
    ) -> None:
        self.node_id = node_id
        self.supervised = supervised
        self.closing = asyncio.Event()
        # A node answers in order: a produce that waits for its quorum must not hold reads up.
        patience = _PATIENCE
        if node_id is not None:  # edges spread their clients by name
            patience = {**_PATIENCE, "client_id": f"{_PATIENCE['client_id']}-{node_id}"}
        self.reader = AsyncKafkaClient(bootstrap, **patience)
        self.writer = AsyncKafkaClient(bootstrap, **patience)
        # Lines are for people, to whom a topic is a word that two of them use.
        creating = {"allow_auto_create": True, "topic_wait_ms": ANSWER_MS}
        self.talker = AsyncKafkaClient(bootstrap, **{**patience, **creating})
        self.writing = Sender(self.writer)
        self.speaking = Sender(AsyncKafkaClient(bootstrap, **{**patience, **creating}))
        self.feed = Feed(self.talker)
        self.turns = Turns()
        self.places: WeakValueDictionary[tuple[str, str], object] = WeakValueDictionary()
        """Of consumers, by topic and name, while somebody uses them."""
        self._bootstrap = bootstrap

    async def close(self) -> None:
        await self.feed.close()
        await self.reader.close()
        await self.writer.close()
        await self.talker.close()
        await self.speaking.kafka.close()

    async def ask_supervisor(self, question: str, **more: Any) -> dict[str, Any]:
        if self.supervised is None:
            raise Refused(409, "This gateway wasn't started by `sapwood up`, which could do that")
        try:
            return await self.supervised.ask(question, **more)
        except TimeoutError as error:
            raise Refused(503, "It isn't ready yet: look a moment later") from error

    @asynccontextmanager
    async def as_node(self, secret: bytes) -> AsyncIterator[AsyncKafkaClient]:
        """For what only nodes may ask, with the secret of whoever asks here."""
        kafka = AsyncKafkaClient(self._bootstrap, secret=secret, **_PATIENCE)
        try:
            await kafka.connect()
        except KafkaError as error:
            refusal = kafka.core.last_error
            raise error if refusal is None else refusal from error
        try:
            yield kafka
        finally:
            await kafka.close()

    @asynccontextmanager
    async def reaching(self, nodes: Mapping[int, str]) -> AsyncIterator[AsyncKafkaClient]:
        """For what only these nodes themselves can say; edges name none but edges."""
        if nodes.keys() <= self.reader.core.view.brokers.keys():
            yield self.reader
            return
        kafka = AsyncKafkaClient(list(nodes.values()), **_PATIENCE)
        try:
            await kafka.connect()
            yield kafka
        finally:
            await kafka.close()

    async def living(self) -> dict[int, str]:
        """Core nodes, and where they are."""
        nodes = (await self.status()).nodes
        return {each.node_id: f"{each.host}:{each.port}" for each in nodes if each.alive}

    @asynccontextmanager
    async def at_the_core(self) -> AsyncIterator[AsyncKafkaClient]:
        """For what edges say otherwise: to their clients they are the whole cluster."""
        async with self.reaching(await self.living()) as kafka:
            yield kafka

    async def run(self, procedure: Procedure[T]) -> T:
        return await self.reader.run(procedure)

    async def metadata(self, topics: Sequence[str] | None = None) -> Metadata:
        return await self.reader.metadata(topics)

    async def topic(self, name: str) -> Topic:
        """As it is now. KafkaError if there is none."""
        found = (await self.metadata([name])).topics[name]
        if found.error_code:
            raise error_for(found.error_code, f"topic {name}")
        return found

    async def partitions(self, topic: str, partition: int | None) -> list[TopicPartition]:
        """All of the topic, or the one that was named."""
        known = (await self.topic(topic)).partitions
        if partition is None:
            return [(topic, each) for each in known]
        if partition not in known:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic} has no partition {partition}: it has 0 to {len(known) - 1}",
            )
        return [(topic, partition)]

    async def ends(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        starts, ends = await asyncio.gather(
            self.reader.list_offsets(dict.fromkeys(keys, EARLIEST)),
            self.reader.list_offsets(dict.fromkeys(keys, LATEST)),
        )
        return {key: Ends(starts[key].offset, ends[key].offset) for key in keys}

    async def known_clients(self) -> KnownClients:
        core, clock = self.reader.core, self.reader.now_ms
        return await self.run(known_clients(core, clock))

    async def outbox(self) -> Any:
        """Of the edge that this gateway talks to; None if there is none."""
        core, clock = self.reader.core, self.reader.now_ms
        await self.reader.run(wait_for(core.connect(clock())))
        return await self.run(outbox(core, clock)) if offers_outbox(core) else None

    async def status(self, node_id: int | None = None) -> Any:
        core, clock = self.reader.core, self.reader.now_ms
        return await self.run(node_status(core, clock, node_id))


@dataclass(slots=True)
class Turns:
    """Whose turn it is among a topic's partitions: one after the other, per topic."""

    _next: dict[str, int] = field(default_factory=dict)

    def take(self, topic: str, count: int) -> int:
        turn = self._next.pop(topic, 0)
        self._next[topic] = turn + 1  # the one used last stands last
        if len(self._next) > MOST_TOPICS:
            del self._next[next(iter(self._next))]
        return turn % count


MOST_TOPICS = 10_000


def find(clients: frozenset[KnownClient], name: str, topic: str) -> KnownClient | None:
    """The registration by which a client may use the topic."""
    return next((each for each in clients if each.name == name and each.topic == topic), None)
