"""The core: all parts of the client on one clock that somebody else reads.

A shell reports what happened (`opened`, `received`, `lost`), makes calls, and then asks `poll` for
the effects to carry out. `poll` also says when to be called again if nothing happens before.
Times are milliseconds on a clock that never goes back, except for the records' own timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

from sapwood.client.admin import Admin
from sapwood.client.batches import Delivery, MessageKey
from sapwood.client.calls import AnyNode, Call, Router, Target, unreachable
from sapwood.client.cluster import (
    ClusterView,
    Metadata,
    Topic,
    TopicPartition,
    metadata_request,
    read_metadata,
)
from sapwood.client.config import ClientConfig
from sapwood.client.connection import CausalClock
from sapwood.client.effects import Effect, Effects, Ticket
from sapwood.client.errors import ClientClosed
from sapwood.client.fetcher import Fetcher
from sapwood.client.groups import Groups
from sapwood.client.member import Member
from sapwood.client.offsets import FoundOffset, delete_records, list_offsets
from sapwood.client.packed import PackedBatch, SealedBatch
from sapwood.client.pool import MAIN_LANE, ConnectionPool
from sapwood.client.producer import Producer
from sapwood.client.scatter import Scatterer
from sapwood.client.times import Asked, Timed, TopicTimes, Wanted, append_times, topic_times
from sapwood.client.transaction_groups import Child, GroupEnd, end_group
from sapwood.client.transactions import Transactor
from sapwood.client.tree_admin import TreeAdmin
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.records import NewRecord

_SCRATCH_BYTES = 64 * 1024


class _Part(Protocol):
    def moments(self) -> Iterator[float]:
        """When to call `poll` again, if that isn't past."""


class _Guest(_Part, Protocol):
    """A part that comes and goes."""

    def poll(self, now_ms: float) -> None: ...

    def close(self, error: Exception) -> None: ...


class _TopicWait:
    __slots__ = ("partition", "since_ms", "ticket", "topic")

    def __init__(self, topic: str, partition: int | None, since_ms: float) -> None:
        self.topic = topic
        self.partition = partition
        self.since_ms = since_ms
        self.ticket: Ticket[Topic] = Ticket()


class _MetadataAsk(NamedTuple):
    """A Metadata request whose answer also updates the view."""

    ticket: Ticket[Metadata]
    topics: list[str] | None


class ClientCore:
    """`draw` gives numbers in [0, 1): the only randomness there is."""

    def __init__(self, config: ClientConfig, draw: Callable[[], float]) -> None:
        self.config = config
        self.draw = draw
        self._effects = Effects()
        self.view = ClusterView(config)
        self._pool = ConnectionPool(config, self.view, self._effects, draw)
        self._router = Router(config, self.view, self._pool, self._effects)
        self._scatterer = Scatterer(config, self.view, self._pool, self._effects)
        self.producer = Producer(config, self.view, self._pool, self._router, self._effects, draw)
        self.admin = Admin(config, self._router)
        self.tree = TreeAdmin(config, self._router)
        self.groups = Groups(config, self._router)
        self._guests: list[_Guest] = []
        self._next_lane = MAIN_LANE + 1
        self._topic_waits: list[_TopicWait] = []
        self._asks: list[_MetadataAsk] = []
        self._closed: Exception | None = None

    # What happened

    def opened(self, connection: int, now_ms: float) -> None:
        self._pool.opened(connection, now_ms)

    def get_buffer(self, connection: int, size_hint: int) -> memoryview:
        """Where the bytes that arrive on a connection go."""
        receiver = self._pool.connections.get(connection)
        if receiver is None:  # dropped already; the shell will hear of it in a moment
            return memoryview(bytearray(_SCRATCH_BYTES))
        return receiver.get_buffer(size_hint)

    def received(self, connection: int, byte_count: int, now_ms: float) -> None:
        receiver = self._pool.connections.get(connection)
        if receiver is None:
            return
        try:
            receiver.received(byte_count, now_ms)
        except MalformedMessage as error:
            reason = f"{receiver.address} doesn't speak Kafka's protocol as we know it: {error}"
            self._pool.drop(connection, KafkaError(ErrorCode.NETWORK_EXCEPTION, reason), now_ms)
        except KafkaError as error:
            self._pool.drop(connection, error, now_ms)

    def lost(self, connection: int, reason: str, now_ms: float) -> None:
        loser = self._pool.connections.get(connection)
        if loser is not None:
            error = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{loser.address}: {reason}")
            self._pool.drop(connection, error, now_ms)

    def poll(self, now_ms: float) -> list[Effect]:
        """What has to be done now."""
        while self._closed is None:
            settled_count = self._effects.settled_count
            self._pool.expire(now_ms)
            self._learn(now_ms)
            self._check_topics(now_ms)
            self.producer.poll(now_ms)
            for guest in self._guests:
                guest.poll(now_ms)
            self._refresh(now_ms)
            self._router.poll(now_ms)
            self._scatterer.poll(now_ms)
            # One part's result is another part's input. Nothing is settled twice, so this ends.
            if settled_count == self._effects.settled_count and not self._refresh_is_due(now_ms):
                break
        return self._effects.take()

    def wake_at_ms(self, now_ms: float) -> float:
        """After `poll(now_ms)`: when to call it again even if nothing happens before."""
        if self._closed is not None:
            return float("inf")
        parts: list[_Part] = [self._pool, self._router, self._scatterer, self.producer]
        parts += self._guests
        moments = [moment_ms for part in parts for moment_ms in part.moments()]
        moments += [each.since_ms + self.config.topic_wait_ms for each in self._topic_waits]
        moments += [each.since_ms + self.config.api_timeout_ms for each in self._topic_waits]
        moments.append(self.view.refresh_at_ms())
        # What lies in the past was looked at just now, and waits for an event.
        return min((each for each in moments if each > now_ms), default=float("inf"))

    @property
    def last_error(self) -> KafkaError | None:
        """Why a connection was lost last."""
        return self._pool.last_error

    def offers(self, api: Api) -> bool:
        """Whether any broker that there is a connection to knows this kind of request."""
        return any(each.versions_of(api) for each in self._pool.connections.values())

    # What is wanted

    def connect(self, now_ms: float) -> Ticket[Metadata]:
        """Settled when a first broker has answered."""
        return self._ask([], self.config.bootstrap_timeout_ms, now_ms)

    def metadata(self, topics: list[str] | None, now_ms: float) -> Ticket[Metadata]:
        """All topics if None; never creates one."""
        return self._ask(topics, self.config.api_timeout_ms, now_ms)

    def request(
        self,
        api: Api,
        message: Struct,
        target: Target,
        max_version: int | None,
        now_ms: float,
        read: Callable[[Struct], Struct] = lambda answer: answer,
    ) -> Ticket[Struct]:
        """Any request at all, in the highest version that the broker, we and the caller know.

        `read` may raise what the answer has for errors: those that will pass are tried again.
        """
        ticket: Ticket[Struct] = Ticket()
        deadline_ms = now_ms + self.config.api_timeout_ms
        self._router.submit(
            Call(api, message, target, read, ticket, now_ms, deadline_ms, max_version)
        )
        return ticket

    def settle(self, ticket: Ticket[None]) -> None:
        """For tickets between those who use the core."""
        self._effects.succeed(ticket, None)

    def usable_topic(self, name: str, partition: int | None) -> Topic | None:
        if self._closed is not None:
            raise self._closed
        topic = self.view.topics.get(name)
        if topic is None or topic.error_code or not topic.partitions:
            return None
        return topic if partition is None or partition in topic.partitions else None

    def await_topic(self, name: str, partition: int | None, now_ms: float) -> Ticket[Topic]:
        """Settled when records for the topic can be appended."""
        wait = _TopicWait(name, partition, now_ms)
        if self._closed is not None:
            self._effects.fail(wait.ticket, self._closed)
            return wait.ticket
        self._topic_waits.append(wait)
        self.view.want(name, -1 if partition is None else partition)
        self._ask([name], self.config.api_timeout_ms, now_ms, create=self.config.allow_auto_create)
        return wait.ticket

    def append(
        self,
        topic: Topic,
        record: NewRecord,
        partition: int | None,
        delivery: Delivery,
        now_ms: float,
        *,
        message_key: MessageKey | None = None,
        may_queue: bool = False,
        transactor: Transactor | None = None,
    ) -> None:
        if self._closed is not None:
            raise self._closed
        producer = self.producer if transactor is None else transactor.producer
        producer.append(
            topic, record, partition, delivery, now_ms, message_key, may_queue=may_queue
        )

    def append_packed(
        self, batch: PackedBatch | SealedBatch, transactor: Transactor | None
    ) -> None:
        if self._closed is not None:
            raise self._closed
        producer = self.producer if transactor is None else transactor.producer
        producer.append_packed(batch)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], now_ms: float
    ) -> Ticket[dict[TopicPartition, FoundOffset]]:
        return list_offsets(self.config, self._scatterer, wanted, now_ms)

    def delete_records(
        self, before: Mapping[TopicPartition, int], now_ms: float
    ) -> Ticket[dict[TopicPartition, int]]:
        return delete_records(self.config, self._scatterer, before, now_ms)

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        stop_at: Mapping[TopicPartition, int],
        out_of_range: Literal["earliest", "latest", "error"] | None = None,
    ) -> Fetcher:
        if self._closed is not None:
            raise self._closed
        config = self.config
        if out_of_range is not None:
            config = replace(config, out_of_range=out_of_range)
        fetcher = Fetcher(
            config,
            self.view,
            self._pool,
            self._scatterer,
            self._effects,
            self.new_lane(),
            positions,
            stop_at,
        )
        self._guests.append(fetcher)
        return fetcher

    def new_lane(self) -> int:
        """For questions whose answers may take their time: they hold up each other, and no more."""
        self._next_lane += 1
        return self._next_lane - 1

    def close_lane(self, lane: int, now_ms: float) -> None:
        self._pool.close("its answers are not waited for any more", now_ms, lane)

    @property
    def cluster_clock(self) -> CausalClock:
        """What this client knows of the cluster's clock, which goes along with all that it asks."""
        return self._pool.clock

    def carry(self, clock: CausalClock) -> None:
        """Another clock, before anything is asked."""
        self._pool.clock = clock

    def append_times(
        self, asked: Mapping[TopicPartition, Asked], wanted: Wanted, now_ms: float
    ) -> Ticket[dict[TopicPartition, Timed]]:
        return append_times(self.config, self._scatterer, asked, wanted, now_ms)

    def topic_times(
        self, topics: Iterable[str], wanted: Wanted, now_ms: float
    ) -> Ticket[TopicTimes]:
        return topic_times(self.config, self._router, topics, wanted, now_ms)

    def stop_fetching(self, fetcher: Fetcher, now_ms: float) -> None:
        if self._dismiss(fetcher, ClientClosed("the fetcher was closed")):
            self._pool.close("the fetcher was closed", now_ms, fetcher.lane)

    def join(self, group: str, topics: Sequence[str], member_id: str) -> Member:
        """A member of a consumer group; its heartbeats go out with everything else."""
        if self._closed is not None:
            raise self._closed
        arguments = self.config, self.view, self._router, self._effects
        member = Member(*arguments, group, topics, member_id)
        self._guests.append(member)
        return member

    def leave(self, member: Member, now_ms: float) -> Ticket[Struct]:
        ticket = member.leave(now_ms)
        self._dismiss(member, ClientClosed("left the group"))
        return ticket

    def transactor(
        self, transactional_id: str, timeout_ms: int, clock: Callable[[], float]
    ) -> Transactor:
        transactor = Transactor(
            self.config,
            self.view,
            self._pool,
            self._router,
            self._effects,
            self.draw,
            clock,
            transactional_id,
            timeout_ms,
        )
        self._guests.append(transactor)
        return transactor

    def end_group(
        self, query: str, batch_id: int, children: Iterable[Child], committed: bool, now_ms: float
    ) -> Ticket[GroupEnd]:
        return end_group(self.config, self._router, query, batch_id, children, committed, now_ms)

    def close(self, now_ms: float) -> None:
        """Everything that is still open fails; carry out the last effects with `poll`."""
        if self._closed is not None:
            return
        self._closed = closed = ClientClosed("the client is closed")
        self.producer.close(closed)
        for guest in list(self._guests):
            self._dismiss(guest, closed)
        self._pool.close(str(closed), now_ms)
        self._scatterer.close(closed)
        self._router.close(closed)
        for wait in self._topic_waits:
            self._effects.fail(wait.ticket, closed)
        self._topic_waits.clear()

    def _dismiss(self, guest: _Guest, error: Exception) -> bool:
        if guest not in self._guests:
            return False
        self._guests.remove(guest)
        guest.close(error)
        return True

    def _ask(
        self,
        topics: list[str] | None,
        timeout_ms: float,
        now_ms: float,
        *,
        create: bool = False,
    ) -> Ticket[Metadata]:
        ticket: Ticket[Metadata] = Ticket()
        message = metadata_request(topics, create)
        deadline_ms = now_ms + timeout_ms
        self._router.submit(
            Call(Api.METADATA, message, AnyNode(), read_metadata, ticket, now_ms, deadline_ms)
        )
        self._asks.append(_MetadataAsk(ticket, topics))
        return ticket

    def _learn(self, now_ms: float) -> None:
        asks, self._asks = self._asks, []
        for ask in asks:
            if not ask.ticket.done:
                self._asks.append(ask)
            elif ask.ticket.error is None:
                self.view.apply(ask.ticket.result(), now_ms, ask.topics)
            else:
                self.view.failed(now_ms)

    def _refresh_is_due(self, now_ms: float) -> bool:
        if self.view.refresh_at_ms() > now_ms:
            return False
        wanted = set(self.view.wanted)
        return not any(each.topics is None or wanted.issubset(each.topics) for each in self._asks)

    def _refresh(self, now_ms: float) -> None:
        if self._refresh_is_due(now_ms):
            timeout_ms = self.config.request_timeout_ms
            self._ask(self.view.wanted, timeout_ms, now_ms)

    def _check_topics(self, now_ms: float) -> None:
        still: list[_TopicWait] = []
        for wait in self._topic_waits:
            topic = self.usable_topic(wait.topic, wait.partition)
            if topic is not None:
                self._effects.succeed(wait.ticket, topic)
                continue
            error = self.view.hopeless(wait.topic, wait.partition, wait.since_ms, now_ms)
            if error is None and now_ms - wait.since_ms >= self.config.api_timeout_ms:
                error = unreachable(self.config, self._pool)
            if error is None:
                still.append(wait)
            else:
                self._effects.fail(wait.ticket, error)
        self._topic_waits = still
