"""What clients of edges ask: carried out here, or by those who can, and answered in one piece."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sapwood.broker.routing import FOR_CACHES, ROUTES, Route
from sapwood.broker.state import BrokerState
from sapwood.replica import PeerUnreachable
from sapwood.server import Connection, Request
from sapwood.server.gate import is_public
from sapwood.wire.apis import PATIENT, REPEATABLE, Api, can_code
from sapwood.wire.codec import Buffer, Struct, decode_request, decode_response
from sapwood.wire.errors import ErrorCode, MalformedMessage
from sapwood.wire.frames import (
    decode_request_header,
    decode_response_header,
    encode_request_frame,
    encode_response_frame,
)

logger = logging.getLogger(__name__)

ANSWER_S = 30.0
LONGEST_ANSWER_S = 30 * 60.0
"""Of what waits for other members of a group, or for a disk."""
_LENGTH_BYTES = 4

Response = list[Buffer] | None
Answered = Response | Awaitable[Response]
Handler = Callable[[Request], Answered]


class _OutcomeUnknown(Exception):
    """Somebody may have carried it out, or may yet do so."""


@dataclass(slots=True, eq=False)
class RelayedConnection:
    """What a handler may know of a client that is connected to an edge."""

    listener: str
    peer: tuple[str, int]
    principal: str | None
    opened_at: float
    link: Connection
    """What it came over last. A producer's batches keep their order on it."""
    node: int | None = None
    closed: bool = False
    finishing: bool = False

    def finish(self) -> None:
        """The edge is told."""
        self.finishing = True


def relay(state: BrokerState, request: Request, handle: Handler) -> Awaitable[Response]:
    """Taken up at once, so that what a client sent first is done first."""
    version = request.header.api_version
    message = decode_request(Api.RELAY, version, request.body, request.body_offset)
    connection = RelayedConnection(
        message.listener,
        (message.address, 0),
        message.principal,
        # Never later than it was: what a client asked over a connection that it has given up
        # since must not be taken for news.
        request.connection.opened_at + message.opened_after_s,
        request.connection,
    )
    answered: Answered = None
    refusal: MalformedMessage | None = None
    if message.frame:
        try:
            inner = _inner(message.frame, connection)
            route = None if message.here else ROUTES.get(inner.header.api_key)
            if route is None or not can_code(inner.header.api_key, inner.header.api_version):
                answered = handle(inner)
            else:
                answered = _routed(state, inner, route, handle)
        except MalformedMessage as error:
            refusal = error
    return _finish(request, connection, answered, refusal)


def _inner(frame: memoryview, connection: RelayedConnection) -> Request:
    header, offset = decode_request_header(frame)
    if not is_public(header.api_key):
        raise MalformedMessage(f"API key {header.api_key} is for nodes")
    return Request(header, frame, offset, connection)  # type: ignore[arg-type]


async def _finish(
    request: Request,
    connection: RelayedConnection,
    answered: Answered,
    refusal: MalformedMessage | None,
) -> Response:
    answer = Struct(error_code=0, error_message=None, closes=False, frame=b"")
    try:
        if refusal is not None:
            raise refusal
        response = await answered if isinstance(answered, Awaitable) else answered
        answer.frame = without_length(response)
    except _OutcomeUnknown as error:
        answer.error_code, answer.error_message = int(ErrorCode.REQUEST_TIMED_OUT), str(error)
        connection.finish()
    except MalformedMessage as error:
        answer.error_code, answer.error_message = int(ErrorCode.INVALID_REQUEST), str(error)
        connection.finish()
    answer.closes = connection.finishing
    header = request.header
    return encode_response_frame(Api.RELAY, header.api_version, header.correlation_id, answer)


def without_length(response: Response) -> list[Buffer]:
    if not response:
        return []
    return [memoryview(response[0])[_LENGTH_BYTES:], *response[1:]]


# -- by others ---------------------------------------------------------------------------------


def _routed(state: BrokerState, request: Request, route: Route, handle: Handler) -> Answered:
    header = request.header
    api, version = Api(header.api_key), header.api_version
    message = decode_request(api, version, request.body, request.body_offset)
    parts = route.parts(state, message)
    me = state.config.node_id
    if not parts or list(parts) == [me]:
        return handle(request)
    if len(parts) == 1:
        (node,) = parts
        return _ask_or_refuse(state, request, node, handle)
    asked = [_Part(request, it).answered(state, node, handle) for node, it in parts.items()]
    return _merged(request, route, asyncio.gather(*asked))


def fetch_for_cache(state: BrokerState, request: Request, handle: Handler) -> Answered:
    """An edge's fetch: from the replicas that are here, and for the others from their leaders.

    The first answer will do: the edge asks for the rest again.
    """
    header = request.header
    message = decode_request(Api.FETCH, header.api_version, request.body, request.body_offset)
    parts = FOR_CACHES.parts(state, message)
    if parts.keys() <= {state.config.node_id}:
        return handle(request)
    asked = [_Part(request, it).answered(state, node, handle) for node, it in parts.items()]
    return _merged(request, FOR_CACHES, _first(asked))


async def _first(asked: list[Awaitable[Response]]) -> list[Response]:
    tasks = [asyncio.ensure_future(it) for it in asked]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()  # without effect on those that are done
    return [task.result() for task in tasks if task.done() and not task.cancelled()]


async def _merged(request: Request, route: Route, asked: Awaitable[list[Response]]) -> Response:
    header = request.header
    api = header.api_key
    answers = []
    for response in await asked:
        if response is not None:
            frame = memoryview(b"".join(response))[_LENGTH_BYTES:]
            _, body = decode_response_header(api, header.api_version, frame)
            answers.append(decode_response(api, header.api_version, frame, body))
    if not answers:
        return None  # of a Produce that wants no answer
    merged = route.merge(answers)
    return encode_response_frame(api, header.api_version, header.correlation_id, merged)


class _Part:
    """A part of a request, as a request of its own."""

    def __init__(self, request: Request, message: Struct) -> None:
        header = request.header
        frame = b"".join(
            encode_request_frame(
                header.api_key,
                header.api_version,
                header.correlation_id,
                header.client_id,
                message,
            )
        )
        body = memoryview(bytearray(frame))[_LENGTH_BYTES:]
        _, offset = decode_request_header(body)
        self._request = Request(header, body, offset, request.connection)

    def answered(self, state: BrokerState, node: int, handle: Handler) -> Awaitable[Response]:
        if node == state.config.node_id:
            return _awaited(handle(self._request))
        return _ask_or_refuse(state, self._request, node, handle)


async def _awaited(answered: Answered) -> Response:
    return await answered if isinstance(answered, Awaitable) else answered


async def _ask_or_refuse(
    state: BrokerState, request: Request, node: int, handle: Handler
) -> Response:
    """The other node's answer, or what may be said without it."""
    api = Api(request.header.api_key)
    try:
        answer = await state.peers.request(
            node,
            Api.RELAY,
            _said(request),
            timeout_s=LONGEST_ANSWER_S if api in PATIENT else ANSWER_S,
            relay=True,
        )
    except PeerUnreachable as error:
        logger.debug("%s could not be had from node %d: %s", api.name, node, error)
        if error.refused or api in REPEATABLE:
            # Carried out here it is refused, in the words that its answer has for that.
            return await _awaited(handle(request))
        if api is Api.PRODUCE:
            return _timed_out(request)
        raise _OutcomeUnknown(str(error)) from error
    if answer.closes:
        request.connection.finish()
    if answer.error_code:
        raise _OutcomeUnknown(answer.error_message or "another node could not answer")
    frame: memoryview = answer.frame
    return [len(frame).to_bytes(_LENGTH_BYTES, "big"), frame] if frame else None


def _said(request: Request) -> Callable[[float], Struct]:
    connection = request.connection

    def message(proved_at: float) -> Struct:
        return Struct(
            listener=connection.listener,
            address=connection.peer[0],
            principal=connection.principal,
            opened_after_s=connection.opened_at - proved_at,
            here=True,
            frame=request.body,
        )

    return message


def _timed_out(request: Request) -> Response:
    """Of a leader that was lost. The others' partitions must not suffer, so it is no end of all."""
    header = request.header
    message = decode_request(Api.PRODUCE, header.api_version, request.body, request.body_offset)
    if message.acks == 0:
        return None
    failed = Struct(
        error_code=int(ErrorCode.REQUEST_TIMED_OUT),
        error_message="Its leader was lost; it may or may not be committed",
        base_offset=-1,
        log_append_time=-1,
        log_start_offset=-1,
        record_errors=[],
    )
    topics = [
        Struct(
            name=getattr(topic, "name", None),
            topic_id=getattr(topic, "topic_id", None),
            partition_responses=[
                Struct(index=it.index, **vars(failed)) for it in topic.partition_data
            ],
        )
        for topic in message.topic_data
    ]
    answer = Struct(responses=topics, throttle_time=0, node_endpoints=[])
    return encode_response_frame(Api.PRODUCE, header.api_version, header.correlation_id, answer)
