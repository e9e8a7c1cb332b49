"""Readers of all topics in one order, and what they must see: one sequence, and no time twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from sapwood.client.cluster import TopicPartition
from sapwood.client.merging import MergePosition, Merger
from sapwood.client.procedures import wait_for
from sapwood.client.times import Asked, Timed, Wanted
from sapwood.wire.errors import KafkaError
from sim.invariants import Invariant, Judges, Read, Violation
from sim.node import SimNode
from sim.workload import PAUSE_S, Actor, Shape, Workload
from sim.world import World

LOOK_MS = 500
WATCH_S = 0.05
WATCH_TIMEOUT_MS = 1_000
LIFE = 40
"""About so many messages later a reader begins anew, with another client, behind the last one."""


class Told(NamedTuple):
    time: int
    reader: str


class ClosedTimesHold(Invariant):
    """Nothing is stored behind the offset of a closed time that is of that time or before, and
    within a partition append times grow."""

    def __init__(self, nodes: list[SimNode]) -> None:
        self._nodes = nodes
        self._told: dict[tuple[bytes, int], dict[int, Told]] = {}
        """Per partition and offset the latest."""

    def told(self, reader: str, partition: int, answer: Timed) -> None:
        told = self._told.setdefault((answer.topic_id, partition), {})
        known = told.get(answer.closed_offset)
        if known is None or known.time < answer.closed_time:
            told[answer.closed_offset] = Told(answer.closed_time, reader)

    def at_end(self, contents: Iterable[Read]) -> None:
        for node in self._nodes:
            for replica in node.partitions():
                log = replica.log
                spans = log.spans(log.start_offset, log.end_offset, log.end_offset + 1)
                before = -1
                for first, _, time in spans:
                    where = f"{replica}@{first} of {node.machine.name}"
                    if time <= before:
                        raise self.violated(f"{where} is of {time}, what is before it of {before}")
                    before = time
                    for offset, told in self._told.get(replica.key, {}).items():
                        if first >= offset and time <= told.time:
                            raise self.violated(
                                f"{where} is of {time}, but {told.reader} was told at "
                                f"{offset} that {told.time} is over"
                            )


class OneSequence(Invariant):
    """All merged readers get the same messages in the same order, and in the end all there are."""

    def __init__(self) -> None:
        self.sequence: list[tuple[MergePosition, bytes]] = []
        self._by: list[str] = []

    def got(self, reader: str, number: int, position: MergePosition, value: bytes) -> None:
        """As its so many-th."""
        if number < len(self.sequence):
            known = self.sequence[number]
            if known != (position, value):
                raise self.violated(
                    f"number {number} was {known[1][:40]!r} at {known[0]} to {self._by[number]}, "
                    f"and is {value[:40]!r} at {position} to {reader}"
                )
            return
        if self.sequence and position <= self.sequence[-1][0]:
            raise self.violated(f"{reader} got {position} after {self.sequence[-1][0]}")
        self.sequence.append((position, value))
        self._by.append(reader)

    def at_end(self, contents: Iterable[Read]) -> None:
        there = sorted(value for it in contents for _, value in it.records)
        got = sorted(value for _, value in self.sequence)
        if there != got:
            raise self.violated(f"{len(there)} records are stored, {len(got)} were merged")


class JudgedMerger(Merger):
    """Tells what it is told."""

    reader = ""
    closed: ClosedTimesHold

    def _time(self, key: TopicPartition, partition: object, asked: Asked, answer: Timed) -> None:
        self.closed.told(self.reader, key[1], answer)
        super()._time(key, partition, asked, answer)  # type: ignore[arg-type]


class MergedReader(Actor):
    def __init__(self, workload: MergingWorkload, name: str) -> None:
        super().__init__(workload, name)
        self._closed, self._one = workload.closed, workload.one
        self._topics = sorted({topic for topic, _ in self.shape.keys})
        self.count = 0
        self._position = "earliest"
        self._task = self.process.spawn(self._read())

    async def _read(self) -> None:
        while True:
            client = self.client()
            try:
                merger = JudgedMerger(client.core, client.now_ms, self._topics, self._position)
                merger.reader, merger.closed = self.name, self._closed
                await client.run(merger.begin())
                while self.chance.random() > 1 / LIFE:
                    for message in await client.run(merger.take(1, client.now_ms() + LOOK_MS)):
                        self._one.got(self.name, self.count, merger.position, message.value or b"")
                        self.count += 1
                        self._position = str(merger.position)
            except KafkaError as error:
                self.world.trace.note(f"can't merge: {error}")
            except Violation as violation:
                self.world.loop.fail(violation)
                raise
            await client.close()
            await self.pause(PAUSE_S)


class Watcher(Actor):
    """Asks again and again which times are closed: a time that nobody was told proves nothing."""

    def __init__(self, workload: MergingWorkload, name: str) -> None:
        super().__init__(workload, name)
        self._closed = workload.closed
        self._client = self.client(api_timeout_ms=WATCH_TIMEOUT_MS)
        for key in self.shape.keys:
            self.process.spawn(self._watch(key))

    async def _watch(self, key: TopicPartition) -> None:
        client = self._client
        while True:
            asked = client.core.append_times({key: Asked()}, Wanted(), client.now_ms())
            with contextlib.suppress(KafkaError):
                answer = (await client.run(wait_for(asked)))[key]
                self._closed.told(self.name, key[1], answer)
            await self.pause(WATCH_S)


class MergingWorkload(Workload):
    def __init__(
        self,
        world: World,
        judges: Judges,
        bootstrap: str,
        shape: Shape,
        closed: ClosedTimesHold,
        one: OneSequence,
    ) -> None:
        super().__init__(world, judges, bootstrap, shape)
        self.closed, self.one = closed, one
        self.readers: list[MergedReader] = []
        self._watcher: Watcher | None = None

    def start(self) -> None:
        super().start()
        self.readers = [MergedReader(self, f"merged{n}") for n in range(2)]
        self._watcher = Watcher(self, "watcher")

    @property
    def actors(self) -> list[Actor]:
        return [*super().actors, *self.readers]

    def have_merged(self, count: int) -> bool:
        return all(it.count >= count for it in self.readers)
