"""This node's connections to the other nodes: one for control and one for data each.

A connection is made when it is first needed, shows that both sides know the cluster's secret, and
is kept. Requests share it, and answers find them by correlation id. When it is lost, all its
requests fail at once. A request that isn't answered in time fails alone, unless nothing at all was
heard meanwhile: then the connection is given up, because after a cut TCP alone would go on trying
for minutes. What was lost is tried anew at once, and then after ever longer pauses.
"""

import asyncio
import enum
import errno
import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from sapwood.security import NONCE_BYTES, AuthenticationFailed, ClientSide
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.frames import FrameBuffer, decode_response_header, encode_request_frame

log = logging.getLogger("sapwood.replica")

CONNECT_TIMEOUT_S = 1.0
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
SILENCE_S = 1.0
LAST_WORDS_S = 0.5
SECOND_LOOK_S = 0.05
MOST_UNSENT_BYTES = 64 * 1024 * 1024

CLOSED = "this node has closed its connections"

Address = tuple[str, int]


class PeerUnreachable(Exception):
    """No answer from that node, now; it may have carried the request out all the same.

    `refused`: its host says that nobody listens there, so the process is gone.
    """

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


@dataclass(slots=True, eq=False)
class _Asked:
    api: Api
    version: int
    at: float
    future: asyncio.Future[Struct]


class _Link(asyncio.BufferedProtocol):
    """One connection: requests out, and the answers to them in any order."""

    def __init__(self, name: str, links: dict["_Link", None]) -> None:
        self.name = name
        self.on_lost: Callable[[str], None] | None = None
        self.has_answered = False
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._links = links  # all that are open
        self._transport: asyncio.Transport | None = None
        self._reason = "not connected"
        self._frames = FrameBuffer()
        self._asked: dict[int, _Asked] = {}  # those that were given up, too: their answers may come
        self._last_id = 0
        self._heard_at = 0.0
        self._silent_since: float | None = None

    async def ask(self, api: Api, message: Struct, timeout_s: float) -> Struct:
        transport = self.check_open()
        if transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            raise PeerUnreachable(f"{self.name} doesn't take what it was sent before")
        version = codec_versions(api)[1]
        number = self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        frame = encode_request_frame(api, version, number, None, message)
        asked = _Asked(api, version, self._loop.time(), self._loop.create_future())
        self._asked[number] = asked
        transport.writelines(frame)
        timer = self._loop.call_later(timeout_s, self._give_up, asked, timeout_s)
        try:
            return await asked.future
        finally:
            timer.cancel()

    def check_open(self) -> asyncio.Transport:
        if self._transport is None:
            raise PeerUnreachable(f"{self.name}: {self._reason}")
        return self._transport

    def part(self, reason: str) -> None:
        """End the connection; whoever waits for an answer is told why there won't be one."""
        if self._transport is not None:
            self._transport.abort()
            self._end(reason)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._links[self] = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = self._loop.time()
        self._silent_since = None
        try:
            for frame in self._frames.received(nbytes):
                self._answered(frame)
        except MalformedMessage as error:
            self.part(f"it sent what can't be understood: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        del self._links[self]
        self.gone.set_result(None)
        self._end(str(exc) if exc else "it closed the connection")

    # Answers, and their absence

    def _answered(self, frame: memoryview) -> None:
        number = int.from_bytes(frame[:4], "big")
        asked = self._asked.get(number)
        if asked is None:
            raise MalformedMessage(f"an answer to request {number}, which waits for none")
        if not asked.future.done():
            _, body = decode_response_header(asked.api, asked.version, frame)
            asked.future.set_result(decode_response(asked.api, asked.version, frame, body))
        del self._asked[number]
        self.has_answered = True

    def _give_up(self, asked: _Asked, timeout_s: float) -> None:
        if asked.future.done():
            return
        reason = f"{self.name} has not answered within {timeout_s:g} s"
        asked.future.set_exception(PeerUnreachable(reason))
        if self._heard_at > asked.at:
            return
        if self._silent_since is None:
            self._silent_since = asked.at
        if self._loop.time() - self._silent_since >= SILENCE_S:
            # Unless this process itself was held up, and the answer lies unread.
            self._loop.call_later(SECOND_LOOK_S, self._part_if_silent)

    def _part_if_silent(self) -> None:
        if self._silent_since is not None:
            self.part("nothing was heard of it")

    def _end(self, reason: str) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._reason = reason
        unanswered, self._asked = self._asked, {}
        for asked in unanswered.values():
            if not asked.future.done():
                asked.future.set_exception(PeerUnreachable(f"{self.name}: {reason}"))
        if self.on_lost is not None:
            self.on_lost(reason)


@dataclass(slots=True, eq=False)
class _Lane:
    link: _Link | None = None
    connecting: asyncio.Task[_Link | PeerUnreachable] | None = None
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
    when it is lost or can't be made, `on_lost(node, True)` when the node's process is gone.
    """

    def __init__(
        self,
        node_id: int,
        secret: bytes,
        address_of: Callable[[int], Address | None],
        *,
        entropy: Callable[[int], bytes] = os.urandom,
        on_connected: Callable[[int], None] = _ignore,
        on_lost: Callable[[int, bool], None] = _ignore,
    ) -> None:
        self.node_id = node_id  # a node that joins is told its own only then
        self._secret = secret
        self._address_of = address_of
        self._entropy = entropy
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._peers: dict[int, _Peer] = {}
        self._links: dict[_Link, None] = {}
        self._closed = False

    async def request(
        self, node: int, api: Api, message: Struct, *, timeout_s: float, data: bool = False
    ) -> Struct:
        """The node's answer; PeerUnreachable if there is none within the time."""
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(node)
        lane = peer.data if data else peer.control
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
        lanes = [lane for peer in self._peers.values() for lane in (peer.control, peer.data)]
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

    async def _connected(self, peer: _Peer, lane: _Lane, timeout_s: float) -> _Link:
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
            )
        outcome = task.result()
        if isinstance(outcome, PeerUnreachable):
            raise PeerUnreachable(str(outcome), refused=outcome.refused)
        return outcome

    def _connect(self, peer: _Peer, lane: _Lane) -> asyncio.Task[_Link | PeerUnreachable]:
        lane.connecting = asyncio.get_running_loop().create_task(self._attempt(peer, lane))
        return lane.connecting

    async def _attempt(self, peer: _Peer, lane: _Lane) -> _Link | PeerUnreachable:
        """One attempt for everybody who waits for it, when its time has come."""
        loop = asyncio.get_running_loop()
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
            peer.failed(lane, failure, loop.time())
            self._tell_lost(peer, lane, refused=failure.refused)
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
    ) -> _Link:
        link = _Link(name, self._links)
        is_open = False
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().create_connection(lambda: link, *address)
                side = ClientSide(self._secret, self.node_id, self._entropy(NONCE_BYTES))
                challenge = await link.ask(Api.AUTHENTICATE, side.hello(), timeout_s)
                proof = side.prove(challenge, expected_id)
                side.check(await link.ask(Api.AUTHENTICATE, proof, timeout_s))
            link.check_open()  # it may have been lost right behind its last answer
            is_open = not self._closed
        except TimeoutError as error:
            raise PeerUnreachable(f"{name}: no connection within {timeout_s:g} s") from error
        except OSError as error:
            raise PeerUnreachable(f"{name}: {error}", refused=_is_refusal(error)) from error
        except AuthenticationFailed as error:
            raise PeerUnreachable(f"{name}: {error}") from error
        finally:
            if not is_open:
                link.part(CLOSED)
        return link

    # Telling

    def _tell_connected(self, peer: _Peer, lane: _Lane) -> None:
        if lane is peer.control:
            peer.state = _State.CONNECTED
            self._on_connected(peer.node)
        elif peer.state is _State.GONE:
            peer.state = _State.UNKNOWN

    def _lost(self, peer: _Peer, lane: _Lane, link: _Link, reason: str) -> None:
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
        self._tell_lost(peer, lane, refused=False)

    def _tell_lost(self, peer: _Peer, lane: _Lane, *, refused: bool) -> None:
        if peer.state not in (_State.LOST, _State.GONE):
            peer.lost_at = asyncio.get_running_loop().time()
        if refused and peer.state is not _State.GONE:
            peer.state = _State.GONE
        elif lane is peer.control and peer.state in (_State.UNKNOWN, _State.CONNECTED):
            peer.state = _State.LOST
        else:
            return
        self._on_lost(peer.node, refused)


def _is_refusal(error: OSError) -> bool:
    # A name with several addresses yields one error that has only the text of all of them.
    by_all = f"[Errno {errno.ECONNREFUSED}]" in str(error)
    return by_all or isinstance(error, ConnectionRefusedError)
