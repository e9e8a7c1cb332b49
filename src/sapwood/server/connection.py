"""One peer: frames in, answers out, back-pressure in both directions, and who it is."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

from sapwood.security import AuthenticationFailed, ServerSide
from sapwood.server.answers import AsReady, InOrder
from sapwood.server.gate import AUTHENTICATE_KEY, REFUSAL_DELAY_S, Gate, is_public
from sapwood.server.room import Room
from sapwood.server.types import (
    Clock,
    Counters,
    Handler,
    Limits,
    Listener,
    Request,
    Response,
    Unanswerable,
)
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import ErrorCode, MalformedMessage
from sapwood.wire.frames import (
    FrameBuffer,
    RequestHeader,
    decode_request_header,
    encode_response_frame,
    with_clock,
)

log = logging.getLogger("sapwood.server")

# Answers that are ready together leave in one writelines, up to about this much: past it the
# transport must get a chance to say that the peer doesn't read.
COALESCED_BYTES = 128 * 1024

# A node hands on what its clients sent, with who asked around it.
ENVELOPE_BYTES = 64 * 1024

KNOWN_KEYS = frozenset(map(int, Api))
UNKNOWN_KEY = -1  # noise from the wire shares one counter

# Received at once, so that one peer takes little before its room is looked at again.
RECEIVED_BYTES = 1024 * 1024

# Where the bytes of a peer go that is no longer listened to.
DISCARD = memoryview(bytearray(64 * 1024))

FETCH_KEY = int(Api.FETCH).to_bytes(2, "big")


def is_fetch(frame: memoryview) -> bool:
    """A Fetch's answer is large, so it isn't made before its turn has come.

    Else one peer could have as many of them in memory as it may have requests outstanding.
    """
    return frame[:2] == FETCH_KEY


class Connection(asyncio.BufferedProtocol):
    """A peer's connection, and what the handler may know about it."""

    def __init__(
        self,
        handler: Handler,
        listener: Listener,
        limits: Limits,
        counters: Counters,
        gate: Gate,
        room: Room,
        admit: Callable[["Connection"], bool],
        recognized: Callable[["Connection"], None],
        forget: Callable[["Connection"], None],
        clock: Clock | None = None,
    ) -> None:
        self.listener = listener.name
        self.peer: tuple[str, int] = ("", 0)
        self.principal: str | None = None
        self.node: int | None = None  # who it is, once it has shown that it knows the secret
        self.closed = False
        self.opened_at = asyncio.get_running_loop().time()

        self._handler = handler
        self._clock = clock
        self._limits = limits
        self._counters = counters
        self._gate = gate
        self._room = room
        self._exchange: ServerSide | None = None
        self._admit = admit
        self._recognized = recognized
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._frames = FrameBuffer(limits.max_frame_bytes)

        self._arrived: deque[memoryview] = deque()  # whole frames, not yet given to the handler
        self._arrived_bytes = 0
        self._outstanding: InOrder | AsReady = InOrder()
        self._max_outstanding = limits.max_outstanding_requests
        self._ready: list[Buffer] = []  # to be written before control returns to the loop
        self._ready_bytes = 0

        self._admitted = False
        self._reading = True
        self._write_paused = False
        self._finishing = False  # nothing more is read; closes after the last answer
        self.partial_bytes = 0  # of the frame that is still arriving
        self._held_bytes = 0  # as the room knows it
        self._partial_since = 0.0
        self._active_at = self._loop.time()
        self._unsent_bytes = 0

    @property
    def frame_limit(self) -> int:
        """The largest frame that is accepted from now on."""
        return self._frames.limit

    @frame_limit.setter
    def frame_limit(self, limit: int) -> None:
        self._frames.limit = limit

    @property
    def outstanding(self) -> int:
        """Requests that the handler has and that aren't answered."""
        return len(self._outstanding)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = (peer[0], peer[1])
        self._admitted = self._admit(self)
        if not self._admitted:
            self.closed = True
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=self._limits.write_high_water_bytes)

    def get_buffer(self, sizehint: int) -> memoryview:
        return DISCARD if self._finishing else self._frames.get_buffer(sizehint)[:RECEIVED_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        self._counters.received_bytes_total += nbytes
        if self._finishing:
            return
        try:
            frames = self._frames.received(nbytes)
        except MalformedMessage as error:
            self._refuse(error)
            return
        self._watch_partial_frame(nbytes, frames)
        if frames:
            self._arrived.extend(frames)
            self._arrived_bytes += sum(map(len, frames))
            self._pump()
        else:
            self.steer_reading()

    def eof_received(self) -> bool:
        """A client may end its side and still wait for answers; a node that does so is gone."""
        self._finishing = True
        self._reading = False
        return self.node is None and bool(self._outstanding or self._arrived)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._arrived.clear()
        self._outstanding.forget()
        self._ready.clear()
        self._hold()
        if self._admitted:
            self._forget(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self.steer_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._active_at = self._loop.time()
        self._pump()

    # From the server

    def finish(self) -> None:
        """Take no more requests; close when those that the handler has are answered.

        Bytes are still read, and dropped: a socket that is closed over unread bytes is reset, and
        the reset may overtake the last answers.
        """
        self._finishing = True
        self.partial_bytes = self._arrived_bytes = 0
        self._arrived.clear()
        self._hold()
        # Not at once: a handler may call this, and its answer is still to be written.
        self._loop.call_soon(self._close_if_finished)

    def abort(self) -> None:
        self._transport.abort()

    def make_room(self) -> None:
        """Give up the frame that is still arriving, and with it the connection."""
        log.warning(
            "closed %s:%d: %d bytes of a frame were in the way", *self.peer, self.partial_bytes
        )
        self.finish()
        self.abort()

    def sweep(self, now: float) -> None:
        """Close a peer that has been silent, stalled or slow for too long."""
        limits = self._limits
        if self.partial_bytes and self._reading:
            allowed = limits.frame_timeout_s + self.partial_bytes / limits.slowest_bytes_per_s
            if now - self._partial_since > allowed:
                self._counters.slow_closed_total += 1
                log.info("closed %s:%d: a frame took longer than %.0f s", *self.peer, allowed)
                self.abort()
                return
        unsent = self._transport.get_write_buffer_size()
        waits_for_us = bool(self._outstanding) and not unsent
        if waits_for_us or unsent != self._unsent_bytes:
            self._active_at = now
        self._unsent_bytes = unsent
        if now - self._active_at > limits.idle_timeout_s:
            self._counters.idle_closed_total += 1
            log.debug("closed %s:%d: idle for %.0f s", *self.peer, limits.idle_timeout_s)
            self.abort()

    # Requests

    def _watch_partial_frame(self, nbytes: int, frames: list[memoryview]) -> None:
        if frames or not self.partial_bytes:
            self._partial_since = self._active_at
        self.partial_bytes += nbytes - sum(len(frame) + 4 for frame in frames)

    def _pump(self) -> None:
        """Give the handler what has arrived, within the limits, and write what is ready."""
        limits = self._limits
        arrived = self._arrived
        while (
            arrived
            and not self._write_paused
            and len(self._outstanding) < self._max_outstanding
            and self._outstanding.request_bytes < limits.max_outstanding_bytes
            and not (self._outstanding and self.node is None and is_fetch(arrived[0]))
        ):
            frame = arrived.popleft()
            self._arrived_bytes -= len(frame)
            self._dispatch(frame)
            if self._ready_bytes >= COALESCED_BYTES:
                self._write()
        self._write()
        self.steer_reading()
        self._close_if_finished()

    def _dispatch(self, frame: memoryview) -> None:
        try:
            header, body_offset = decode_request_header(frame)
            self._count(header.api_key)
            request = Request(header, frame, body_offset, self)
            if header.clock is not None and self._clock is not None:
                (self._clock.hear if self.node is None else self._clock.observe)(header.clock)
            if is_public(header.api_key):
                answer = self._handler(request)
            elif header.api_key == AUTHENTICATE_KEY:
                answer = self._authenticate(request)
            elif self.node is not None:
                answer = self._handler(request)
            else:
                self._refuse_stranger(f"it asks as a node does (API key {header.api_key})")
                return
        except MalformedMessage as error:
            self._refuse(error)
            return
        except Exception as error:
            self._log_failure(error)
            self._drop()
            return
        if answer is None:
            return
        if header.clock is not None and self._clock is not None:
            answer = self._timed(header, answer, self._clock)
        if isinstance(answer, list):
            if self._outstanding and isinstance(self._outstanding, InOrder):
                self._outstanding.add(answer, len(frame))
            else:
                self._add_ready(answer)
        else:
            future = asyncio.ensure_future(answer)
            self._outstanding.add(future, len(frame))
            future.add_done_callback(self._answered)

    # The cluster's clock, for whoever says that it knows it

    def _timed(
        self, header: RequestHeader, answer: list[Buffer] | Awaitable[Response], clock: Clock
    ) -> list[Buffer] | Awaitable[Response]:
        api, version = header.api_key, header.api_version
        if isinstance(answer, list):
            return with_clock(api, version, answer, clock.last)

        async def later() -> Response:
            response = await answer
            return None if response is None else with_clock(api, version, response, clock.last)

        return later()

    def _count(self, api_key: int) -> None:
        if api_key not in KNOWN_KEYS:
            api_key = UNKNOWN_KEY
        requests_total = self._counters.requests_total
        requests_total[api_key] = requests_total.get(api_key, 0) + 1

    # Nodes

    def _authenticate(self, request: Request) -> Response | Awaitable[Response]:
        version = request.header.api_version
        message = decode_request(Api.AUTHENTICATE, version, request.body, request.body_offset)
        try:
            if self._outstanding:
                raise AuthenticationFailed("it has asked before it said who it is")
            if self._exchange is None:
                self._exchange = self._gate.exchange()
            answer = self._exchange.answer(message)
        except AuthenticationFailed as error:
            self._refuse_stranger(f"it says it is node {message.node_id}: {error}")
            return self._refusal(request, str(error))
        if self._exchange.client_id is not None:
            self.node = self._exchange.client_id
            self._outstanding = AsReady()
            self._max_outstanding = self._limits.max_outstanding_peer_requests
            self._frames.limit += ENVELOPE_BYTES
            self._recognized(self)
        return self._authenticate_frame(request, answer)

    async def _refusal(self, request: Request, reason: str) -> Response:
        await asyncio.sleep(REFUSAL_DELAY_S)
        code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
        return self._authenticate_frame(request, Struct(error_code=code, error_message=reason))

    def _authenticate_frame(self, request: Request, answer: Struct) -> list[Buffer]:
        header = request.header
        return encode_response_frame(
            Api.AUTHENTICATE, header.api_version, header.correlation_id, answer
        )

    def _refuse_stranger(self, reason: str) -> None:
        self._counters.peer_refused_total += 1
        log.warning("closing %s:%d: %s", *self.peer, reason)
        self.finish()

    # Answers

    def _answered(self, future: asyncio.Future[Response]) -> None:
        """Write all that may be written now."""
        if self.closed:
            error = None if future.cancelled() else future.exception()
            if error is not None and not isinstance(error, Unanswerable):
                self._log_failure(error)
            return
        try:
            for response in self._outstanding.take(future):
                if response is not None:
                    self._add_ready(response)
        except (asyncio.CancelledError, Unanswerable) as end:
            log.debug("closed %s:%d: %s", *self.peer, end)
            self._drop()
            return
        except MalformedMessage as malformed:
            self._log_malformed(malformed)
            self._drop()
            return
        except Exception as failure:
            self._log_failure(failure)
            self._drop()
            return
        self._pump()

    def _add_ready(self, buffers: list[Buffer]) -> None:
        self._ready += buffers
        self._ready_bytes += sum(map(len, buffers))

    def _write(self) -> None:
        ready = self._ready
        if not ready:
            return
        self._counters.sent_bytes_total += self._ready_bytes
        self._ready = []
        self._ready_bytes = 0
        if not self.closed:
            if len(ready) == 1:
                self._transport.write(ready[0])
            else:
                self._transport.writelines(ready)

    # Ends and pauses

    def steer_reading(self) -> None:
        """Read only while there is room for more requests and the peer takes its answers."""
        self._hold()
        if self._finishing or self.closed:
            return
        wanted = (
            not (self._arrived or self._write_paused)
            and len(self._outstanding) < self._max_outstanding
            and self._outstanding.request_bytes < self._limits.max_outstanding_bytes
            and self._room.has_some_for(self._held_bytes)
        )
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._active_at = self._partial_since = self._loop.time()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _hold(self) -> None:
        """Tell the room what this holds."""
        held = self.partial_bytes + self._arrived_bytes + self._outstanding.request_bytes
        if self.closed or self.node is not None:
            held = 0
        before, self._held_bytes = self._held_bytes, held
        if held != before:
            self._room.change(before, held)

    def _close_if_finished(self) -> None:
        if self._finishing and not (self._arrived or self._outstanding or self.closed):
            self._drop()

    def _refuse(self, error: MalformedMessage) -> None:
        self._log_malformed(error)
        self.finish()

    def _log_malformed(self, error: MalformedMessage) -> None:
        self._counters.malformed_total += 1
        log.warning("closing %s:%d: %s", *self.peer, error)

    def _log_failure(self, error: BaseException) -> None:
        self._counters.handler_errors_total += 1
        log.error("closing %s:%d: a request failed", *self.peer, exc_info=error)

    def _drop(self) -> None:
        """Write what is ready, then close: later answers can't leave without the missing one."""
        self._write()
        self.closed = True
        self._arrived.clear()
        self._outstanding.forget()
        self._hold()
        self._transport.close()
