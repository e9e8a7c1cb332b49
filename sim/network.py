"""TCP between named hosts, in memory, with everything that goes wrong with it.

A link is one direction between two hosts. What arrives on a link that is cut is held back, and at
the end of the cut delivered, or the connection is reset. A lost packet is what it is to TCP's
users: a stall, and a reset if it happens too often in a row.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.loop import PROCESS, Process, SimLoop
from sim.trace import LoopTrace
from sim.transport import Address, End, Signal

FIRST_FREE_PORT = 20_000
RETRANSMISSION_S = 0.2
MOST_RETRANSMISSIONS = 8
CONNECT_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

Factory = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network is doing, everywhere."""

    latency_s: float = 0.0003
    slow_chance: float = 0.0
    slow_s: float = 5.0
    loss: float = 0.0
    cut_chance: float = 0.05
    """That a piece of a stream ends at an odd place."""
    reset_chance: float = 0.0
    """Per packet."""


@dataclass(slots=True)
class Link:
    is_cut: bool = False
    held: list[tuple[End, Callable[[], None]]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Host:
    name: str
    up: bool = True
    bound: dict[int, SimSocket] = field(default_factory=dict)
    ends: dict[End, None] = field(default_factory=dict)
    next_port: int = FIRST_FREE_PORT

    def free_port(self) -> int:
        self.next_port += 1
        return self.next_port


class SimSocket:
    """A port that was taken; the server may listen at it later."""

    def __init__(self, host: Host, port: int, process: Process) -> None:
        self.host = host
        self.port = port
        self.process = process
        self.listener: Listener | None = None

    def getsockname(self) -> Address:
        return (self.host.name, self.port)

    def close(self) -> None:
        self.listener = None
        if self.host.bound.get(self.port) is self:
            del self.host.bound[self.port]


class Listener(asyncio.AbstractServer):
    def __init__(self, sock: SimSocket, factory: Factory) -> None:
        self.factory = factory
        self.process = sock.process
        self.context = contextvars.copy_context()
        self._socket = sock

    def close(self) -> None:
        self._socket.close()

    def is_serving(self) -> bool:
        return self._socket.listener is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.process.loop

    async def start_serving(self) -> None:
        return

    async def serve_forever(self) -> None:
        raise NotImplementedError

    async def wait_closed(self) -> None:
        return


class Network:
    def __init__(self, loop: SimLoop, chance: random.Random, trace: LoopTrace) -> None:
        self.loop = loop
        self.weather = Weather()
        self.hosts: dict[str, Host] = {}
        self._chance = chance
        self._trace = trace
        self._links: dict[tuple[str, str], Link] = {}
        self._nobody = contextvars.Context()

    def add_host(self, name: str) -> Host:
        host = self.hosts[name] = Host(name)
        return host

    def link(self, source: str, target: str) -> Link:
        return self._links.setdefault((source, target), Link())

    # -- what the loop asks for ----------------------------------------------------------------

    def bind(self, port: int) -> SimSocket:
        host = self._own_host()
        port = port or host.free_port()
        if port in host.bound:
            raise OSError(errno.EADDRINUSE, f"{host.name}:{port} is in use")
        host.bound[port] = SimSocket(host, port, PROCESS.get())
        return host.bound[port]

    def listen(self, sock: SimSocket, factory: Factory) -> Listener:
        sock.listener = Listener(sock, factory)
        return sock.listener

    async def connect(
        self, factory: Factory, name: str, port: int
    ) -> tuple[End, asyncio.BaseProtocol]:
        source, target = self._own_host(), self.hosts.get(name)
        if target is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no host {name}")
        answer: asyncio.Future[End] = self.loop.create_future()
        heard: list[bool] = []
        try:
            for wait_s in CONNECT_RETRIES_S:
                if not heard:
                    self.call_after_delay(
                        source, target, self._knock, source, target, port, answer, heard
                    )
                await asyncio.wait([answer], timeout=wait_s)
                if answer.done():
                    break
            else:
                raise TimeoutError(errno.ETIMEDOUT, f"{name}:{port} doesn't answer")
            end = answer.result()
            if end.lost:
                raise ConnectionResetError(f"{name}:{port} reset the connection")
            protocol = factory()
            end.attach(protocol)
            return end, protocol
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().abort()
            answer.cancel()
            raise

    def _knock(
        self,
        source: Host,
        target: Host,
        port: int,
        answer: asyncio.Future[End],
        heard: list[bool],
    ) -> None:
        """A first packet has arrived: accept or refuse, or don't hear it and wait for another."""
        if heard or answer.done():
            return
        if not target.up or self.link(source.name, target.name).is_cut:
            return
        heard.append(True)
        taken = target.bound.get(port)
        if taken is None or taken.listener is None:
            refusal = ConnectionRefusedError(
                errno.ECONNREFUSED, f"{target.name}:{port} refuses the connection"
            )
            self.call_after_delay(target, source, _settle, answer, refusal)
            return
        listener = taken.listener
        here = (source.name, source.free_port())
        mine = End(self, source, here, (target.name, port))
        theirs = End(self, target, (target.name, port), here)
        mine.peer, theirs.peer = theirs, mine
        theirs.process = listener.process
        target.ends[theirs] = None
        self.loop.call_soon(_accept, theirs, listener, context=listener.context)
        self.call_after_delay(target, source, self._connected, mine, answer)

    def _connected(self, end: End, answer: asyncio.Future[End]) -> None:
        link = self.link(end.peer.host.name, end.host.name)
        if link.is_cut:
            link.held.append((end, lambda: self._connected(end, answer)))
        elif answer.done() or not end.host.up:
            end.abort()
        else:
            process = answer.process  # type: ignore[attr-defined]
            end.process = process
            if process.alive:
                end.host.ends[end] = None
                answer.set_result(end)
            else:
                end.abort()

    def _own_host(self) -> Host:
        return self.hosts[PROCESS.get().host]

    # -- what the ends ask for -----------------------------------------------------------------

    def carry(self, source: End, target: End) -> None:
        weather = self.weather
        delay_s = self.delay_s(source.host, target.host)
        if weather.reset_chance and self._chance.random() < weather.reset_chance:
            self.loop.call_later(delay_s, self.reset, target, context=self._nobody)
        at = max(self.loop.time() + delay_s, target.clear_at)
        target.clear_at = at
        self.loop.call_at(at, self._arrive, source, target, context=self._nobody)

    def _arrive(self, source: End, target: End) -> None:
        link = self._links.get((source.host.name, target.host.name))
        if link is not None and link.is_cut:
            link.held.append((target, target.arrive))
        else:
            target.arrive()

    def delay_s(self, source: Host, target: Host) -> float:
        weather, chance = self.weather, self._chance
        if source is target:
            return weather.latency_s / 10
        delay_s = weather.latency_s * (0.5 + chance.expovariate(2.0))
        if weather.slow_chance and chance.random() < weather.slow_chance:
            delay_s += chance.uniform(0, weather.slow_s)
        if weather.loss:
            again_s = RETRANSMISSION_S
            for _ in range(MOST_RETRANSMISSIONS):
                if chance.random() >= weather.loss:
                    break
                delay_s += again_s
                again_s *= 2
        return delay_s

    def piece_bytes(self, size: int) -> int:
        if size > 1 and self._chance.random() < self.weather.cut_chance:
            return self._chance.randint(1, size - 1)
        return size

    def forget(self, end: End) -> None:
        end.host.ends.pop(end, None)

    # -- what goes wrong -----------------------------------------------------------------------

    def connections(self) -> list[End]:
        """One end of each connection that is open at both."""
        return [
            end
            for host in self.hosts.values()
            for end in host.ends
            if not (end.lost or end.peer.lost) and end.address < end.peer.address
        ]

    def reset(self, end: End) -> None:
        """Both sides lose the connection, with all that is on its way."""
        if not (end.lost and end.peer.lost):
            self._trace.note(f"reset {end}")
            for each in (end, end.peer):
                if not each.vanished:
                    each.lose(ConnectionResetError("connection reset by the network"))

    def cut(self, source: str, target: str) -> None:
        self.link(source, target).is_cut = True

    def heal(self, reset_chance: float = 0.5) -> None:
        """End all cuts. What was held back arrives; some connections have waited too long."""
        for link in self._links.values():
            held, link.held, link.is_cut = link.held, [], False
            for end, deliver in held:
                soon = self.loop.time() + self._chance.uniform(0, RETRANSMISSION_S)
                end.clear_at = max(soon, end.clear_at)
                self.loop.call_at(end.clear_at, deliver, context=self._nobody)
            for end in dict.fromkeys(end for end, _ in held):
                if self._chance.random() < reset_chance:
                    self.reset(end)

    def process_died(self, process: Process) -> None:
        host = self.hosts[process.host]
        for sock in list(host.bound.values()):
            if sock.process is process:
                sock.close()
        for end in list(host.ends):
            if end.process is process:
                end.orphan()

    def power_off(self, name: str) -> None:
        host = self.hosts[name]
        host.up = False
        host.bound.clear()
        for end in host.ends:
            end.vanish()

    def power_on(self, name: str) -> None:
        """Whoever still talks to those who were here before is told that they have gone."""
        host = self.hosts[name]
        host.up = True
        ends, host.ends = host.ends, {}
        for end in ends:
            if end.peer.unheard and not end.peer.lost:
                delay_s = self._chance.uniform(RETRANSMISSION_S, 10 * RETRANSMISSION_S)
                self.loop.call_later(delay_s, end.send, Signal.RESET, context=self._nobody)

    def call_after_delay(
        self, source: Host, target: Host, callback: Callable[..., None], *args: Any
    ) -> None:
        self.loop.call_later(self.delay_s(source, target), callback, *args, context=self._nobody)


class NetworkedLoop(SimLoop):
    """The loop with the calls that lead to sockets elsewhere."""

    network: Network

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Factory,
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[End, asyncio.BaseProtocol]:
        if host is None or port is None or options.get("ssl"):
            raise NotImplementedError("only plain connections to a host and a port")
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Factory,
        host: str | None = None,
        port: int = 0,
        *,
        sock: SimSocket | None = None,
        **_: Any,
    ) -> Listener:
        return self.network.listen(sock or self.network.bind(port), protocol_factory)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str | None, port: int, **_: Any
    ) -> list[tuple[int, int, int, str, Address]]:
        name = host or self.network.hosts[PROCESS.get().host].name
        if name not in self.network.hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"no host {name}")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (name, port))]


def split(network: Network, groups: Sequence[Iterable[str]]) -> None:
    """Cut every link between hosts of different groups, in both directions."""
    members = [list(group) for group in groups]
    for group in members:
        for other in members:
            if other is not group:
                for a in group:
                    for b in other:
                        network.cut(a, b)


def ring(network: Network, hosts: Sequence[str]) -> None:
    """Everybody hears only the two neighbours."""
    count = len(hosts)
    for i in range(count):
        for j in range(count):
            if (i - j) % count not in (0, 1, count - 1):
                network.cut(hosts[i], hosts[j])


def _accept(end: End, listener: Listener) -> None:
    if not end.lost:
        end.attach(listener.factory())


def _settle(answer: asyncio.Future[End], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
