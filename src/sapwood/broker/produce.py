"""Produce: append at once, answer when every partition of the request has committed."""

import asyncio

from sapwood.broker.forwarding import ForwardedConnection
from sapwood.broker.leading import leader_of, reads_alone
from sapwood.broker.ordering import Sequenced, sequenced
from sapwood.broker.refusal import refuse
from sapwood.broker.relaying import RelayedConnection
from sapwood.broker.state import BrokerState
from sapwood.broker.tree_events import TOPIC as TREE_TOPIC
from sapwood.broker.verifying import Batch
from sapwood.metadata.controller import check_not_internal, find_topic
from sapwood.replica import Guard, OnCommitted, Partition
from sapwood.server import Connection, Request
from sapwood.wire.apis import Api
from sapwood.wire.batch import BatchHeader, read_header
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.frames import RequestHeader, encode_response_frame

FIRST_DECODABLE = 3
"""Older versions carry older message formats. They are advertised, since some clients look for
them to tell a broker's age, and refused."""


def produce(
    state: BrokerState, request: Request
) -> list[Buffer] | asyncio.Future[list[Buffer] | None] | None:
    header = request.header
    message = decode_request(Api.PRODUCE, header.api_version, request.body, request.body_offset)
    answer = _Answer(header)
    for topic in message.topic_data:
        name = getattr(topic, "name", None)
        topic_id = getattr(topic, "topic_id", b"")
        results = []
        for data in topic.partition_data:
            item = _Item(state, request, message.acks, (name, topic_id, data.index), answer)
            item.take(data.records, message.transactional_id)
            results.append(item.result)
        answer.add(name, topic_id, results)
    if message.acks == 0:
        if answer.has_failed:
            # Nobody waits for an answer: as with Kafka, the end of the connection is the only
            # sign that something is wrong, and makes the client look for the topic anew.
            request.connection.finish()
        return None
    return answer.when_committed(message.timeout, message.acks)


class _Item:
    """One partition's part of a request."""

    __slots__ = ("_acks", "_answer", "_done", "_place", "_request", "_state", "result")

    def __init__(
        self,
        state: BrokerState,
        request: Request,
        acks: int,
        place: tuple[str | None, bytes, int],
        answer: "_Answer",
    ) -> None:
        self._state = state
        self._request = request
        self._acks = acks
        self._place = place
        self._answer = answer
        self.result = Struct(
            index=place[2],
            error_code=0,
            error_message=None,
            base_offset=-1,
            log_append_time=-1,
            log_start_offset=-1,
            record_errors=[],
        )
        # Without an answer nobody is told, and nothing of the request need be kept.
        self._done = answer.expect(self.result) if acks else None

    def take(self, records: memoryview | None, transactional_id: str | None) -> None:
        """Append the batch, now or as soon as it may be."""
        acks = self._acks
        try:
            if acks not in (-1, 0, 1):
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: use all, 1 or 0")
            header = _header(records)
            sender = None if header is None else self._note_if_refused(header)
            partition = self._state.partition(*self._place)
            if sender is not None and header is not None:
                known = partition.log.producers.find(header.producer_id)
                self._state.ordering.check(*sender, is_known=known is not None)
            check_not_internal(partition.topic)
            self._check_writer(partition.topic)
            if acks == -1:
                partition.check_enough_replicas()
            if transactional_id is None or header is None or not _is_transactional(header):
                self._append(partition, records, None)
            else:
                self._state.verifying.admit(
                    partition,
                    Batch(
                        transactional_id,
                        header,
                        lambda verified: self._append(partition, records, verified),
                        self._refuse,
                    ),
                )
        except KafkaError as error:
            self._refuse(error)

    def _check_writer(self, topic: str) -> None:
        """What happens to the tree only the controller tells."""
        if topic == TREE_TOPIC and self._request.connection.node not in self._state.image.nodes:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is written by the cluster's controller"
            )

    def _note_if_refused(self, header: BatchHeader) -> tuple[Connection, Sequenced] | None:
        """Who sends it, if it has to keep an order: what follows it must not come before it."""
        batch, connection = sequenced(self._place, header), self._request.connection
        if isinstance(connection, RelayedConnection):
            connection = connection.link
        if batch is None or isinstance(connection, ForwardedConnection) or self._done is None:
            return None
        ordering, done = self._state.ordering, self._done

        def settled(error: KafkaError | None) -> None:
            if error is not None and error.code.retriable:
                ordering.note(connection, batch)
            done(error)

        self._done = settled
        return connection, batch

    def _append(
        self, partition: Partition, records: memoryview | None, verified: Guard | None
    ) -> None:
        try:
            appended = partition.produce(
                records,
                self._state.now_ms(),
                self._done,
                everywhere=self._acks == -1,
                verified=verified,
            )
        except KafkaError as error:
            self._refuse(error)
            return
        result = self.result
        if result.error_code == 0:
            result.base_offset = appended.base_offset
            result.log_append_time = appended.timestamp_ms
            result.log_start_offset = partition.log.start_offset

    def _refuse(self, error: KafkaError) -> None:
        state, request, answer = self._state, self._request, self._answer
        answer.has_failed = True
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            topic, topic_id, index = self._place
            answer.point_to_leader(state, request, topic, topic_id, index, self.result)
            if reads_alone(state, find_topic(state.image, topic, topic_id), index):
                request.connection.finish()
        if self._done is not None:
            self._done(error)


def _header(records: memoryview | None) -> BatchHeader | None:
    """None if there is no telling: then the partition says what is wrong."""
    try:
        return read_header(records) if records else None
    except MalformedMessage:
        return None


def _is_transactional(header: BatchHeader) -> bool:
    return header.is_transactional and header.has_producer


def _fail(result: Struct, error: KafkaError) -> None:
    refuse(result, error)
    result.base_offset = result.log_append_time = result.log_start_offset = -1


class _Answer:
    """One response, and how many partitions it still waits for."""

    __slots__ = ("_endpoints", "_future", "_header", "_timer", "_topics", "_waiting", "has_failed")

    def __init__(self, header: RequestHeader) -> None:
        self.has_failed = False
        self._header = header
        self._topics: list[Struct] = []
        self._endpoints: dict[int, Struct] = {}
        self._waiting: dict[int, Struct] = {}
        self._future: asyncio.Future[list[Buffer] | None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, name: str | None, topic_id: bytes, results: list[Struct]) -> None:
        self._topics.append(Struct(name=name, topic_id=topic_id, partition_responses=results))

    def point_to_leader(
        self,
        state: BrokerState,
        request: Request,
        topic: str | None,
        topic_id: bytes,
        index: int,
        result: Struct,
    ) -> None:
        """Save a client the detour through metadata."""
        found = leader_of(state, request, topic, topic_id, index)
        if found is not None:
            result.current_leader, endpoint = found
            self._endpoints[endpoint.node_id] = endpoint

    def expect(self, result: Struct) -> OnCommitted:
        self._waiting[id(result)] = result

        def done(error: KafkaError | None) -> None:
            if self._waiting.pop(id(result), None) is None:
                return  # it was answered already: too late
            if error is not None:
                _fail(result, error)
            if not self._waiting and self._future is not None:
                self._finish()

        return done

    def when_committed(
        self, timeout_ms: int, acks: int
    ) -> list[Buffer] | asyncio.Future[list[Buffer] | None]:
        if not self._waiting:
            return self._encode()
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        if acks == -1:  # the timeout is for other replicas; the leader's own disk has no choice
            self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._time_out)
        return self._future

    def _time_out(self) -> None:
        error = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "Not committed in time; it may or may not be later"
        )
        for result in self._waiting.values():
            _fail(result, error)
        self._waiting.clear()
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._future is not None and not self._future.done():
            self._future.set_result(self._encode())

    def _encode(self) -> list[Buffer]:
        return encode_response_frame(
            Api.PRODUCE,
            self._header.api_version,
            self._header.correlation_id,
            Struct(
                responses=self._topics,
                throttle_time=0,
                node_endpoints=list(self._endpoints.values()),
            ),
        )
