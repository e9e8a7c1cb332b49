"""The asyncio shell: sockets, the clock and futures around the core, and nothing else."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, cast

from sapwood.client.admin import ConfigEntry, NewTopic, ResourceKind
from sapwood.client.batches import Delivery, MessageKey, RecordMetadata
from sapwood.client.calls import AnyNode, Controller, Leader, Node, Target
from sapwood.client.cluster import Metadata, TopicPartition
from sapwood.client.config import ClientConfig, parse_bootstrap
from sapwood.client.core import ClientCore
from sapwood.client.effects import Close, Connect, Effect, Send, Settled, Ticket
from sapwood.client.fetcher import Chunk, ConsumedRecord, read_records
from sapwood.client.offsets import LATEST, FoundOffset
from sapwood.client.procedures import FOREVER, Procedure, Wait
from sapwood.client.producer import Producer
from sapwood.client.transaction_groups import Child, GroupEnd
from sapwood.client.transactions import Transactor
from sapwood.client.tree_admin import NewEdge, RegisteredEdge, TreeView
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

T = TypeVar("T")

_STEP_EVERY_MS = 5  # calls that don't wait let the loop go on at least this often
_GOODBYE_S = 5.0

__all__ = ["AnyNode", "AsyncDelivery", "AsyncKafkaClient", "Controller", "Leader", "Node"]


class AsyncDelivery(Delivery):
    """Await it for the RecordMetadata, or don't: the record is on its way either way."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        while not self.done:  # a batch that was split is done, but its halves aren't
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.batch.done.waiters.append(future)
            yield from future
        return self.result()


class _Link(asyncio.BufferedProtocol):
    def __init__(self, client: AsyncKafkaClient, number: int) -> None:
        self._client = client
        self._number = number
        self.transport: asyncio.Transport | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._client.link_made(self._number, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._client.core.get_buffer(self._number, sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._client.core.received(self._number, nbytes, self._client.now_ms())
        self._client.schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.gone.set_result(None)
        reason = str(exc) if exc else "the broker closed the connection"
        self._client.link_lost(self._number, reason)

    def part(self, *, is_orderly: bool) -> None:
        if self.transport is not None and is_orderly:
            self.transport.close()
        elif self.transport is not None:
            self.transport.abort()


class AsyncKafkaClient:
    """A client for one event loop. Options are the fields of ClientConfig."""

    def __init__(self, bootstrap: str | Sequence[str], **options: Any) -> None:
        config = ClientConfig(bootstrap=parse_bootstrap(bootstrap), **options)
        self.core = ClientCore(config, random.random)
        self._links: dict[int, _Link] = {}
        self._parting: list[_Link] = []
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._room: list[tuple[Producer, asyncio.Future[None]]] = []
        self._step_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._stepped_ms = self.now_ms()
        self._polled_bytes = 0

    async def __aenter__(self) -> AsyncKafkaClient:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.flush()
        await self.close()

    async def connect(self) -> None:
        """Until a first broker has answered."""
        try:
            await self._wait(self.core.connect(self.now_ms()))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """At once: what wasn't flushed fails."""
        self.core.close(self.now_ms())
        self._step()
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        parting, self._parting = self._parting, []
        if parting:
            await asyncio.wait([link.gone for link in parting], timeout=_GOODBYE_S)
        for link in parting:
            link.part(is_orderly=False)

    # Asking

    async def metadata(self, topics: Iterable[str] | None = None) -> Metadata:
        """Brokers, and the named topics or all."""
        names = None if topics is None else list(topics)
        return await self._wait(self.core.metadata(names, self.now_ms()))

    async def request(
        self,
        api: Api,
        message: Struct,
        target: Target = AnyNode(),  # noqa: B008
        *,
        max_version: int | None = None,
    ) -> Struct:
        """Any request, in the highest common version; errors in the answer are the caller's."""
        ticket = self.core.request(api, message, target, max_version, self.now_ms())
        return await self._wait(ticket)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        """The first offset at or after each timestamp; −1 is the end, −2 the beginning."""
        return await self._wait(self.core.list_offsets(wanted, self.now_ms()))

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        return await self._wait(self.core.delete_records(before, self.now_ms()))

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> None:
        now_ms = self.now_ms()
        ticket = self.core.admin.create_topics(topics, validate_only=validate_only, now_ms=now_ms)
        await self._wait(ticket)

    async def delete_topics(self, names: Iterable[str]) -> None:
        await self._wait(self.core.admin.delete_topics(names, now_ms=self.now_ms()))

    async def create_partitions(
        self, totals: Mapping[str, int], *, validate_only: bool = False
    ) -> None:
        now_ms = self.now_ms()
        await self._wait(
            self.core.admin.create_partitions(totals, validate_only=validate_only, now_ms=now_ms)
        )

    async def describe_configs(self, kind: ResourceKind, name: str) -> dict[str, ConfigEntry]:
        return await self._wait(self.core.admin.describe_configs(kind, name, now_ms=self.now_ms()))

    async def tree(self) -> TreeView:
        """The tree of core nodes and edges, for people and for programs."""
        return await self._wait(self.core.tree.describe(now_ms=self.now_ms()))

    async def register_edge(self, edge: NewEdge) -> RegisteredEdge:
        """Ask the supervisor for a father. This and the next two need the cluster's secret."""
        return await self._wait(self.core.tree.register(edge, now_ms=self.now_ms()))

    async def confirm_edge(self, father: str, child: str) -> None:
        """The father, which the child was offered, has it. Each is an id or host:port."""
        await self._wait(self.core.tree.confirm(father, child, now_ms=self.now_ms()))

    async def report_down(self, reporter: str, node: str) -> None:
        """A father or child of a node says that it is dead. Each is an id or host:port."""
        await self._wait(self.core.tree.report_down(reporter, node, now_ms=self.now_ms()))

    async def alter_configs(
        self, kind: ResourceKind, name: str, changes: Mapping[str, str | None]
    ) -> None:
        """None puts a default back; what isn't named stays."""
        now_ms = self.now_ms()
        await self._wait(self.core.admin.alter_configs(kind, name, changes, now_ms=now_ms))

    # Producing

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        message_key: MessageKey | None = None,
        may_queue: bool = False,
        transactor: Transactor | None = None,
    ) -> AsyncDelivery:
        """Accept a record, waiting for room if need be; await the result to know it is stored.

        `may_queue`, for one with a `message_key`: an edge that is cut off may keep it in its
        outbox, and then there is no offset in the result, but −1.
        """
        core = self.core
        known = core.usable_topic(topic, partition)
        if known is None:
            known = await self._wait(core.await_topic(topic, partition, self.now_ms()))
        producer = core.producer if transactor is None else transactor.producer
        while not producer.has_room():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append((producer, future))
            self.schedule()
            await future
        if timestamp_ms is None:
            timestamp_ms = self.wall_clock_ms()
        delivery = AsyncDelivery()
        core.append(
            known,
            (timestamp_ms, key, value, headers),
            partition,
            delivery,
            self.now_ms(),
            message_key=message_key,
            may_queue=may_queue,
            transactor=transactor,
        )
        self.schedule()
        # A loop around `send` would keep the event loop from sending: let it, batch by batch.
        if core.producer.buffered_bytes - self._polled_bytes >= core.config.batch_bytes:
            await asyncio.sleep(0)
        return delivery

    async def flush(self) -> None:
        """Until everything accepted so far is stored or has failed."""
        await self._wait(self.core.producer.flush())

    async def end_group(
        self, query: str, batch_id: int, children: Iterable[Child], *, committed: bool = True
    ) -> GroupEnd:
        """End all transactions of a query's batch in one step, see `client.transaction_groups`."""
        ticket = self.core.end_group(query, batch_id, children, committed, self.now_ms())
        return await self._wait(ticket)

    # Consuming

    async def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        stop_at: Mapping[TopicPartition, int] | Literal["end"] | None = None,
    ) -> AsyncIterator[Chunk]:
        """Record batches as they were stored; the bulk way of `consume`."""
        if stop_at == "end":
            ends = await self.list_offsets(dict.fromkeys(positions, LATEST))
            stop_at = {key: found.offset for key, found in ends.items()}
        fetcher = self.core.fetch(positions, stop_at or {})
        self.schedule()
        try:
            while not fetcher.finished:
                chunk = fetcher.take()
                if chunk is None:
                    await self._wait(fetcher.arrival())
                    continue
                self.schedule()
                yield chunk
        finally:
            self.core.stop_fetching(fetcher, self.now_ms())
            self.schedule()

    async def consume(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        stop_at: Mapping[TopicPartition, int] | Literal["end"] | None = None,
    ) -> AsyncIterator[ConsumedRecord]:
        """Records from each position on (−1: the end, −2: the beginning), up to `stop_at`."""
        async for chunk in self.fetch(positions, stop_at=stop_at):
            for record in read_records(chunk):
                yield record

    # The shell

    @staticmethod
    def now_ms() -> float:
        return time.monotonic() * 1000

    @staticmethod
    def wall_clock_ms() -> int:
        return int(time.time() * 1000)

    def schedule(self) -> None:
        """Poll the core soon: everything that happens in one turn of the loop goes out together."""
        if not self._step_is_due:
            self._step_is_due = True
            asyncio.get_running_loop().call_soon(self._step)

    def link_made(self, number: int, link: _Link) -> None:
        self._links[number] = link
        self.core.opened(number, self.now_ms())
        self.schedule()

    def link_lost(self, number: int, reason: str) -> None:
        self._links.pop(number, None)
        self._parting = [link for link in self._parting if not link.gone.done()]
        self.core.lost(number, reason, self.now_ms())
        self.schedule()

    async def run(self, procedure: Procedure[T]) -> T:
        """A call of several steps. Even one that waits for nothing doesn't keep the loop from its
        work, nor does one whose waits are over at once."""
        try:
            if self.now_ms() - self._stepped_ms >= _STEP_EVERY_MS:
                await self._let_step()
            while True:
                wait = next(procedure)
                if wait.is_over():
                    await self._let_step()
                else:
                    self.schedule()
                    await self._first_of(wait)
        except StopIteration as end:
            return cast(T, end.value)
        finally:
            procedure.close()
            self.schedule()

    async def _let_step(self) -> None:
        self.schedule()
        await asyncio.sleep(0)

    async def _first_of(self, wait: Wait) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        for ticket in wait.tickets:
            ticket.waiters.append(future)
        timer = None
        if wait.until_ms != FOREVER:
            timer = loop.call_later(max(0.0, wait.until_ms - self.now_ms()) / 1000, _wake, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            for ticket in wait.tickets:
                ticket.waiters.remove(future)

    async def _wait(self, ticket: Ticket[T]) -> T:
        if not ticket.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            ticket.waiters.append(future)
            self.schedule()
            await future
        return ticket.result()

    def _step(self) -> None:
        self._step_is_due = False
        self._stepped_ms = now_ms = self.now_ms()
        try:
            effects = self.core.poll(now_ms)
        except Exception:
            self.core.close(now_ms)  # nobody may wait for a core that can't go on
            for effect in self.core.poll(now_ms):
                self._carry_out(effect)
            raise
        for effect in effects:
            self._carry_out(effect)
        self._polled_bytes = self.core.producer.buffered_bytes
        if self._room:
            waiting, self._room = self._room, []
            for producer, future in waiting:
                if producer.has_room():
                    _wake(future)
                else:
                    self._room.append((producer, future))
        self._set_timer(self.core.wake_at_ms(now_ms))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Settled(ticket):
                for future in ticket.waiters:
                    _wake(future)
            case Send(number, buffers):
                link = self._links.get(number)
                if link is not None and link.transport is not None:
                    link.transport.writelines(buffers)
            case Connect(number, host, port):
                self._connecting[number] = asyncio.ensure_future(self._open(number, host, port))
            case Close(number, is_orderly):
                task = self._connecting.get(number)
                if task is not None:
                    task.cancel()
                link = self._links.pop(number, None)
                if link is not None:
                    self._parting.append(link)
                    link.part(is_orderly=is_orderly)

    async def _open(self, number: int, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Link(self, number), host, port)
        except OSError as error:
            self.core.lost(number, str(error), self.now_ms())
        finally:
            del self._connecting[number]
            self.schedule()

    def _set_timer(self, wake_at_ms: float) -> None:
        """A timer that is too early polls once for nothing; cancelling each would cost more."""
        when_s = wake_at_ms / 1000
        # The handle can't be asked when it is due: uvloop's has no such method if that is now.
        if self._timer is not None and (self._timer_at_s > when_s or self._timer.cancelled()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and wake_at_ms != float("inf"):
            self._timer = asyncio.get_running_loop().call_at(when_s, self._timed)
            self._timer_at_s = when_s

    def _timed(self) -> None:
        self._timer = None
        self._step()


def _wake(future: object) -> None:
    if isinstance(future, asyncio.Future) and not future.done():
        future.set_result(None)
