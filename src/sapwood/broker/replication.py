"""What other nodes ask about the groups that they share with this one."""

from __future__ import annotations

import asyncio

from sapwood.broker.state import BrokerState
from sapwood.server import Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import KafkaError, MalformedMessage
from sapwood.wire.frames import encode_response_frame


def sender(request: Request) -> int:
    """Who it has proved to be, not who it says it is. Tools have the secret, but are no nodes."""
    node = request.connection.node
    if node is None or node < 0:
        raise MalformedMessage("only nodes have replicas")
    return node


def fetch(
    state: BrokerState, request: Request
) -> list[Buffer] | asyncio.Future[list[Buffer] | None]:
    header = request.header
    message = decode_request(
        Api.REPLICA_FETCH, header.api_version, request.body, request.body_offset
    )

    def encode(answer: Struct) -> list[Buffer]:
        return encode_response_frame(
            Api.REPLICA_FETCH, header.api_version, header.correlation_id, answer
        )

    try:
        parked = state.replicas.exchange.fetched(sender(request), message)
    except KafkaError as error:
        return encode(
            Struct(error_code=int(error.code), hlc=0, session_id=message.session_id, groups=[])
        )
    answered: asyncio.Future[list[Buffer] | None] = asyncio.get_running_loop().create_future()

    def released(done: asyncio.Future[Struct]) -> None:
        if done.cancelled():
            answered.cancel()
        elif not answered.done():
            answered.set_result(encode(done.result()))

    def abandoned(done: asyncio.Future[list[Buffer] | None]) -> None:
        if done.cancelled():
            parked.cancel()  # the connection is lost: so is the session

    parked.add_done_callback(released)
    answered.add_done_callback(abandoned)
    return answered


async def vote(state: BrokerState, request: Request, message: Struct) -> Struct:
    return await state.replicas.exchange.voted(sender(request), message)


def announce(state: BrokerState, request: Request, message: Struct) -> Struct:
    return state.replicas.exchange.announced(sender(request), message)


def transfer(state: BrokerState, request: Request, message: Struct) -> Struct:
    return state.replicas.exchange.transferred(sender(request), message)
