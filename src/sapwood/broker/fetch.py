"""Fetch: answer from what is committed, or wait until there is enough of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sapwood.broker.leading import leader_of, reads_alone
from sapwood.broker.state import BrokerState
from sapwood.metadata.controller import find_topic
from sapwood.replica import Partition
from sapwood.server import Request
from sapwood.wire.apis import Api
from sapwood.wire.batch import read_header
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.frames import encode_response_frame

MAX_WAIT_MS = 60_000
READ_COMMITTED = 1
"""The isolation level of readers that want nothing of transactions that may yet be aborted."""


def fetch(
    state: BrokerState, request: Request
) -> list[Buffer] | asyncio.Future[list[Buffer] | None]:
    version = request.header.api_version
    message = decode_request(Api.FETCH, version, request.body, request.body_offset)
    if getattr(message, "session_id", 0) != 0:
        # Sessions are never opened: whoever names one confuses this node with another.
        return _encode(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [], [])
    attempt = _Attempt(state, request, message)
    topics = attempt.read(may_wait=message.max_wait > 0)
    if (
        attempt.is_enough
        or message.max_wait <= 0
        or len(state.fetch_waiters) >= state.config.max_fetch_waiters
    ):
        return attempt.encode(topics)
    return _Waiter(attempt).future


def _encode(
    request: Request, error_code: int, topics: list[Struct], endpoints: list[Struct]
) -> list[Buffer]:
    return encode_response_frame(
        Api.FETCH,
        request.header.api_version,
        request.header.correlation_id,
        Struct(
            throttle_time=0,
            error_code=error_code,
            session_id=0,
            responses=topics,
            node_endpoints=endpoints,
        ),
    )


@dataclass(slots=True)
class _Wanted:
    """One partition of the request, and what it resolved to."""

    request: Struct
    partition: Partition | None
    error: KafkaError | None


class _Attempt:
    """The partitions that a request names, read as often as it takes."""

    def __init__(self, state: BrokerState, request: Request, message: Struct) -> None:
        self.state = state
        self.request = request
        self.message = message
        self.read_bytes = 0
        self.is_enough = False
        self._may_wait = self._is_alone = False
        self.stable = message.isolation_level == READ_COMMITTED
        self._rack = getattr(message, "rack_id", "")
        self._for_edge = request.connection.node is not None
        self._endpoints: dict[int, Struct] = {}
        self._topics = [
            (topic, [self._resolve(topic, wanted) for wanted in topic.partitions])
            for topic in message.topics
        ]

    @property
    def partitions(self) -> list[Partition]:
        return [
            wanted.partition
            for _, partitions in self._topics
            for wanted in partitions
            if wanted.partition is not None
        ]

    def encode(self, topics: list[Struct]) -> list[Buffer]:
        if self._is_alone and not self.read_bytes:
            self.request.connection.finish()
        return _encode(self.request, ErrorCode.NONE, topics, list(self._endpoints.values()))

    def read(self, *, may_wait: bool = False) -> list[Struct]:
        """Fill a response, and note whether it need not wait any longer."""
        self._may_wait = may_wait
        self._is_alone = False
        self.read_bytes = 0
        self.is_enough = not self._topics
        budget = max(0, min(self.message.max_bytes, self.state.config.max_fetch_bytes))
        topics = []
        for topic, partitions in self._topics:
            results = []
            for wanted in partitions:
                result = self._read_partition(wanted, budget - self.read_bytes)
                if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._point_to_leader(topic, result)
                results.append(result)
                if result.error_code != 0 or hasattr(result, "diverging_epoch"):
                    self.is_enough = True
            topics.append(
                Struct(
                    topic=getattr(topic, "topic", None),
                    topic_id=getattr(topic, "topic_id", None),
                    partitions=results,
                )
            )
        if self.read_bytes >= self.message.min_bytes:
            self.is_enough = True
        return topics

    def _point_to_leader(self, topic: Struct, result: Struct) -> None:
        name, topic_id = getattr(topic, "topic", None), getattr(topic, "topic_id", b"")
        found = leader_of(self.state, self.request, name, topic_id, result.partition_index)
        if found is not None:
            result.current_leader, endpoint = found
            self._endpoints[endpoint.node_id] = endpoint

    def _may_read(self, partition: Partition) -> bool:
        """From the leader; from a follower only what Kafka calls fetching from the closest
        replica, and what nobody else can give. False: in a moment."""
        partition.check_online()
        if self._for_edge:
            return True  # what is committed stays so, whoever is asked for it
        if partition.leads:
            partition.check_leads()
            if not partition.is_confirmed and self._may_wait:
                return False
            partition.check_confirmed()
        elif not self._rack:
            topic = find_topic(self.state.image, None, partition.topic_id)
            if reads_alone(self.state, topic, partition.index):
                self._is_alone = True
            else:
                partition.check_leads()
        return True

    def _closer_replica(self, partition: Partition) -> int | None:
        """A replica in sync in the reader's rack, if the leader isn't there itself."""
        nodes = self.state.image.nodes
        if not partition.leads or nodes[self.state.config.node_id].rack == self._rack:
            return None
        in_sync = partition.group.in_sync(self.state.loop_now())
        return next((it for it in in_sync if it in nodes and nodes[it].rack == self._rack), None)

    def _resolve(self, topic: Struct, wanted: Struct) -> _Wanted:
        try:
            partition = self.state.partition(
                getattr(topic, "topic", None), getattr(topic, "topic_id", b""), wanted.partition
            )
        except KafkaError as error:
            return _Wanted(wanted, None, error)
        return _Wanted(wanted, partition, None)

    def _read_partition(self, wanted: _Wanted, budget: int) -> Struct:
        partition, request = wanted.partition, wanted.request
        result = Struct(
            partition_index=request.partition,
            error_code=0,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=None,
            records=b"",
        )
        try:
            if partition is None:
                raise wanted.error or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            check_leader_epoch(partition, getattr(request, "current_leader_epoch", -1))
            if not self._may_read(partition):
                return result
            if self._for_edge and self._is_behind(partition, request.fetch_offset):
                _tell_how_far(partition, result)
                return result
            diverging = _divergence(partition, request)
            closer = self._closer_replica(partition) if self._rack else None
            if diverging is not None:
                result.diverging_epoch = diverging
            elif closer is not None:
                result.preferred_read_replica = closer
                self.is_enough = True
            else:
                # The first batch is given however large it is: a client whose limit is
                # smaller than a batch would else ask for it for ever.
                views = partition.read(
                    request.fetch_offset,
                    min(request.partition_max_bytes, max(budget, 0)),
                    at_least_one=self.read_bytes == 0,
                    stable=self.stable,
                )
                result.records = views
                if self.stable:
                    result.aborted_transactions = _aborted(partition, request.fetch_offset, views)
                self.read_bytes += sum(map(len, views))
        except KafkaError as error:
            result.error_code = int(error.code)
        else:
            _tell_how_far(partition, result)
        return result

    def _is_behind(self, partition: Partition, offset: int) -> bool:
        """Whether an edge that has been elsewhere has seen more than this replica knows of."""
        return offset > partition.high_watermark and not partition.is_confirmed


def _tell_how_far(partition: Partition, result: Struct) -> None:
    result.high_watermark = partition.high_watermark
    result.last_stable_offset = partition.last_stable_offset
    result.log_start_offset = partition.log.start_offset


def _aborted(partition: Partition, offset: int, views: list[memoryview]) -> list[Struct]:
    """The transactions whose records a reader has to leave out."""
    if not views:
        return []
    end_offset = read_header(views[-1]).next_offset
    return [
        Struct(producer_id=it.producer_id, first_offset=it.first_offset)
        for it in partition.log.transactions.aborted(offset, end_offset)
    ]


def check_leader_epoch(partition: Partition, epoch: int) -> None:
    """Tell a client whose metadata is older, or newer, than this leader.

    While nobody leads there is no newer metadata to be had, though somebody has stood for election.
    """
    if epoch == -1 or epoch == partition.leader_epoch:
        return
    if epoch < partition.leader_epoch:
        if not partition.has_leader:
            return
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"{partition} is led in epoch {partition.leader_epoch}, not {epoch}: refresh metadata",
        )
    raise KafkaError(
        ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition} has not reached epoch {epoch} here"
    )


def _divergence(partition: Partition, request: Struct) -> Struct | None:
    """Where the reader's log and ours part, if the reader tells the epoch that it read last."""
    last_fetched_epoch = getattr(request, "last_fetched_epoch", -1)
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.look_up(lambda log: log.end_offset_for_epoch(last_fetched_epoch))
    if epoch >= 0 and (epoch < last_fetched_epoch or end_offset < request.fetch_offset):
        return Struct(epoch=epoch, end_offset=end_offset)
    return None


class _Waiter:
    """A fetch that found too little and sleeps until enough is committed, or its time is up."""

    def __init__(self, attempt: _Attempt) -> None:
        loop = asyncio.get_running_loop()
        message = attempt.message
        self.future: asyncio.Future[list[Buffer] | None] = loop.create_future()
        self._attempt = attempt
        self._missing_bytes = message.min_bytes - attempt.read_bytes
        self._loop = loop
        self._ready = False
        self._partitions = attempt.partitions
        self._stable = {it: it.last_stable_offset for it in self._partitions if attempt.stable}
        for partition in self._partitions:
            partition.listen(self)
        self._timer = loop.call_later(min(message.max_wait, MAX_WAIT_MS) / 1000, self.answer)
        attempt.state.fetch_waiters.add(self)
        self.future.add_done_callback(self._forget)

    def committed(self, partition: Partition, size_bytes: int) -> None:
        if self._stable and size_bytes:
            stable = partition.last_stable_offset
            if stable == self._stable[partition]:
                return  # it belongs to a transaction that is still open, or lies behind one
            self._stable[partition] = stable
            if not self._ready:
                self._ready = True
                self._loop.call_soon(self._look_again)
            return
        self._missing_bytes -= size_bytes
        if (self._missing_bytes <= 0 or size_bytes == 0) and not self._ready:
            # Not at once: other partitions may commit in the same turn of the loop, and one
            # response then carries them all.
            self._ready = True
            self._loop.call_soon(self.answer)

    def answer(self) -> None:
        if not self.future.done():
            topics = self._attempt.read()
            self.future.set_result(self._attempt.encode(topics))

    def _look_again(self) -> None:
        """A marker may have made many records readable, or just itself."""
        self._ready = False
        topics = self._attempt.read()
        if self._attempt.is_enough and not self.future.done():
            self.future.set_result(self._attempt.encode(topics))

    def _forget(self, _: object) -> None:
        self._timer.cancel()
        self._attempt.state.fetch_waiters.discard(self)
        for partition in self._partitions:
            partition.unlisten(self)
