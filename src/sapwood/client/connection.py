"""One connection to one broker: bytes in, answers out, in the order in which they were asked for.

    CONNECTING --opened--> NEGOTIATING --ApiVersions, secret--> READY --lost--> LOST
         \\----------------------------lost----------------------------------/

Kafka answers in order, so an answer belongs to the oldest request in flight; its correlation id
must say the same. A late answer means that everything behind it is late: the connection is lost.
Whoever has shown that it knows the cluster's secret is answered as nodes are: in any order.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.client.config import ClientConfig
from sapwood.client.effects import Effects, Send
from sapwood.client.errors import error_for
from sapwood.security import NONCE_BYTES, AuthenticationFailed, ClientSide
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.frames import (
    FrameBuffer,
    decode_response_header,
    encode_request_frame,
    response_clock,
)

# Above these a topic goes by its id alone. Names keep one way of asking for all brokers.
_HIGHEST_VERSION = {Api.PRODUCE: 12, Api.FETCH: 12}

_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")

A_TOOL = -1

OnAnswer = Callable[[Struct | KafkaError, float], None]


class State(enum.Enum):
    CONNECTING = enum.auto()
    NEGOTIATING = enum.auto()
    READY = enum.auto()
    LOST = enum.auto()


@dataclass(slots=True)
class Exchange:
    """One request and what to do with its answer, which is a message or the reason for none."""

    api: Api
    message: Struct
    on_answer: OnAnswer
    timeout_ms: float
    is_answered: bool = True  # Produce with acks=0 is not
    max_version: int | None = None
    version: int = -1
    correlation_id: int = -1
    deadline_ms: float = 0.0


@dataclass(slots=True)
class CausalClock:
    """The latest reading of the cluster's clock that this client has seen.

    What it sends next is ordered after all that it was told before, whichever node it goes to.
    """

    last: int = 0

    def observe(self, reading: int) -> None:
        self.last = max(self.last, reading)


@dataclass(slots=True)
class Connection:
    number: int
    host: str
    port: int
    lane: int
    node_id: int | None
    config: ClientConfig
    effects: Effects
    opened_by_ms: float
    clock: CausalClock = field(default_factory=CausalClock)
    state: State = State.CONNECTING
    in_flight: deque[Exchange] = field(default_factory=deque)
    produces_in_flight: int = 0
    _versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    _correlation_id: int = 0
    _is_trusted: bool = False
    _frames: FrameBuffer = field(init=False)

    def __post_init__(self) -> None:
        self._frames = FrameBuffer(self.config.max_frame_bytes)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def deadline_ms(self) -> float | None:
        """When this connection counts as lost if nothing arrives before."""
        if self.state is State.CONNECTING:
            return self.opened_by_ms
        return min((exchange.deadline_ms for exchange in self.in_flight), default=None)

    def opened(self, now_ms: float) -> None:
        self.state = State.NEGOTIATING
        self._negotiate(codec_versions(Api.API_VERSIONS)[1], now_ms)

    def submit(self, exchange: Exchange, now_ms: float) -> None:
        """The connection must be READY. Raises KafkaError if the broker has no common version."""
        self._send(exchange, self._version_of(exchange.api, exchange.max_version), now_ms)

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._frames.get_buffer(size_hint)

    def received(self, byte_count: int, now_ms: float) -> None:
        """Raises MalformedMessage or KafkaError if nothing more can be read from here."""
        for frame in self._frames.received(byte_count):
            if not self.in_flight:
                raise MalformedMessage(f"{self.address} sent an answer that nobody asked for")
            exchange = self._asked_by(frame) if self._is_trusted else self.in_flight[0]
            correlation_id, body = decode_response_header(exchange.api, exchange.version, frame)
            if correlation_id != exchange.correlation_id:
                raise MalformedMessage(
                    f"{self.address} answered request {correlation_id} instead of "
                    f"{exchange.correlation_id}"
                )
            reading = response_clock(exchange.api, exchange.version, frame)
            if reading is not None:
                self.clock.observe(reading)
            version = exchange.version
            if exchange.api is Api.API_VERSIONS and bytes(frame[body : body + 2]) == _UNSUPPORTED:
                version = 0  # UNSUPPORTED_VERSION always comes in the oldest form
            answer = decode_response(exchange.api, version, frame, body)
            if exchange is self.in_flight[0]:
                self.in_flight.popleft()
            else:
                self.in_flight.remove(exchange)
            exchange.on_answer(answer, now_ms)

    def _asked_by(self, frame: memoryview) -> Exchange:
        number = int.from_bytes(frame[:4], "big")
        return next((it for it in self.in_flight if it.correlation_id == number), self.in_flight[0])

    def lost(self, reason: KafkaError, now_ms: float) -> None:
        self.state = State.LOST
        unanswered, self.in_flight = self.in_flight, deque()
        for exchange in unanswered:
            exchange.on_answer(reason, now_ms)

    def versions_of(self, api: Api) -> tuple[int, int] | None:
        """The versions that the broker and this client both know."""
        if api not in self._versions:
            return None
        lowest, highest = codec_versions(api)
        theirs = self._versions[api]
        common = max(lowest, theirs[0]), min(highest, theirs[1], _HIGHEST_VERSION.get(api, highest))
        return common if common[0] <= common[1] else None

    def _version_of(self, api: Api, max_version: int | None) -> int:
        common = self.versions_of(api)
        if common is None or (max_version is not None and max_version < common[0]):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} doesn't serve {api.name} in a version that this "
                "client knows: upgrade one of them",
            )
        return common[1] if max_version is None else min(common[1], max_version)

    def _send(self, exchange: Exchange, version: int, now_ms: float) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        buffers = encode_request_frame(
            exchange.api,
            version,
            self._correlation_id,
            self.config.client_id,
            exchange.message,
            # Only Sapwood's nodes know what it is.
            self.clock.last if Api.APPEND_TIMES in self._versions else None,
        )
        exchange.version = version
        exchange.correlation_id = self._correlation_id
        exchange.deadline_ms = now_ms + exchange.timeout_ms
        if exchange.is_answered:
            self.in_flight.append(exchange)
        self.effects.add(Send(self.number, buffers))

    def _negotiate(self, version: int, now_ms: float) -> None:
        def negotiated(answer: Struct | KafkaError, now_ms: float) -> None:
            if isinstance(answer, KafkaError):
                return  # the connection is lost already
            ranges = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
                theirs = ranges.get(Api.API_VERSIONS, (0, 0))[1]
                self._negotiate(min(theirs, version - 1), now_ms)
            elif answer.error_code:
                raise error_for(answer.error_code, f"the broker at {self.address} won't negotiate")
            else:
                self._versions = ranges
                if self.config.secret is None:
                    self.state = State.READY
                else:
                    self._authenticate(self.config.secret, now_ms)

        hello = Struct(client_software_name="sapwood", client_software_version="0.1")
        timeout_ms = self.config.request_timeout_ms
        self._send(Exchange(Api.API_VERSIONS, hello, negotiated, timeout_ms), version, now_ms)

    def _authenticate(self, secret: bytes, now_ms: float) -> None:
        side = ClientSide(secret, A_TOOL, self.config.entropy(NONCE_BYTES))

        def challenged(answer: Struct, now_ms: float) -> None:
            send(side.prove(answer), proved, now_ms)

        def proved(answer: Struct, now_ms: float) -> None:
            side.check(answer)
            self._is_trusted = True
            self.state = State.READY

        def send(message: Struct, then: Callable[[Struct, float], None], now_ms: float) -> None:
            def answered(answer: Struct | KafkaError, now_ms: float) -> None:
                if isinstance(answer, KafkaError):
                    return  # the connection is lost already
                try:
                    then(answer, now_ms)
                except AuthenticationFailed as error:
                    reason = f"{self.address} doesn't take this secret: {error}"
                    raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, reason) from error

            timeout_ms = self.config.request_timeout_ms
            self._send(Exchange(Api.AUTHENTICATE, message, answered, timeout_ms), 0, now_ms)

        send(side.hello(), challenged, now_ms)
