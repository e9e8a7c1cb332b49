"""Requests that only the active controller can answer: passed on to it, and its answer back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sapwood.broker.state import BrokerState
from sapwood.broker.unattended import to_its_end
from sapwood.replica import PeerUnreachable
from sapwood.server import Request
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Buffer, Struct, decode_response
from sapwood.wire.errors import ErrorCode
from sapwood.wire.frames import (
    decode_request_header,
    decode_response_header,
    encode_request_frame,
)

PATIENCE_S = 8.0
"""How long a request waits for a controller to be elected."""
ANSWER_S = 30.0
RETRY_S = 0.05
_LENGTH_BYTES = 4

_REPEATABLE = {
    Api.CONFIRM_EDGE,
    Api.DESCRIBE_QUORUM,
    Api.JOIN,
    Api.REGISTER_EDGE,
    Api.TOPIC_TIMES,
}
"""Carried out twice they do what they do once, so another controller may be asked the same."""

Response = list[Buffer] | None
Handler = Callable[[BrokerState, Request], Response | Awaitable[Response]]


@dataclass(slots=True)
class ForwardedConnection:
    """What a handler may know of a client that is connected to another node."""

    listener: str
    peer: tuple[str, int]
    principal: str | None = None
    node: int | None = None
    closed: bool = False
    opened_at: float = 0.0

    def finish(self) -> None:
        """The client's own node decides about its connection."""


def at_controller(handler: Handler) -> Handler:
    """The handler, carried out by the active controller wherever it is."""

    def handle(state: BrokerState, request: Request) -> Response | Awaitable[Response]:
        if state.store.is_controller or isinstance(request.connection, ForwardedConnection):
            return handler(state, request)
        return to_its_end(_forward(state, request, handler))

    return handle


async def _forward(state: BrokerState, request: Request, handler: Handler) -> Response:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    message = Struct(
        listener=request.connection.listener,
        address=request.connection.peer[0],
        principal=request.connection.principal,
        frame=bytes(request.body),
    )
    while loop.time() < deadline and not state.store.is_controller:
        controller = state.store.controller_id
        if controller not in (-1, state.config.node_id):
            try:
                answer = await _ask(state, controller, message)
            except PeerUnreachable as error:
                if not error.refused and request.header.api_key not in _REPEATABLE:
                    break  # it may have been carried out: the client has to look
            else:
                if answer.error_code == ErrorCode.NONE:
                    frame = answer.frame
                    return [len(frame).to_bytes(_LENGTH_BYTES, "big"), frame] if frame else None
        await asyncio.sleep(RETRY_S)
    # Carried out here it is refused, in the words that this request's answer has for that.
    answered = handler(state, request)
    return await answered if isinstance(answered, Awaitable) else answered


async def _ask(state: BrokerState, controller: int, message: Struct) -> Struct:
    """Its answer. One that lost the lead, cut off from the others, is not waited for any longer."""
    asking = asyncio.ensure_future(
        state.peers.request(controller, Api.FORWARD, message, timeout_s=ANSWER_S)
    )
    try:
        while not asking.done():
            await asyncio.wait({asking}, timeout=RETRY_S)
            if not asking.done() and state.store.controller_id != controller:
                raise PeerUnreachable(f"node {controller} is not the controller any more")
        return asking.result()
    finally:
        asking.cancel()


async def ask_controller(state: BrokerState, api: Api, message: Struct) -> Struct | None:
    """What the controller answers; None if there was none that did."""
    version = codec_versions(api)[1]
    frame = b"".join(encode_request_frame(api, version, 0, None, message))[_LENGTH_BYTES:]
    forward = Struct(listener="", address="", principal=None, frame=frame)
    with contextlib.suppress(PeerUnreachable):
        answer = await _ask(state, state.store.controller_id, forward)
        if answer.error_code == ErrorCode.NONE and answer.frame:
            _, body = decode_response_header(api, version, answer.frame)
            return decode_response(api, version, answer.frame, body)
    return None


async def forwarded(
    state: BrokerState, message: Struct, handle: Callable[[Request], Response | Awaitable[Response]]
) -> Struct:
    """Another node's client asks, or the node itself: of the controller, or of a leader."""
    body = memoryview(bytearray(message.frame))
    header, offset = decode_request_header(body)
    if not state.store.is_controller and header.api_key != Api.ELECT_LEADERS:
        return Struct(
            error_code=int(ErrorCode.NOT_CONTROLLER), error_message="not the controller", frame=b""
        )
    connection = ForwardedConnection(message.listener, (message.address, 0), message.principal)
    answer = handle(Request(header, body, offset, connection))  # type: ignore[arg-type]
    response = await answer if isinstance(answer, Awaitable) else answer
    frame = b"".join(response)[_LENGTH_BYTES:] if response else b""
    return Struct(error_code=0, error_message=None, frame=frame)
