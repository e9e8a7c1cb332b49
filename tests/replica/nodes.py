"""A node's Peers on real sockets, and the servers of the nodes that it may reach."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from sapwood.replica.peers import Peers
from sapwood.server import Handler, Limits, Listener, Request, Server
from sapwood.server.link import PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.frames import encode_response_frame
from tests.server.peer import ANY_PORT

SECRET = b"known to nodes only"
PATIENCE_S = 20.0
A_MIB = 1024 * 1024


def forwarded(text: bytes) -> Struct:
    return Struct(listener="main", address="", frame=text)


def answer(request: Request, frame: Any) -> list[Buffer]:
    header = request.header
    return encode_response_frame(
        Api.FORWARD, header.api_version, header.correlation_id, Struct(frame=frame)
    )


def asked(request: Request) -> bytes:
    message = decode_request(
        Api.FORWARD, request.header.api_version, request.body, request.body_offset
    )
    return bytes(message.frame)


def echo(request: Request) -> list[Buffer]:
    return answer(request, asked(request))


def connections(server: Server) -> int:
    """Of nodes, each of which proves in two steps who it is; strangers may knock, too."""
    return server.counters.requests_total.get(Api.AUTHENTICATE, 0) // 2


class Cluster:
    """Node 1's Peers, and the servers of the nodes that it may reach."""

    def __init__(self, secret: bytes = SECRET, **options: Any) -> None:
        self.addresses: dict[int, tuple[str, int]] = {}
        self.servers: dict[int, Server] = {}
        self.told: list[str] = []
        self.peers = Peers(
            1,
            secret,
            self.addresses.get,
            on_connected=lambda node: self.told.append(f"{node} connected"),
            on_lost=lambda node, gone: self.told.append(f"{node} {'gone' if gone else 'lost'}"),
            **options,
        )

    async def serve(
        self,
        handler: Handler,
        node: int = 2,
        *,
        limits: Limits | None = None,
        listener: Listener = ANY_PORT,
        secret: bytes = SECRET,
        node_id: int | None = None,
    ) -> Server:
        server = Server(
            handler,
            [listener],
            limits,
            secret=secret,
            node_id=node if node_id is None else node_id,
        )
        await server.start()
        self.addresses[node] = server.addresses["kafka"]
        self.servers[node] = server
        return server

    async def ask(
        self, text: bytes, node: int = 2, *, timeout_s: float = PATIENCE_S, data: bool = False
    ) -> bytes:
        message = forwarded(text)
        response = await self.peers.request(
            node, Api.FORWARD, message, timeout_s=timeout_s, data=data
        )
        return bytes(response.frame)

    def asking(self, text: bytes, **options: Any) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self.ask(text, **options))


@contextlib.asynccontextmanager
async def cluster(secret: bytes = SECRET, **options: Any) -> AsyncIterator[Cluster]:
    made = Cluster(secret, **options)
    try:
        yield made
    finally:
        await made.peers.close()
        for server in made.servers.values():
            await server.close(grace_s=0)


async def failure_of(task: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> PeerUnreachable:
    with pytest.raises(PeerUnreachable) as caught:
        await task
    return caught.value


def free_address() -> tuple[str, int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        host, port = sock.getsockname()
        return host, port
