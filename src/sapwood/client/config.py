"""Every knob of the client, with defaults that are safe first and fast second."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sapwood.wire.compression import Compression

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    bootstrap: Sequence[tuple[str, int]]
    client_id: str = "sapwood"

    # Connections
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000  # a whole call, with all its retries
    bootstrap_timeout_ms: int = 30_000  # until the first broker has answered
    backoff_ms: int = 50
    backoff_max_ms: int = 1_000
    max_frame_bytes: int = 100 * 1024 * 1024
    secret: bytes | None = field(default=None, repr=False)
    """The cluster's: with it one may ask what else only nodes may."""
    entropy: Callable[[int], bytes] = os.urandom

    # Metadata
    metadata_max_age_ms: int = 300_000
    topic_wait_ms: int = 10_000  # how long a topic may stay unknown before its users are told
    allow_auto_create: bool = True

    # Producer
    acks: Literal[-1, 0, 1] = -1
    idempotent: bool | None = None  # None: yes if acks is -1 (all)
    compression: Compression = Compression.NONE
    linger_ms: float = 0
    batch_bytes: int = 256 * 1024
    max_request_bytes: int = 1024 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
    keyless: Literal["sticky", "round-robin"] = "sticky"

    # Fetcher
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    fetch_partition_bytes: int = 1024 * 1024
    fetch_buffer_bytes: int = 32 * 1024 * 1024
    isolation_level: int = READ_UNCOMMITTED
    out_of_range: Literal["earliest", "latest", "error"] = "error"

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise ValueError("bootstrap names no broker: give host:port[,host:port…]")
        if self.idempotent and self.acks != -1:
            raise ValueError("an idempotent producer needs acks=-1 (all)")

    def pause_ms(self, failures: int) -> int:
        """How long to wait after so many failures in a row, the last one not counted."""
        return min(self.backoff_ms << min(failures, 10), self.backoff_max_ms)

    @property
    def is_idempotent(self) -> bool:
        return self.acks == -1 if self.idempotent is None else self.idempotent


def parse_bootstrap(text: str | Sequence[str]) -> list[tuple[str, int]]:
    """`host:port[,host:port…]`; the port defaults to 9092; IPv6 addresses stand in brackets."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    addresses = []
    for part in (part.strip() for part in parts):
        if not part:
            continue
        bare_ipv6 = part.startswith("[") and part.endswith("]")
        host, colon, port = (part, "", "") if bare_ipv6 else part.rpartition(":")
        if not colon:
            host, port = part, "9092"
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536 and host):
            raise ValueError(f"{part!r} isn't an address: write host:port")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses
