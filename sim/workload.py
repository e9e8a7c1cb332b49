"""Clients that produce and consume while the world falls apart around them.

They are the shipped client, with the loop's time, the seed's chance and the machine's wall clock.
Each record's value says who sent it and as what number, so that readers can tell.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sapwood.client.admin import NewTopic
from sapwood.client.aio import AsyncDelivery, AsyncKafkaClient
from sapwood.client.cluster import TopicPartition
from sapwood.client.connection import CausalClock
from sapwood.client.core import ClientCore
from sapwood.client.fetcher import Chunk
from sapwood.client.offsets import LATEST
from sapwood.wire.batch import iterate
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.records import decode_batch
from sim.invariants import Judges, Read, Sent, Violation
from sim.world import Machine, World

MOST_OPEN = 300
PAUSE_S = 0.2
PATIENCE_MS = 120_000


class SimClient(AsyncKafkaClient):
    """The shipped client with its three seams replaced."""

    def __init__(self, bootstrap: str, chance: random.Random, **options: Any) -> None:
        super().__init__(bootstrap, **options)
        self.core = ClientCore(self.core.config, chance.random)

    @staticmethod
    def now_ms() -> float:
        return asyncio.get_running_loop().time() * 1000


class DeafClock(CausalClock):
    def observe(self, reading: int) -> None:
        return


@dataclass(frozen=True, slots=True)
class Shape:
    """What the clients of one seed are like."""

    keys: list[TopicPartition]
    producers: int
    consumers: int
    pause_s: float
    """A producer's, on average, between two bursts."""
    burst: int
    value_bytes: int
    options: dict[str, Any]
    may_lose: bool = False
    """Whether faults may be too much even for what was acknowledged."""
    carries_clock: bool = True
    """Else clients are like those of others: what one has seen of the cluster's clock no node
    learns from it, which would mend what the nodes themselves forget."""


def batches(key: TopicPartition, data: memoryview, first: int) -> Iterator[Read]:
    """Fetched bytes as records, from an offset on."""
    try:
        for position, header in iterate(data):
            records = [
                (record.offset, record.value or b"")
                for record in decode_batch(data, position)
                if record.offset >= first and not header.is_control
            ]
            yield Read(key, header, records)
    except MalformedMessage as error:
        what = f"from {first} on {key[0]}-{key[1]} served what is no batch: {error}"
        raise Violation("OnlyWhatWasSent", what) from error


class Actor:
    """One client program on a machine of its own."""

    def __init__(self, workload: Workload, name: str) -> None:
        self.world = workload.world
        self.judges = workload.judges
        self.shape = workload.shape
        self.name = name
        self.machine: Machine = self.world.machine(name)
        self.chance = self.world.random(name)
        self._bootstrap = workload.bootstrap
        self.process = self.machine.begin()

    def client(self, **options: Any) -> SimClient:
        chosen = {"client_id": self.name, **self.shape.options, **options}
        client = SimClient(self._bootstrap, self.chance, **chosen)
        if not self.shape.carries_clock:
            client.core.carry(DeafClock())
        return client

    async def pause(self, average_s: float) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / average_s))


class Producer(Actor):
    def __init__(self, workload: Workload, name: str) -> None:
        super().__init__(workload, name)
        self.stopping = False
        self.open = 0
        self.acknowledged = 0
        self.failed = 0
        self._numbers = 0
        self._task = self.process.spawn(self._produce())

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def _produce(self) -> None:
        client = self.client()
        while not self.stopping:
            await self.pause(self.shape.pause_s)
            for _ in range(self.chance.randint(1, self.shape.burst)):
                if self.open < MOST_OPEN:
                    await self._send(client)

    async def _send(self, client: SimClient) -> None:
        record = self._record()
        self.judges.sent(record)
        try:
            delivery = await client.send(
                record.key[0],
                record.value,
                partition=record.key[1],
                timestamp_ms=self.machine.clock.now_ms(),
            )
        except KafkaError as error:
            self.world.trace.note(f"can't send: {error}")
            return
        self.open += 1
        self.process.spawn(self._watch(record, delivery))

    def _record(self) -> Sent:
        self._numbers += 1
        key = self.chance.choice(self.shape.keys)
        padding = b"." * self.chance.randint(0, self.shape.value_bytes)
        value = f"{self.name}/{self._numbers}/".encode() + padding
        return Sent(self.name, self._numbers, key, value)

    async def _watch(self, record: Sent, delivery: AsyncDelivery) -> None:
        where = f"{self.name}/{record.number} for {record.key[0]}-{record.key[1]}"
        try:
            stored = await delivery
        except KafkaError as error:
            self.failed += 1
            self.world.trace.note(f"gave up {where}: {error}")
        else:
            self.acknowledged += 1
            record.offset = stored.offset
            record.is_acknowledged = True
            self.world.trace.note(f"acknowledged {where} at {stored.offset}")
            self.judges.acknowledged(record)
        record.is_open = False
        self.open -= 1


class Consumer(Actor):
    def __init__(self, workload: Workload, name: str) -> None:
        super().__init__(workload, name)
        self.positions: dict[TopicPartition, int] = dict.fromkeys(self.shape.keys, 0)
        self._task = self.process.spawn(self._consume())

    async def _consume(self) -> None:
        while True:
            client = self.client()
            try:
                async for chunk in client.fetch(self.positions):
                    self._take(chunk)
            except KafkaError as error:
                self.world.trace.note(f"can't fetch: {error}")
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._is_ahead(error)
            except Violation as violation:
                self.world.loop.fail(violation)
                raise
            await client.close()
            await self.pause(PAUSE_S)

    def _is_ahead(self, error: KafkaError) -> None:
        if not self.shape.may_lose:
            what = f"{self.name} had read up to {self.positions}: {error}"
            self.world.loop.fail(Violation("ReadersAreNeverAhead", what))
        self.positions = dict.fromkeys(self.shape.keys, 0)

    def _take(self, chunk: Chunk) -> None:
        key = (chunk.topic, chunk.partition)
        self.judges.served(self.name, key, chunk.high_watermark)
        position = self.positions[key]
        for batch in batches(key, chunk.data, chunk.offset):
            if batch.header.base_offset > position:
                what = f"{self.name} got {batch.header.base_offset} of {key} after {position - 1}"
                raise Violation("ReadersMissNothing", what)
            self.judges.read(self.name, batch)
            position = batch.header.next_offset
        self.positions[key] = chunk.next_offset


class Workload:
    def __init__(self, world: World, judges: Judges, bootstrap: str, shape: Shape) -> None:
        self.world = world
        self.judges = judges
        self.bootstrap = bootstrap
        self.shape = shape
        self._admin = Actor(self, "admin")
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []

    async def create_topics(self, configs: dict[str, str]) -> None:
        counts: dict[str, int] = {}
        for topic, _ in self.shape.keys:
            counts[topic] = counts.get(topic, 0) + 1
        topics = [NewTopic(name, count, configs=configs) for name, count in counts.items()]

        async def create() -> None:
            client = self._admin.client()
            await client.create_topics(topics)
            await client.close()

        await self._admin.process.spawn(create())

    def start(self) -> None:
        self.producers = [Producer(self, f"producer{n}") for n in range(self.shape.producers)]
        self.consumers = [Consumer(self, f"consumer{n}") for n in range(self.shape.consumers)]

    @property
    def actors(self) -> list[Actor]:
        return [*self.producers, *self.consumers]

    @property
    def acknowledged(self) -> int:
        return sum(it.acknowledged for it in self.producers)

    def stop_producing(self) -> None:
        for producer in self.producers:
            producer.stopping = True

    @property
    def is_settled(self) -> bool:
        return all(it.has_ended and not it.open for it in self.producers)

    async def probe(self) -> dict[TopicPartition, int]:
        """Write to every partition once more, and tell where each ends now."""

        async def write() -> dict[TopicPartition, int]:
            client = self._admin.client(delivery_timeout_ms=PATIENCE_MS)
            for number, key in enumerate(self.shape.keys):
                record = Sent("probe", number, key, f"probe/{number}/".encode())
                self.judges.sent(record)
                now_ms = self._admin.machine.clock.now_ms()
                sent = await client.send(
                    key[0], record.value, partition=key[1], timestamp_ms=now_ms
                )
                record.offset = (await sent).offset
                self.judges.acknowledged(record)
            ends = await client.list_offsets(dict.fromkeys(self.shape.keys, LATEST))
            await client.close()
            return {key: found.offset for key, found in ends.items()}

        return await self._admin.process.spawn(write())

    async def contents(self, ends: dict[TopicPartition, int]) -> list[Read]:
        """Everything that is stored, read anew."""

        async def read() -> list[Read]:
            client = self._admin.client()
            found = []
            positions = dict.fromkeys(self.shape.keys, 0)
            async for chunk in client.fetch(positions, stop_at=ends):
                key = (chunk.topic, chunk.partition)
                for batch in batches(key, chunk.data, chunk.offset):
                    self.judges.read(self._admin.name, batch)
                    found.append(batch)
            await client.close()
            return found

        return await self._admin.process.spawn(read())

    def caught_up(self, ends: dict[TopicPartition, int]) -> bool:
        return all(it.positions[key] >= end for it in self.consumers for key, end in ends.items())
