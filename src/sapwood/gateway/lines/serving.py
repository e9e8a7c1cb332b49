"""Lines over TCP and over a WebSocket: the sockets around sessions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from sapwood.gateway import tree
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.lines import words
from sapwood.gateway.lines.brokers import Child
from sapwood.gateway.lines.feed import Listener
from sapwood.gateway.lines.load import Loads
from sapwood.gateway.lines.session import MOST_UNREAD_BYTES, Peer, Session
from sapwood.gateway.lines.words import LARGEST_LINE_BYTES

logger = logging.getLogger("sapwood.gateway")

MOST_CONNECTIONS = 2048
GOODBYE_S = 3.0
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class TcpPeer:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._is_closing = False

    @property
    def unread_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    def write(self, line: str) -> None:
        if not self._writer.is_closing():  # by us, or by the other end
            self._writer.write(line.encode() + b"\n")

    async def drained(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        """In good order if it reads what is left, and soon in any case."""
        if not self._is_closing:
            self._is_closing = True
            self._writer.close()
            asyncio.get_running_loop().call_later(GOODBYE_S, self._writer.transport.abort)


class WebSocketPeer:
    """A WebSocket is written to by one task, from a queue with a bound."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_gone = False
        self.unread_bytes = 0
        self._sending = asyncio.ensure_future(self._send())

    def write(self, line: str) -> None:
        if self._is_gone:
            return
        self.unread_bytes += len(line)
        self._empty.clear()
        self._lines.put_nowait(line)

    async def drained(self) -> None:
        if self.unread_bytes > MOST_UNREAD_BYTES // 4:
            await self._empty.wait()

    def close(self) -> None:
        """As over TCP: in good order if it reads what is left, and soon in any case."""
        self._lines.put_nowait(None)
        asyncio.get_running_loop().call_later(GOODBYE_S, self._sending.cancel)

    async def received(self) -> dict[str, Any] | None:
        """What comes next; None if there is nobody any more to answer."""
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            await asyncio.wait({receiving, self._sending}, return_when=asyncio.FIRST_COMPLETED)
            found = dict(receiving.result()) if receiving.done() else None
        finally:
            receiving.cancel()
        return None if found is None or found["type"] == "websocket.disconnect" else found

    async def sent(self) -> None:
        await asyncio.wait({self._sending})
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._socket.close()

    async def _send(self) -> None:
        try:
            while (line := await self._lines.get()) is not None:
                await self._socket.send_text(line)
                self.unread_bytes -= len(line)
                if self._lines.empty():
                    self._empty.set()
        except (WebSocketDisconnect, RuntimeError):
            pass  # it has gone: that is seen where its lines are read
        finally:
            self._is_gone = True
            self._empty.set()


class LineServer:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sessions: set[Session] = set()
        self._listening: asyncio.Task[Listener] | None = None
        self._loads: Loads | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def start(self, listening: socket.socket, advertised: tuple[str, int] | None) -> None:
        self._server = await asyncio.start_server(
            self._accept, sock=listening, limit=LARGEST_LINE_BYTES
        )
        host, port = listening.getsockname()[:2]
        self._loads = Loads(self._cluster, (host, port), advertised, self._count)

    def _count(self) -> int:
        return sum(session.is_client for session in self._sessions)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._listening is not None:
            self._listening.cancel()
        if self._loads is not None:
            await self._loads.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def serve_websocket(self, connection: WebSocket) -> None:
        await connection.accept()
        peer = WebSocketPeer(connection)
        host = connection.client.host if connection.client is not None else ""
        with self._counted(peer, host) as session:
            session.greet(await self._better_place())
            try:
                while not session.is_over and (received := await peer.received()) is not None:
                    await _answer_all(session, peer, received.get("text"))
            except (WebSocketDisconnect, asyncio.CancelledError):
                pass  # it has gone, or we are stopping
            finally:
                peer.close()
                await session.close()
                await peer.sent()

    @contextlib.contextmanager
    def _counted(self, peer: Peer, host: str) -> Iterator[Session]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        cluster = self._cluster
        child = Child(cluster, host, self._load_changed)
        session = Session(cluster.talker, cluster.speaking, cluster.feed, peer, child)
        self._connections.add(task)
        self._sessions.add(session)
        self._load_changed()
        if self._listening is None or (self._listening.done() and self._listening.exception()):
            self._listening = asyncio.ensure_future(tree.listen(self._cluster, self._tell_tree))
        try:
            yield session
        finally:
            self._connections.discard(task)
            self._sessions.discard(session)
            self._load_changed()

    def _load_changed(self) -> None:
        if self._loads is not None:
            self._loads.changed()

    async def _better_place(self) -> tuple[str, int] | None:
        return None if self._loads is None else await self._loads.better_place()

    def _tell_tree(self, change: bytes) -> None:
        """Whoever is connected is told of every change of the tree."""
        for session in tuple(self._sessions):
            session.tell(words.tree_changed(change))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _expect_life(writer.get_extra_info("socket"))
        peer = TcpPeer(writer)
        with self._counted(peer, writer.get_extra_info("peername")[0]) as session:
            try:
                if len(self._connections) > MOST_CONNECTIONS:
                    session.refuse()
                    return
                session.greet(await self._better_place())
                while not session.is_over and (line := await _line(reader, session)) is not None:
                    if line:
                        await session.handle(line)
                    await peer.drained()
            except (ConnectionError, asyncio.CancelledError):
                pass
            finally:
                await session.close()
                peer.close()


def _expect_life(connection: socket.socket) -> None:
    """A host that is gone says nothing, and who has nothing to say may be silent for long."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not everywhere
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _answer_all(session: Session, peer: Peer, text: str | None) -> None:
    """The lines of one message. Who doesn't read the answers is asked for no more questions."""
    if text is None:
        session.not_text()
        return
    for line in filter(str.strip, text.split("\n")):
        if session.is_over:
            return
        await session.handle(line)
        await peer.drained()


async def _line(reader: asyncio.StreamReader, session: Session) -> str | None:
    """The next line; None at the end. What is too long or no text is passed over."""
    try:
        found = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        if not end.partial:
            return None
        found = end.partial
    except asyncio.LimitOverrunError as error:
        session.too_long()
        await _pass_over(reader, error.consumed)
        return ""
    try:
        return found.decode().strip()
    except UnicodeDecodeError:  # to guess what was meant would be to store something else
        session.not_text()
        return ""


async def _pass_over(reader: asyncio.StreamReader, consumed: int) -> None:
    while True:
        await reader.readexactly(consumed)
        try:
            await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            consumed = error.consumed
        except asyncio.IncompleteReadError:
            return
        else:
            return
