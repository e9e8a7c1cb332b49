"""The listening sockets, the set of connections, and the orderly end of both."""

import asyncio
import errno
import functools
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable

from sapwood.server.connection import UNKNOWN_KEY, Connection
from sapwood.server.gate import Gate
from sapwood.server.room import Room
from sapwood.server.types import Clock, Counters, Handler, Limits, Listener
from sapwood.wire.apis import Api

log = logging.getLogger("sapwood.server")

LONGEST_SWEEP_INTERVAL_S = 1.0


class Server:
    """Listens at several places and serves all of them with one handler."""

    def __init__(
        self,
        handler: Handler,
        listeners: list[Listener],
        limits: Limits | None = None,
        *,
        secret: bytes | None = None,
        node_id: int = -1,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.limits = limits or Limits()
        self.counters = Counters()
        self.gate = Gate(secret, node_id, entropy)
        self.room = Room(self.limits.max_held_bytes, self._steer)
        self._full_since: float | None = None
        self.connections: dict[Connection, None] = {}  # a set that has an order
        self.addresses: dict[str, tuple[str, int]] = {}
        self.handler = handler
        self.clock: Clock | None = None
        self._listeners = listeners
        self._per_address: Counter[str] = Counter()
        self._bound: list[tuple[Listener, list[socket.socket]]] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_gone: asyncio.Event = asyncio.Event()

    async def bind(self) -> None:
        """Take the ports, so that they are known; nobody can connect before `start`."""
        try:
            for listener in self._listeners:
                sockets = await bind(listener)
                self._bound.append((listener, sockets))
                host, port = sockets[0].getsockname()[:2]
                self.addresses[listener.name] = (host, port)
        except BaseException:
            self._release()
            self.addresses.clear()
            raise

    async def start(self) -> None:
        """Accept connections. OSError names the address that couldn't be had."""
        if not self._bound:
            await self.bind()
        loop = asyncio.get_running_loop()
        for listener, sockets in self._bound:
            factory = functools.partial(self._connection, listener)
            for sock in sockets:
                try:
                    server = await loop.create_server(
                        factory, sock=sock, backlog=self.limits.backlog
                    )
                except OSError as error:  # somebody else bound it, too, and listened first
                    self._release()
                    raise unavailable(listener, error) from error
                self._servers.append(server)
        self._schedule_sweep(loop)

    def advertised(self) -> dict[str, tuple[str, int]]:
        """Per listener the address that clients are told; known in full once started."""
        answer = {}
        for listener in self._listeners:
            host, port = self.addresses[listener.name]
            answer[listener.name] = (
                listener.advertised_host or host,
                listener.advertised_port or port,
            )
        return answer

    def metrics(self) -> dict[str, float]:
        """What this server counts, under the names of metrics."""
        counters = self.counters
        found: dict[str, float] = {
            "kafka_server_socket_server_metrics_connection_count": len(self.connections),
            "sapwood_connections_total": counters.connections_total,
            "sapwood_connections_refused_total": counters.connections_refused_total,
            "sapwood_connections_idle_closed_total": counters.idle_closed_total,
            "sapwood_connections_slow_closed_total": counters.slow_closed_total,
            "sapwood_connections_crowded_closed_total": counters.crowded_closed_total,
            "sapwood_held_bytes": self.room.used_bytes,
            "sapwood_malformed_requests_total": counters.malformed_total,
            "sapwood_peer_refused_total": counters.peer_refused_total,
            "sapwood_handler_errors_total": counters.handler_errors_total,
            "sapwood_received_bytes_total": counters.received_bytes_total,
            "sapwood_sent_bytes_total": counters.sent_bytes_total,
        }
        for key, count in counters.requests_total.items():
            name = Api(key).name.lower() if key != UNKNOWN_KEY else "unknown"
            found[f"sapwood_requests_{name}_total"] = count
        return found

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting and reading, let answers finish for a while, close everything."""
        self._closing = True
        self._release()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            try:
                await asyncio.wait_for(self._all_gone.wait(), grace_s)
            except TimeoutError:
                log.info("%d connections are cut off unanswered", len(self.connections))
        for connection in list(self.connections):
            connection.abort()
        if self.connections:
            await self._all_gone.wait()

    def _release(self) -> None:
        for server in self._servers:
            server.close()
        for _, sockets in self._bound:
            for sock in sockets:
                sock.close()
        self._servers.clear()
        self._bound.clear()

    def _connection(self, listener: Listener) -> Connection:
        return Connection(
            self.handler,
            listener,
            self.limits,
            self.counters,
            self.gate,
            self.room,
            self._admit,
            self._recognized,
            self._forget,
            self.clock,
        )

    def _admit(self, connection: Connection) -> bool:
        address = connection.peer[0]
        if (
            self._closing
            or len(self.connections) >= self.limits.max_connections
            or self._per_address[address] >= self.limits.max_connections_per_address
        ):
            self.counters.connections_refused_total += 1
            return False
        self.counters.connections_total += 1
        self._per_address[address] += 1
        self.connections[connection] = None
        return True

    def _recognized(self, connection: Connection) -> None:
        """A node; what clients at its address take must not keep it out."""
        self._leave_address(connection)

    def _forget(self, connection: Connection) -> None:
        del self.connections[connection]
        if connection.node is None:
            self._leave_address(connection)
        if self._closing and not self.connections:
            self._all_gone.set()

    def _leave_address(self, connection: Connection) -> None:
        address = connection.peer[0]
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        limits = self.limits
        shortest = min(limits.idle_timeout_s, limits.frame_timeout_s, limits.held_timeout_s)
        interval_s = min(LONGEST_SWEEP_INTERVAL_S, shortest / 4)

        def sweep() -> None:
            now = loop.time()
            for connection in list(self.connections):
                connection.sweep(now)
            self._make_room(now)
            self._sweeper = loop.call_later(interval_s, sweep)

        self._sweeper = loop.call_later(interval_s, sweep)

    def _steer(self) -> None:
        """The room is full, or it no longer is."""
        for connection in list(self.connections):
            connection.steer_reading()

    def _make_room(self, now: float) -> None:
        if not self.room.is_full:
            self._full_since = None
            return
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < self.limits.held_timeout_s:
            self._steer()  # whoever has come or gone has changed what is a share
            return
        unfinished = sorted(self.connections, key=lambda it: it.partial_bytes)
        while self.room.is_full and unfinished and unfinished[-1].partial_bytes:
            self.counters.crowded_closed_total += 1
            unfinished.pop().make_room()
        self._full_since = None


def unavailable(listener: Listener, error: OSError | None) -> OSError:
    reason = "the host has no address"
    if error is not None:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        if isinstance(error, socket.gaierror):
            reason = error.strerror or reason
    return OSError(
        error.errno if error is not None else None,
        f"listener {listener.name} can't listen at {listener.host}:{listener.port}: {reason}",
    )


async def bind(listener: Listener) -> list[socket.socket]:
    """Sockets at every address of the listener's host, all on one port."""
    host = listener.host if listener.host not in ("", "*") else None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise unavailable(listener, error) from error
    sockets: list[socket.socket] = []
    port = listener.port
    problem: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            sock = bind_one(family, kind, protocol, (address[0], port, *address[2:]))
        except OSError as error:
            problem = error
            # A kernel may lack a family, as containers often lack IPv6. A port that is taken at
            # one address only would lead clients to a stranger.
            if error.errno == errno.EADDRINUSE and listener.port:
                for sock in sockets:
                    sock.close()
                raise unavailable(listener, error) from error
            continue
        port = sock.getsockname()[1]
        sockets.append(sock)
    if not sockets:
        raise unavailable(listener, problem)
    return sockets


def bind_one(
    family: int, kind: int, protocol: int, address: tuple[str | int, ...]
) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # Windows reads SO_REUSEADDR as "share the port with whoever has it"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
