"""A connection to another node, from the side that makes it: requests out, answers in any order.

Both sides show that they know the cluster's secret before anything else is said. When a link is
lost all its requests fail at once. A request that isn't answered in time fails alone, unless
nothing at all was heard meanwhile: then the link is given up, because after a cut TCP alone would
go on trying for minutes.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from sapwood.security import AuthenticationFailed, ClientSide
from sapwood.server.connection import ENVELOPE_BYTES
from sapwood.server.types import Clock
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.frames import (
    DEFAULT_FRAME_LIMIT,
    FrameBuffer,
    decode_response_header,
    encode_request_frame,
    response_clock,
)

SILENCE_S = 1.0
SECOND_LOOK_S = 0.05
MOST_UNSENT_BYTES = 64 * 1024 * 1024

Address = tuple[str, int]

UNTIMED = frozenset(
    {Api.AUTHENTICATE, Api.REPLICA_FETCH, Api.REPLICA_VOTE, Api.ANNOUNCE, Api.TRANSFER}
)
"""These carry the clock in the message, or come before anybody may be believed."""

Said = Struct | Callable[[float], Struct]
"""A message, or what makes it once it is known over which link it goes: one proved at that time."""


class PeerUnreachable(Exception):
    """No answer from that node, now; it may have carried the request out all the same.

    `refused`: nobody listens there, as far as can be seen, so nobody got the request. `gone`: its
    process has ended, for certain.
    """

    def __init__(self, reason: str, *, refused: bool = False, gone: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        self.gone = gone


@dataclass(slots=True, eq=False)
class _Asked:
    api: Api
    version: int
    at: float
    future: asyncio.Future[Struct]


class Link(asyncio.BufferedProtocol):
    """One connection: requests out, and the answers to them in any order."""

    def __init__(
        self,
        name: str,
        links: dict["Link", None],
        expected_id: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._clock = clock
        self.expected_id = expected_id
        self.on_lost: Callable[[str], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.has_answered = False
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.proved_at = 0.0
        """When each side had shown who it is: not before the other one has accepted it."""
        self._links = links  # all that are open
        self._transport: asyncio.Transport | None = None
        self._reason = "not connected"
        self._frames = FrameBuffer(DEFAULT_FRAME_LIMIT + ENVELOPE_BYTES)
        self._asked: dict[int, _Asked] = {}  # those that were given up, too: their answers may come
        self._last_id = 0
        self._heard_at = 0.0
        self._silent_since: float | None = None

    async def ask(self, api: Api, message: Said, timeout_s: float) -> Struct:
        return await self.send(api, message, timeout_s)

    def send(self, api: Api, message: Said, timeout_s: float) -> asyncio.Future[Struct]:
        """The answer to come. Requests leave in the order of these calls."""
        transport = self.check_open()
        if transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            raise PeerUnreachable(f"{self.name} doesn't take what it was sent before")
        version = codec_versions(api)[1]
        number = self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        message = message if isinstance(message, Struct) else message(self.proved_at)
        clock = None if self._clock is None or api in UNTIMED else self._clock.last
        frame = encode_request_frame(api, version, number, None, message, clock)
        asked = _Asked(api, version, self._loop.time(), self._loop.create_future())
        self._asked[number] = asked
        transport.writelines(frame)
        timer = self._loop.call_later(timeout_s, self._give_up, asked, timeout_s)
        asked.future.add_done_callback(lambda _: timer.cancel())
        return asked.future

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

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

    def resume_writing(self) -> None:
        if self.on_drained is not None:
            self.on_drained()

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
            reading = response_clock(asked.api, asked.version, frame)
            if reading is not None and self._clock is not None:
                self._clock.observe(reading)
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


async def open_link(link: Link, side: ClientSide, address: Address, timeout_s: float) -> int:
    """Connect, and prove each other; the node that is there. A link that fails is left closed."""
    is_open = False
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(lambda: link, *address)
            challenge = await link.ask(Api.AUTHENTICATE, side.hello(), timeout_s)
            proof = side.prove(challenge, link.expected_id)
            node = side.check(await link.ask(Api.AUTHENTICATE, proof, timeout_s))
        link.check_open()  # it may have been lost right behind its last answer
        link.proved_at = asyncio.get_running_loop().time()
        is_open = True
    except TimeoutError as error:
        raise PeerUnreachable(f"{link.name}: no connection within {timeout_s:g} s") from error
    except OSError as error:
        raise PeerUnreachable(f"{link.name}: {error}", refused=_is_refusal(error)) from error
    except AuthenticationFailed as error:
        raise PeerUnreachable(f"{link.name}: {error}") from error
    finally:
        if not is_open:
            link.part("it was not opened")
    return node


def is_of_this_host(host: str) -> bool:
    """Whether nobody but this host's own kernel answers for that address.

    Names of others aren't looked up, which may take long: they are taken for somebody else's.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing, but shows where it would be sent from
        return ipaddress.ip_address(probe.getsockname()[0]) == address
    return False


def _is_refusal(error: OSError) -> bool:
    # A name with several addresses yields one error that has only the text of all of them.
    by_all = f"[Errno {errno.ECONNREFUSED}]" in str(error)
    return by_all or isinstance(error, ConnectionRefusedError)
