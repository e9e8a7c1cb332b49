"""A peer on a real socket, the frames it sends, and a loop to run it on."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from sapwood.server import Connection, Handler, Limits, Listener, Request, Server
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer

PATIENCE_S = 20.0
ANY_PORT = Listener("kafka", "127.0.0.1", 0)
Run = Callable[[Coroutine[Any, Any, None]], None]


def loop_factories() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    factories: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.SelectorEventLoop]
    try:
        import uvloop
    except ImportError:
        return factories
    return [*factories, uvloop.new_event_loop]


def request_frame(correlation_id: int, body: bytes = b"", api: Api = Api.METADATA) -> bytes:
    """A request, version 0, as far as its header goes."""
    header = struct.pack(">hhih", api, 0, correlation_id, 4) + b"test"
    return struct.pack(">i", len(header) + len(body)) + header + body


def response(request: Request, body: Buffer = b"") -> list[Buffer]:
    return [struct.pack(">ii", 4 + len(body), request.header.correlation_id), body]


def echo(request: Request) -> list[Buffer]:
    return response(request, request.body[request.body_offset :])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0)


class Peer:
    """The client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, server: Server, listener: str = "kafka") -> "Peer":
        host, port = server.addresses[listener]
        return cls(*await asyncio.open_connection(host, port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> tuple[int, bytes]:
        """The next response: correlation id and body."""
        async with asyncio.timeout(PATIENCE_S):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(length)
        (correlation_id,) = struct.unpack_from(">i", frame)
        return correlation_id, frame[4:]

    async def ask(self, correlation_id: int, body: bytes = b"") -> tuple[int, bytes]:
        self.send(request_frame(correlation_id, body))
        return await self.receive()

    async def rest(self) -> bytes:
        """All that comes until the server closes, be it by a reset."""
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while chunk := await self.reader.read(65536):
                    received += chunk
            except ConnectionResetError:
                pass
        return received

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


@asynccontextmanager
async def serving(
    handler: Handler,
    limits: Limits | None = None,
    *listeners: Listener,
    secret: bytes | None = None,
    node_id: int = -1,
) -> AsyncIterator[Server]:
    server = Server(handler, list(listeners) or [ANY_PORT], limits, secret=secret, node_id=node_id)
    await server.start()
    try:
        yield server
    finally:
        await server.close(grace_s=0)


class Desk:
    """A handler that answers when told to: it keeps each request with the future of its answer."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.futures: list[asyncio.Future[list[Buffer] | None]] = []

    def __call__(self, request: Request) -> Awaitable[list[Buffer] | None]:
        self.requests.append(request)
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def answer(self, index: int, body: Buffer = b"") -> None:
        self.futures[index].set_result(response(self.requests[index], body))


def only_connection(server: Server) -> Connection:
    (connection,) = server.connections
    return connection
