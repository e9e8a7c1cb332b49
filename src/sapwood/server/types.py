"""The words of the server: where it listens, what it allows, what it hands to the handler."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sapwood.wire.codec import Buffer
from sapwood.wire.frames import RequestHeader

if TYPE_CHECKING:
    from sapwood.server.connection import Connection


class Unanswerable(Exception):
    """What a handler raises if there won't be an answer: the connection ends instead."""


class Clock(Protocol):
    """The cluster's clock as this process knows it. It is told to whoever tells theirs."""

    @property
    def last(self) -> int:
        """At or after everything that an answer may tell of."""

    def observe(self, reading: int) -> None:
        """Of another node."""

    def hear(self, reading: int) -> None:
        """Of a client, who may have made it up."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One place to listen at. Port 0 takes a free one; clients are told the advertised address."""

    name: str = "kafka"
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    advertised_port: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer, and all peers together, may take."""

    max_connections: int = 8192
    max_connections_per_address: int = 4096
    max_frame_bytes: int = 100 * 1024 * 1024
    max_outstanding_requests: int = 64
    # Of a node, which hands on what its own clients ask.
    max_outstanding_peer_requests: int = 8192
    max_outstanding_bytes: int = 32 * 1024 * 1024
    # Of all clients together: frames that are still arriving, and requests without an answer.
    max_held_bytes: int = 512 * 1024 * 1024
    # After it was full for so long, the largest frame that is still arriving makes room.
    held_timeout_s: float = 5.0
    write_high_water_bytes: int = 1024 * 1024
    idle_timeout_s: float = 600.0
    # A frame may take this long, and longer only by what it has delivered at the slowest rate.
    frame_timeout_s: float = 30.0
    slowest_bytes_per_s: int = 64 * 1024
    backlog: int = 1024


@dataclass(slots=True)
class Counters:
    """What happened so far, over all connections of a server."""

    connections_total: int = 0
    connections_refused_total: int = 0
    idle_closed_total: int = 0
    slow_closed_total: int = 0
    crowded_closed_total: int = 0
    malformed_total: int = 0
    peer_refused_total: int = 0
    handler_errors_total: int = 0
    received_bytes_total: int = 0
    sent_bytes_total: int = 0
    requests_total: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Request:
    """One request. `body` is the whole frame, writable; the message starts at `body_offset`."""

    header: RequestHeader
    body: memoryview
    body_offset: int
    connection: "Connection"


Response: TypeAlias = list[Buffer] | None
Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]
