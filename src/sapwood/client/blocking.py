"""The blocking shell: the core driven with selectors by whichever thread calls.

There is no thread of its own: work goes on inside calls. `send` pushes full batches out; what is
still lingering leaves with the next call, `flush` or the end of the `with` block.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, cast

from sapwood.client import times
from sapwood.client.admin import ConfigEntry, NewTopic, ResourceKind
from sapwood.client.batches import Delivery, MessageKey, RecordMetadata
from sapwood.client.calls import AnyNode, Target
from sapwood.client.cluster import Metadata, Topic, TopicPartition
from sapwood.client.config import ClientConfig, parse_bootstrap
from sapwood.client.core import ClientCore
from sapwood.client.effects import Close, Connect, Effect, Send, Ticket
from sapwood.client.errors import ClientClosed
from sapwood.client.fetcher import Chunk, ConsumedRecord, read_records
from sapwood.client.groups import NO_MEMBER, Committed
from sapwood.client.offsets import LATEST, FoundOffset
from sapwood.client.packed import PackedBatch
from sapwood.client.procedures import Procedure
from sapwood.client.times import ClosedTimes
from sapwood.client.transaction_groups import NO_BATCH, Child, GroupEnd
from sapwood.client.transactions import Transactor
from sapwood.client.tree_admin import NewEdge, RegisteredEdge, TreeView
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct
from sapwood.wire.private.times import Span, unpack_spans

T = TypeVar("T")

_STEP_EVERY_MS = 5  # calls that don't wait look after the sockets at least this often
_GOODBYE_S = 5.0
_RECEIVE_BYTES = 256 * 1024


class BlockingDelivery(Delivery):
    __slots__ = ("_client",)

    def __init__(self, client: KafkaClient) -> None:
        self._client = client

    def get(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is stored; TimeoutError if that takes longer than `timeout_s`."""
        self._client.run_until(lambda: self.done, timeout_s)
        return self.result()


class _Link:
    """A non-blocking socket and what waits to be written to it."""

    def __init__(self, number: int, addresses: list[tuple[Any, ...]]) -> None:
        self.number = number
        self.addresses = addresses
        self.socket: socket.socket | None = None
        self.is_open = False
        self.unsent: deque[memoryview] = deque()


class KafkaClient:
    """A client for one thread at a time. Options are the fields of ClientConfig."""

    def __init__(self, bootstrap: str | Sequence[str], **options: Any) -> None:
        config = ClientConfig(bootstrap=parse_bootstrap(bootstrap), **options)
        self.core = ClientCore(config, random.random)
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, _Link] = {}
        self._stepped_ms = self.now_ms()
        self._stepped_bytes = 0
        self._process_id = os.getpid()

    def __enter__(self) -> KafkaClient:
        self.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.flush()
        self.close()

    def connect(self) -> None:
        """Until a first broker has answered."""
        try:
            self._wait(self.core.connect(self.now_ms()))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """At once: what wasn't flushed fails."""
        self.core.close(self.now_ms())
        for effect in self.core.poll(self.now_ms()):
            self._carry_out(effect)
        self._selector.close()

    # Asking

    def metadata(self, topics: Iterable[str] | None = None) -> Metadata:
        """Brokers, and the named topics or all."""
        names = None if topics is None else list(topics)
        return self._wait(self.core.metadata(names, self.now_ms()))

    def request(
        self,
        api: Api,
        message: Struct,
        target: Target = AnyNode(),  # noqa: B008
        *,
        max_version: int | None = None,
    ) -> Struct:
        """Any request, in the highest common version; errors in the answer are the caller's."""
        ticket = self.core.request(api, message, target, max_version, self.now_ms())
        return self._wait(ticket)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        """The first offset at or after each timestamp; −1 is the end, −2 the beginning."""
        return self._wait(self.core.list_offsets(wanted, self.now_ms()))

    def closed_times(self, topics: Iterable[str]) -> ClosedTimes:
        """Up to which time, on the cluster's clock, these topics are settled for good."""
        return self.run(times.closed_times(self.core, self.now_ms, topics))

    def offsets_after(self, keys: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
        """Where the records begin that were appended after a time on the cluster's clock."""
        return self.run(times.offsets_after(self.core, self.now_ms, keys, time))

    def append_times(
        self, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, list[Span]]:
        """Offsets and append time of every batch with an offset in these ranges."""
        found = self.run(times.spans(self.core, self.now_ms, ranges))
        return {key: unpack_spans(packed) for key, packed in found.items()}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self._wait(self.core.delete_records(before, self.now_ms()))

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        now_ms = self.now_ms()
        self._wait(
            self.core.admin.create_topics(topics, validate_only=validate_only, now_ms=now_ms)
        )

    def delete_topics(self, names: Iterable[str]) -> None:
        self._wait(self.core.admin.delete_topics(names, now_ms=self.now_ms()))

    def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        now_ms = self.now_ms()
        self._wait(
            self.core.admin.create_partitions(totals, validate_only=validate_only, now_ms=now_ms)
        )

    def describe_configs(self, kind: ResourceKind, name: str) -> dict[str, ConfigEntry]:
        return self._wait(self.core.admin.describe_configs(kind, name, now_ms=self.now_ms()))

    def tree(self) -> TreeView:
        """The tree of core nodes and edges, for people and for programs."""
        return self._wait(self.core.tree.describe(now_ms=self.now_ms()))

    def register_edge(self, edge: NewEdge) -> RegisteredEdge:
        """Ask the supervisor for a father. This and the next two need the cluster's secret."""
        return self._wait(self.core.tree.register(edge, now_ms=self.now_ms()))

    def confirm_edge(self, father: str, child: str) -> None:
        """The father, which the child was offered, has it. Each is an id or host:port."""
        self._wait(self.core.tree.confirm(father, child, now_ms=self.now_ms()))

    def report_down(self, reporter: str, node: str) -> None:
        """A father or child of a node says that it is dead. Each is an id or host:port."""
        self._wait(self.core.tree.report_down(reporter, node, now_ms=self.now_ms()))

    def alter_configs(
        self, kind: ResourceKind, name: str, changes: Mapping[str, str | None]
    ) -> None:
        """None puts a default back; what isn't named stays."""
        self._wait(self.core.admin.alter_configs(kind, name, changes, now_ms=self.now_ms()))

    def positions(self, group: str) -> dict[TopicPartition, Committed]:
        """Everything that a consumer group has committed."""
        return self._wait(self.core.groups.positions(group, None, self.now_ms()))

    def commit_positions(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """For a group without members."""
        committed = {key: Committed(offset, "") for key, offset in positions.items()}
        self._wait(self.core.groups.commit(group, NO_MEMBER, committed, self.now_ms()))

    def delete_group(self, group: str) -> None:
        """With its positions; it must have no members."""
        self._wait(self.core.groups.delete(group, self.now_ms()))

    # Producing

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        message_key: MessageKey | None = None,
        transactor: Transactor | None = None,
    ) -> BlockingDelivery:
        """Accept a record, waiting for room if need be; `get` the result to know it is stored."""
        core = self.core
        known = self.topic(topic, partition)
        self._wait_for_room(transactor)
        if timestamp_ms is None:
            timestamp_ms = self.wall_clock_ms()
        delivery = BlockingDelivery(self)
        now_ms = self.now_ms()
        core.append(
            known,
            (timestamp_ms, key, value, headers),
            partition,
            delivery,
            now_ms,
            message_key=message_key,
            transactor=transactor,
        )
        grown_bytes = core.producer.buffered_bytes - self._stepped_bytes
        if grown_bytes >= core.config.batch_bytes or now_ms - self._stepped_ms >= _STEP_EVERY_MS:
            self._step(may_wait=False)
        return delivery

    def topic(self, name: str, partition: int | None = None) -> Topic:
        """The topic (and the partition), once records can be appended; created if it may be."""
        known = self.core.usable_topic(name, partition)
        return known or self._wait(self.core.await_topic(name, partition, self.now_ms()))

    def send_packed(
        self,
        topic: str,
        partition: int,
        body: Buffer,
        record_count: int,
        base_timestamp: int,
        max_timestamp: int,
        *,
        transactor: Transactor | None = None,
    ) -> PackedBatch:
        """Accept records that are encoded already, as `wire.records.seal_batch` takes them."""
        self.topic(topic, partition)
        self._wait_for_room(transactor)
        key = topic, partition
        batch = PackedBatch(key, self.now_ms(), body, record_count, base_timestamp, max_timestamp)
        self.core.append_packed(batch, transactor)
        self._step(may_wait=False)
        return batch

    def flush(self, transactor: Transactor | None = None) -> None:
        """Until everything accepted so far is stored or has failed."""
        producer = self.core.producer if transactor is None else transactor.producer
        self._wait(producer.flush())

    def _wait_for_room(self, transactor: Transactor | None) -> None:
        producer = self.core.producer if transactor is None else transactor.producer
        if not producer.has_room():
            self.run_until(producer.has_room, None)

    def end_group(
        self, query: str, batch_id: int, children: Iterable[Child], *, committed: bool = True
    ) -> GroupEnd:
        """End all transactions of a query's batch in one step, see `client.transaction_groups`."""
        ticket = self.core.end_group(query, batch_id, children, committed, self.now_ms())
        return self._wait(ticket)

    def last_batch(self, query: str) -> int:
        """The last batch of the query that was committed; −1 if none was."""
        return self.end_group(query, NO_BATCH, ()).last_batch_id

    # Consuming

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        stop_at: Mapping[TopicPartition, int] | Literal["end"] | None = None,
        stall_timeout_s: float | None = None,
    ) -> Iterator[Chunk]:
        """Record batches as they were stored; the bulk way of `consume`.

        TimeoutError if nothing arrives for `stall_timeout_s`.
        """
        if stop_at == "end":
            ends = self.list_offsets(dict.fromkeys(positions, LATEST))
            stop_at = {key: found.offset for key, found in ends.items()}
        fetcher = self.core.fetch(positions, stop_at or {})
        try:
            while not fetcher.finished:
                # Ask for the next chunk before this one is worked on.
                self._step(may_wait=False)
                chunk = fetcher.take()
                if chunk is None:
                    self._wait(fetcher.arrival(), stall_timeout_s)
                else:
                    yield chunk
        finally:
            self.core.stop_fetching(fetcher, self.now_ms())

    def consume(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        stop_at: Mapping[TopicPartition, int] | Literal["end"] | None = None,
    ) -> Iterator[ConsumedRecord]:
        """Records from each position on (−1: the end, −2: the beginning), up to `stop_at`."""
        for chunk in self.fetch(positions, stop_at=stop_at):
            yield from read_records(chunk)

    # The shell

    @staticmethod
    def now_ms() -> float:
        return time.monotonic() * 1000

    @staticmethod
    def wall_clock_ms() -> int:
        return int(time.time() * 1000)

    def run_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        deadline_ms = float("inf") if timeout_s is None else self.now_ms() + timeout_s * 1000
        while not is_done():
            if self.now_ms() >= deadline_ms:
                raise TimeoutError(f"nothing was heard for {timeout_s} s")
            self._step(may_wait=True, until_ms=deadline_ms, is_done=is_done)

    def run(self, procedure: Procedure[T]) -> T:
        """A call of several steps. Even one that waits for nothing doesn't keep the core from its
        work, nor does one whose waits are over at once."""
        try:
            if self.now_ms() - self._stepped_ms >= _STEP_EVERY_MS:
                self._step(may_wait=False)
            while True:
                wait = next(procedure)
                while True:
                    self._step(may_wait=True, until_ms=wait.until_ms, is_done=wait.is_over)
                    if wait.is_over() or self.now_ms() >= wait.until_ms:
                        break
        except StopIteration as end:
            return cast(T, end.value)
        finally:
            procedure.close()

    def _wait(self, ticket: Ticket[T], timeout_s: float | None = None) -> T:
        self.run_until(lambda: ticket.done, timeout_s)
        return ticket.result()

    def _step(
        self,
        *,
        may_wait: bool,
        until_ms: float = float("inf"),
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:
        if os.getpid() != self._process_id:
            raise ClientClosed("this client belongs to the parent process: make one after forking")
        now_ms = self.now_ms()
        for effect in self.core.poll(now_ms):
            self._carry_out(effect)
        self._stepped_ms = now_ms
        self._stepped_bytes = self.core.producer.buffered_bytes
        wait_s = 0.0
        if may_wait and not is_done():
            wait_s = max(0.0, min(self.core.wake_at_ms(now_ms), until_ms) - now_ms) / 1000
        # A day stands for "for ever": not every platform's select takes infinity.
        self._serve_sockets(min(wait_s, 86_400.0))

    def _serve_sockets(self, wait_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(wait_s)  # Windows' select refuses to wait for nothing
            return
        for key, events in self._selector.select(wait_s):
            link: _Link = key.data
            if not link.is_open:
                self._finish_connecting(link)
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    self._write(link)
                if events & selectors.EVENT_READ:
                    self._read(link)
            except OSError as error:
                self._lose(link, str(error))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(number, buffers):
                link = self._links.get(number)
                if link is not None:
                    link.unsent.extend(memoryview(each) for each in buffers if each)
                    try:
                        self._write(link)
                    except OSError as error:
                        self._lose(link, str(error))
            case Connect(number, host, port):
                self._connect(number, host, port)
            case Close(number, is_orderly):
                link = self._links.pop(number, None)
                if link is not None:
                    if is_orderly:
                        self._write_rest(link)
                    self._close_socket(link)

    def _connect(self, number: int, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.core.lost(number, str(error), self.now_ms())
            return
        self._links[number] = link = _Link(number, list(found))
        self._try_next_address(link, "no address")

    def _try_next_address(self, link: _Link, reason: str) -> None:
        self._close_socket(link)
        while link.addresses:
            family, kind, protocol, _, address = link.addresses.pop(0)
            link.socket = attempt = socket.socket(family, kind, protocol)
            attempt.setblocking(False)
            attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                attempt.connect(address)
            except BlockingIOError:
                pass
            except OSError as error:
                reason = str(error)
                self._close_socket(link)
                continue
            self._selector.register(attempt, selectors.EVENT_READ | selectors.EVENT_WRITE, link)
            return
        self._lose(link, reason)

    def _finish_connecting(self, link: _Link) -> None:
        if link.socket is None:
            return
        code = link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._try_next_address(link, os.strerror(code))
            return
        link.is_open = True
        self._selector.modify(link.socket, selectors.EVENT_READ, link)
        self.core.opened(link.number, self.now_ms())

    def _write(self, link: _Link) -> None:
        if link.socket is None:
            return
        while link.unsent:
            head = link.unsent[0]
            try:
                sent = link.socket.send(head)
            except BlockingIOError:
                break
            if sent < len(head):
                link.unsent[0] = head[sent:]
            else:
                link.unsent.popleft()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        if self._selector.get_key(link.socket).events != events:
            self._selector.modify(link.socket, events, link)

    def _write_rest(self, link: _Link) -> None:
        """What acks=0 left unsent has nobody else to look after it."""
        if link.socket is None or not link.is_open or not link.unsent:
            return
        try:
            link.socket.settimeout(_GOODBYE_S)
            for part in link.unsent:
                link.socket.sendall(part)
        except OSError:
            pass  # nobody waits for it

    def _read(self, link: _Link) -> None:
        if link.socket is None:  # lost while its last event was being served
            return
        try:
            count = link.socket.recv_into(self.core.get_buffer(link.number, _RECEIVE_BYTES))
        except BlockingIOError:
            return
        if count:
            self.core.received(link.number, count, self.now_ms())
        else:
            self._lose(link, "the broker closed the connection")

    def _lose(self, link: _Link, reason: str) -> None:
        self._links.pop(link.number, None)
        self._close_socket(link)
        self.core.lost(link.number, reason, self.now_ms())

    def _close_socket(self, link: _Link) -> None:
        if link.socket is not None:
            if link.socket.fileno() in self._selector.get_map():
                self._selector.unregister(link.socket)
            link.socket.close()
            link.socket = None
