"""`/consumer/consume`, `/consumer/ack`, `/pending`: one message at a time, kept until acknowledged.

A consumer's place is its durable subscription: committed positions, and in their metadata a token
that says which message is out and what is known of its answer:

    SENDING --written to a living connection--> DELIVERED --next call, or ack--> ACKNOWLEDGED
       \\--connection gone, or nothing heard----> LOST <--reset before it was read--/
    NAMED: asked for with `ack`; only its id acknowledges it

So any gateway can go on where another one was, and one that dies leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from sapwood.client import ErrorCode, KafkaError, Message
from sapwood.client.cluster import TopicPartition
from sapwood.client.fetcher import Unreadable, read_what_can_be
from sapwood.client.groups import NO_MEMBER
from sapwood.client.ledger import Ledger
from sapwood.client.messages import received
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.client.peek import peek
from sapwood.client.procedures import wait_for
from sapwood.client.session import Session
from sapwood.gateway.clients import subscriber
from sapwood.gateway.cluster import Cluster, find
from sapwood.gateway.problems import Refused
from sapwood.gateway.words import (
    Answer,
    Body,
    ClientName,
    Count,
    MessageAnswer,
    PartitionNumber,
    Query,
    TopicName,
    shown,
)

PEEK_BYTES = 64 * 1024
LONGEST_WAIT_MS = 20_000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.25
IN_FLIGHT_S = 2.0
"""How long another gateway's answer is waited for before it counts as lost."""
_OWNER = "rest"


class ConsumeQuery(Query):
    consumer: ClientName
    topic: TopicName
    partition: PartitionNumber | None = None
    ack: Annotated[str, Meta(max_length=1000)] | None = None
    """The id of the message that was got before, or empty for the first call. With it a call may
    be repeated safely, whatever happened to its answer. Without it a call acknowledges the message
    before, unless the gateway knows that its answer was lost."""
    timeout_ms: Annotated[int, Meta(ge=0, le=LONGEST_WAIT_MS)] = 0
    """How long to wait for a message if there is none."""


class AckBody(Body):
    consumer: ClientName
    topic: TopicName
    id: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """Of the message; by default the one that is out."""


class AckAnswer(Answer):
    acknowledged: int
    """How many messages that weren't yet."""


class PendingQuery(Query):
    topic: TopicName


class PendingAnswer(Answer):
    subscriber: str
    partition: int
    position: Count
    end: Count
    pending: Count


class AllPendingAnswer(Answer):
    topic: str
    pending: list[PendingAnswer]


class State(enum.Enum):
    SENDING = "s"
    DELIVERED = "d"
    LOST = "l"
    NAMED = "n"
    ACKNOWLEDGED = "a"


@dataclass(frozen=True, slots=True)
class Out:
    """A message that was given to the consumer, as its token tells."""

    offset: int
    id_hash: str
    state: State

    @property
    def token(self) -> str:
        return f"{_OWNER}.{self.offset}-{self.id_hash}-{self.state.value}"

    def is_of(self, message_id: str) -> bool:
        return self.id_hash == _hash(message_id)


def _out(ledger: Ledger) -> Out | None:
    for token in ledger.tokens:
        owner, _, rest = token.partition(".")
        if owner == _OWNER:
            offset, id_hash, state = rest.split("-")
            return Out(int(offset), id_hash, State(state))
    return None


def _hash(message_id: str) -> str:
    return hashlib.sha256(message_id.encode()).hexdigest()[:16]


Ledgers = dict[TopicPartition, Ledger]


class Given:
    """A message on its way to its consumer, whose turn lasts until its fate is known."""

    def __init__(self, answer: MessageAnswer, place: Place, out: Out, turn: AsyncExitStack) -> None:
        self.answer = answer
        self._place = place
        self._out = out
        self._turn = turn

    async def settle(self, *, delivered: bool) -> None:
        async with self._turn:
            if self._out.state is State.SENDING and await self._is_still_out():
                state = State.DELIVERED if delivered else State.LOST
                key = self.answer.topic, self.answer.partition
                await self._place.note(key, Out(self._out.offset, self._out.id_hash, state))

    async def _is_still_out(self) -> bool:
        """Whether no other gateway has taken it for lost meanwhile and gone on."""
        if not self._place.is_old:
            return True
        key = self.answer.topic, self.answer.partition
        return _out((await self._place.load())[key]) == self._out

    async def retract(self) -> None:
        """It was not delivered after all."""
        async with self._place.turn():
            key = self.answer.topic, self.answer.partition
            out = _out((await self._place.load())[key])
            if out == Out(self._out.offset, self._out.id_hash, State.DELIVERED):
                await self._place.note(key, Out(out.offset, out.id_hash, State.LOST))


class Place:
    """One consumer's place in a topic."""

    def __init__(self, cluster: Cluster, topic: str, consumer: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._consumer = consumer
        self._group = subscriber(cluster, topic, consumer).group
        self._turn = asyncio.Lock()
        self._ledgers: Ledgers = {}
        self._loop = asyncio.get_running_loop()
        self._loaded_at = 0.0

    @property
    def is_old(self) -> bool:
        """Whether what was loaded may be another gateway's by now."""
        return self._loop.time() - self._loaded_at > IN_FLIGHT_S / 2

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Its calls come one after the other."""
        async with self._turn:
            yield

    async def load(self) -> Ledgers:
        """What the cluster has of it; one that is registered and has no place begins one."""
        keys = await self._cluster.partitions(self._topic, None)
        self._loaded_at = self._loop.time()
        for _ in range(2):
            core, now_ms = self._cluster.reader.core, self._cluster.reader.now_ms()
            found = await self._cluster.run(
                wait_for(core.groups.positions(self._group, keys, now_ms))
            )
            if any(each.offset >= 0 for each in found.values()):
                break
            who = subscriber(self._cluster, self._topic, self._consumer)
            await self._cluster.run(who.subscribe("earliest"))
        self._ledgers = {key: Ledger(each) for key, each in found.items()}
        return self._ledgers

    async def load_settled(self) -> Ledgers:
        """The same, once other gateways have said what became of what they sent."""
        pause_s = FIRST_PAUSE_S
        waited_s = 0.0
        while True:
            ledgers = await self.load()
            outs = [_out(each) for each in ledgers.values()]
            is_settled = not any(it is not None and it.state is State.SENDING for it in outs)
            if is_settled or waited_s > IN_FLIGHT_S:
                return ledgers
            await asyncio.sleep(pause_s)
            waited_s += pause_s

    async def note(self, key: TopicPartition, out: Out) -> None:
        await self.commit({key: out})

    async def commit(self, outs: dict[TopicPartition, Out]) -> None:
        if not outs:
            return
        positions = {key: self._ledgers[key].committed(out.token) for key, out in outs.items()}
        core, now_ms = self._cluster.reader.core, self._cluster.reader.now_ms()
        await self._cluster.run(
            wait_for(core.groups.commit(self._group, NO_MEMBER, positions, now_ms))
        )

    async def next_message(self, keys: Iterable[TopicPartition], last: int) -> Message | None:
        """The first that isn't acknowledged, of the partition whose turn it is."""
        keys = list(keys)
        ends = await self._cluster.reader.list_offsets(dict.fromkeys(keys, LATEST))
        keys.sort(key=lambda key: (key[1] <= last, key[1]))
        for key in keys:
            ledger = self._ledgers[key]
            offset = ledger.position
            while offset < ends[key].offset:
                found, next_offset = await self._read(key, offset)
                end = next_offset if found is None else found.offset
                if found is None and end == offset:
                    break
                ledger.acknowledge(offset, end)  # got before, or no messages
                if found is not None:
                    return found
                offset = end
        return None

    async def message_at(self, key: TopicPartition, offset: int) -> Message | None:
        found, _ = await self._read(key, offset)
        return found if found is not None and found.offset == offset else None

    async def _read(self, key: TopicPartition, offset: int) -> tuple[Message | None, int]:
        """The first that isn't acknowledged of the batches there, and where they end.

        They end at `offset` if there are none: an edge may have yet to hear of what there is.
        """
        core, clock = self._cluster.reader.core, self._cluster.reader.now_ms
        try:
            chunk = await self._cluster.run(peek(core, clock, key, offset, PEEK_BYTES))
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            raise await self._lost(key, offset) from error
        if chunk is None:
            return None, offset
        is_behind = self._ledgers[key].is_acknowledged
        found = next((it for it in read_what_can_be(chunk) if not is_behind(it.offset)), None)
        if isinstance(found, Unreadable):
            await self._go_on_behind(key, found.offset, found.next_offset)
            code = ErrorCode.CORRUPT_MESSAGE.name
            raise Refused(410, f"{found}; the next call goes on behind them", code=code)
        return (None if found is None else received(found)), chunk.next_offset

    async def _lost(self, key: TopicPartition, offset: int) -> Refused:
        """The log no longer reaches back to there; the next call goes on where it begins."""
        start = (await self._cluster.reader.list_offsets({key: EARLIEST}))[key].offset
        await self._go_on_behind(key, offset, max(start, offset + 1))
        return Refused(
            410,
            f"topic {key[0]}, partition {key[1]}: offsets {offset} to {start - 1} were deleted "
            "before this consumer got them; the next call goes on behind them",
            code=ErrorCode.OFFSET_OUT_OF_RANGE.name,
        )

    async def _go_on_behind(self, key: TopicPartition, offset: int, end: int) -> None:
        self._ledgers[key].acknowledge(offset, end)
        await self.note(key, Out(offset, _hash(""), State.ACKNOWLEDGED))


def place(cluster: Cluster, topic: str, consumer: str) -> Place:
    """The same one for as long as somebody uses it."""
    found = cluster.places.get((topic, consumer))
    if not isinstance(found, Place):
        found = cluster.places[topic, consumer] = Place(cluster, topic, consumer)
    return found


async def consume(cluster: Cluster, query: ConsumeQuery) -> Given | None:
    """The consumer's next message."""
    known = find((await cluster.known_clients()).consumers, query.consumer, query.topic)
    if known is None:
        raise Refused(404, f"consumer {query.consumer} is not registered for {query.topic}")
    partition = query.partition
    if known.partition >= 0:
        if partition not in (None, known.partition):
            raise Refused(
                409, f"consumer {query.consumer} is registered for partition {known.partition}"
            )
        partition = known.partition
    keys = await cluster.partitions(query.topic, partition)
    where = place(cluster, query.topic, query.consumer)
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + query.timeout_ms / 1000, FIRST_PAUSE_S
    while True:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(where.turn())
            given = await _give(where, query, keys, stack)
            if given is not None:
                return given
        left_s = deadline - loop.time()
        if left_s <= 0 or cluster.closing.is_set():
            return None
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _give(
    where: Place, query: ConsumeQuery, keys: list[TopicPartition], turn: AsyncExitStack
) -> Given | None:
    ledgers = await where.load_settled()
    outs = {key: it for key, each in ledgers.items() if (it := _out(each)) is not None}
    changed: dict[TopicPartition, Out] = {}
    for key, out in outs.items():
        is_got = out.state is State.DELIVERED if query.ack is None else out.is_of(query.ack)
        if is_got and out.state is not State.ACKNOWLEDGED:
            ledgers[key].acknowledge(out.offset, out.offset + 1)
            changed[key] = Out(out.offset, out.id_hash, State.ACKNOWLEDGED)
    outs.update(changed)
    try:
        message = await _again(where, keys, outs)
        if message is None:
            last = next((key[1] for key in changed), -1)
            message = await where.next_message(keys, last)
    except BaseException:
        await where.commit(changed)
        raise
    if message is not None:
        state = State.SENDING if query.ack is None else State.NAMED
        out = Out(message.offset, _hash(message.id), state)
        changed[message.topic, message.partition] = out
    await where.commit(changed)
    if message is None:
        return None
    return Given(shown(message), where, out, turn.pop_all())


async def _again(
    where: Place, keys: Iterable[TopicPartition], outs: dict[TopicPartition, Out]
) -> Message | None:
    """What is out and wasn't acknowledged comes again before anything else."""
    for key in keys:
        out = outs.get(key)
        if out is not None and out.state is not State.ACKNOWLEDGED:
            message = await where.message_at(key, out.offset)
            if message is not None:
                return message
    return None


async def acknowledge(cluster: Cluster, body: AckBody) -> AckAnswer:
    """What is acknowledged already is fine: the answer to that may have been lost."""
    if find((await cluster.known_clients()).consumers, body.consumer, body.topic) is None:
        raise Refused(404, f"consumer {body.consumer} is not registered for {body.topic}")
    where = place(cluster, body.topic, body.consumer)
    async with where.turn():
        ledgers = await where.load_settled()
        changed: dict[TopicPartition, Out] = {}
        is_known = body.id is None
        for key, ledger in ledgers.items():
            out = _out(ledger)
            if out is None or not (body.id is None or out.is_of(body.id)):
                continue
            is_known = True
            if out.state is not State.ACKNOWLEDGED:
                ledger.acknowledge(out.offset, out.offset + 1)
                changed[key] = Out(out.offset, out.id_hash, State.ACKNOWLEDGED)
        if not is_known:
            raise Refused(
                409, f"message {body.id} is not out: consumer {body.consumer} wasn't given it last"
            )
        await where.commit(changed)
    return AckAnswer(acknowledged=len(changed))


async def pending(cluster: Cluster, query: PendingQuery) -> AllPendingAnswer:
    """Who has yet to acknowledge how much: every durable subscriber, however it reads."""
    reader = cluster.reader
    session = Session(reader.core, reader.now_ms, reader.wall_clock_ms, None, receipts=False)
    found = await cluster.run(session.pending(query.topic))
    return AllPendingAnswer(
        topic=query.topic,
        pending=[
            PendingAnswer(
                subscriber=each.subscriber,
                partition=each.partition,
                position=each.position,
                end=each.end,
                pending=each.lag,
            )
            for each in found
        ],
    )
