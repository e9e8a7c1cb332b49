"""This node's links to the other nodes: one each for control, for data, and for what clients ask.

A link is made when it is first needed, and is kept. What was lost is tried anew at once, and then
after ever longer pauses.
"""

import asyncio
import enum
import functools
import logging
import os
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from sapwood.security import NONCE_BYTES, ClientSide
from sapwood.server.link import Address, Link, PeerUnreachable, Said, is_of_this_host, open_link
from sapwood.server.types import Clock
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

log = logging.getLogger("sapwood.replica")

CONNECT_TIMEOUT_S = 1.0
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
LAST_WORDS_S = 0.5

CLOSED = "this node has closed its connections"


@dataclass(slots=True, eq=False)
class _Lane:
    link: Link | None = None
    connecting: asyncio.Task[Link | PeerUnreachable] | None = None
    failures_before: int = 0  # of the peer, when this lane was last tried


class _State(enum.Enum):
    """What was last told of a node; of its control connection, unless it is GONE."""

    UNKNOWN = enum.auto()
    CONNECTED = enum.auto()
    LOST = enum.auto()
    GONE = enum.auto()


@dataclass(slots=True, eq=False)
class _Peer:
    node: int
    state: _State = _State.UNKNOWN
    control: _Lane = field(default_factory=_Lane)
    data: _Lane = field(default_factory=_Lane)
    relay: _Lane = field(default_factory=_Lane)
    failures: int = 0  # in a row
    not_before: float = 0.0
    lost_at: float = 0.0
    failure: PeerUnreachable | None = None

    def failed(self, lane: _Lane, failure: PeerUnreachable, now: float) -> None:
        if self.failure is None or str(self.failure) != str(failure):
            # That nobody listens is what a node's start and end look like.
            log.log(logging.INFO if failure.refused else logging.WARNING, "%s", failure)
        self.failure = failure
        if lane.failures_before == self.failures:  # else the other lane failed meanwhile
            pause_s = min(FIRST_PAUSE_S * 2 ** min(self.failures, 10), LONGEST_PAUSE_S)
            self.not_before = now + pause_s
            self.failures += 1

    def served(self) -> None:
        """It has answered: the next attempt, whenever it is, comes without delay."""
        self.failure = None
        self.failures = 0
        self.not_before = 0.0


def _ignore(*_: object) -> None:
    pass


class Peers:
    """Requests to other nodes. `address_of` is asked at each connect, so addresses may change.

    `on_connected(node)` is called when a node's control connection is there, `on_lost(node, False)`
    when it is lost or can't be made, `on_lost(node, True)` when the node's process is gone. That is
    so when a connection is refused by the kernel that the process would have: that of this host.
    What is said for another one may come from a firewall, or from a proxy in front of a node that
    is alive; `routed` are the nodes that are reached through one.
    """

    def __init__(
        self,
        node_id: int,
        secret: bytes,
        address_of: Callable[[int], Address | None],
        *,
        entropy: Callable[[int], bytes] = os.urandom,
        routed: Container[int] = (),
        is_own: Callable[[str], bool] = is_of_this_host,
        on_connected: Callable[[int], None] = _ignore,
        on_lost: Callable[[int, bool], None] = _ignore,
    ) -> None:
        self.node_id = node_id  # a node that joins is told its own only then
        self._secret = secret
        self._address_of = address_of
        self._entropy = entropy
        self._routed = routed
        self._is_own = is_own
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._peers: dict[int, _Peer] = {}
        self._links: dict[Link, None] = {}
        self._closed = False
        self.clock: Clock | None = None
        """Goes along with what is asked and answered."""

    async def request(
        self,
        node: int,
        api: Api,
        message: Said,
        *,
        timeout_s: float,
        data: bool = False,
        relay: bool = False,
    ) -> Struct:
        """The node's answer; PeerUnreachable if there is none within the time.

        What clients have asked has a link of its own: it may be large, and wait for long.
        """
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(node)
        lane = peer.relay if relay else peer.data if data else peer.control
        link = lane.link
        if link is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_s
            link = await self._connected(peer, lane, timeout_s)
            timeout_s = max(0.0, deadline - loop.time())
        return await link.ask(api, message, timeout_s)

    async def request_at(
        self, host: str, port: int, api: Api, message: Struct, *, timeout_s: float
    ) -> Struct:
        """Ask whichever node is at that address, on a connection for this once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connect_timeout_s = min(timeout_s, CONNECT_TIMEOUT_S)
        link = await self._open(f"{host}:{port}", (host, port), None, connect_timeout_s)
        try:
            return await link.ask(api, message, max(0.0, deadline - loop.time()))
        finally:
            link.part("it is no longer needed")

    def lost_for_s(self, node: int) -> float | None:
        """Since when the node can't be reached any more; None if it can, or never was tried."""
        peer = self._peers.get(node)
        if peer is None or peer.state not in (_State.LOST, _State.GONE):
            return None
        return asyncio.get_running_loop().time() - peer.lost_at

    async def close(self) -> None:
        """At once: what isn't answered fails, and so does every later request."""
        self._closed = True
        lanes = [
            lane for peer in self._peers.values() for lane in (peer.control, peer.data, peer.relay)
        ]
        tasks = [lane.connecting for lane in lanes if lane.connecting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._links):
            link.part(CLOSED)
        gone = [link.gone for link in self._links]
        if gone:
            # A connect that was cancelled may have left a transport that never says it is gone.
            await asyncio.wait(gone, timeout=LAST_WORDS_S)

    # Connecting

    async def _connected(self, peer: _Peer, lane: _Lane, timeout_s: float) -> Link:
        if not self._closed:
            task = lane.connecting or self._connect(peer, lane)
            await asyncio.wait([task], timeout=timeout_s)
        if self._closed:
            raise PeerUnreachable(CLOSED)
        if not task.done():
            before = f"; before that: {peer.failure}" if peer.failure else ""
            raise PeerUnreachable(
                f"node {peer.node}: no connection within {timeout_s:g} s{before}",
                refused=peer.failure is not None and peer.failure.refused,
                gone=peer.failure is not None and peer.failure.gone,
            )
        outcome = task.result()
        if isinstance(outcome, PeerUnreachable):
            raise PeerUnreachable(str(outcome), refused=outcome.refused, gone=outcome.gone)
        return outcome

    def _connect(self, peer: _Peer, lane: _Lane) -> asyncio.Task[Link | PeerUnreachable]:
        lane.connecting = asyncio.get_running_loop().create_task(self._attempt(peer, lane))
        return lane.connecting

    async def _attempt(self, peer: _Peer, lane: _Lane) -> Link | PeerUnreachable:
        """One attempt for everybody who waits for it, when its time has come."""
        loop = asyncio.get_running_loop()
        address = None
        try:
            if peer.not_before > loop.time():
                await asyncio.sleep(peer.not_before - loop.time())
            lane.failures_before = peer.failures
            address = self._address_of(peer.node)
            if address is None:
                raise PeerUnreachable(f"node {peer.node}: its address is not known")
            name = f"node {peer.node} at {address[0]}:{address[1]}"
            link = await self._open(name, address, peer.node, CONNECT_TIMEOUT_S)
        except PeerUnreachable as failure:
            if failure.refused and address is not None and peer.node not in self._routed:
                failure.gone = self._is_own(address[0])
            peer.failed(lane, failure, loop.time())
            self._tell_lost(peer, lane, gone=failure.gone)
            return failure
        finally:
            lane.connecting = None
        log.info("connected to %s", link.name)
        lane.link = link
        link.has_answered = False  # to anything but who it is
        link.on_lost = functools.partial(self._lost, peer, lane, link)
        self._tell_connected(peer, lane)
        return link

    async def _open(
        self, name: str, address: Address, expected_id: int | None, timeout_s: float
    ) -> Link:
        link = Link(name, self._links, expected_id, self.clock)
        side = ClientSide(self._secret, self.node_id, self._entropy(NONCE_BYTES))
        await open_link(link, side, address, timeout_s)
        if self._closed:
            link.part(CLOSED)
        return link

    # Telling

    def _tell_connected(self, peer: _Peer, lane: _Lane) -> None:
        if lane is peer.control:
            peer.state = _State.CONNECTED
            self._on_connected(peer.node)
        elif peer.state is _State.GONE:
            peer.state = _State.UNKNOWN

    def _lost(self, peer: _Peer, lane: _Lane, link: Link, reason: str) -> None:
        lane.link = None
        if self._closed:
            return
        log.info("lost %s: %s", link.name, reason)
        if link.has_answered:
            peer.served()
        else:  # else one that accepts us and hangs up would be called again without end
            failure = PeerUnreachable(f"{link.name}: {reason}")
            peer.failed(lane, failure, asyncio.get_running_loop().time())
        if lane is peer.control:
            # Whether its process is gone shows at once, and not when somebody next needs it.
            self._connect(peer, lane)
        self._tell_lost(peer, lane, gone=False)

    def _tell_lost(self, peer: _Peer, lane: _Lane, *, gone: bool) -> None:
        if peer.state not in (_State.LOST, _State.GONE):
            peer.lost_at = asyncio.get_running_loop().time()
        if gone and peer.state is not _State.GONE:
            peer.state = _State.GONE
        elif lane is peer.control and peer.state in (_State.UNKNOWN, _State.CONNECTED):
            peer.state = _State.LOST
        else:
            return
        self._on_lost(peer.node, gone)


class NoPeers:
    """For a node on its own."""

    async def request(
        self,
        node: int,
        api: Api,
        message: Said,
        *,
        timeout_s: float,
        data: bool = False,
        relay: bool = False,
    ) -> Struct:
        raise PeerUnreachable(f"node {node} is unknown here")

    def lost_for_s(self, node: int) -> float | None:
        return None
