"""The protocol client: one sans-I/O core with an asyncio and a blocking shell.

In: what the caller wants (`core.request`, `core.append`, `core.join`), bytes that arrived,
connections that opened or broke, and the time. Out: effects (connect, send, close, settled) and
the moment at which the core wants to be woken; no socket, clock, thread or random source inside.
`Client` and `AsyncClient` stand on it: procedures that either shell runs.
Always: requests to one partition leave in order; a batch that is sent again carries the sequence
numbers it had the first time; every ticket is settled exactly once; every buffer has a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sapwood.client.aio import AsyncKafkaClient
    from sapwood.client.async_client import AsyncClient
    from sapwood.client.blocking import KafkaClient
    from sapwood.client.config import ClientConfig
    from sapwood.client.errors import (
        ClientClosed,
        NotAcknowledged,
        NotSubscribed,
        PositionLost,
    )
    from sapwood.client.messages import Message, Stored
    from sapwood.client.session import Pending
    from sapwood.client.sync_client import Client
    from sapwood.wire.compression import Compression
    from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage

__all__ = [
    "AsyncClient",
    "AsyncKafkaClient",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "Compression",
    "ErrorCode",
    "KafkaClient",
    "KafkaError",
    "MalformedMessage",
    "Message",
    "NotAcknowledged",
    "NotSubscribed",
    "Pending",
    "PositionLost",
    "Stored",
]

_HOMES = {
    "AsyncClient": "sapwood.client.async_client",
    "AsyncKafkaClient": "sapwood.client.aio",
    "Client": "sapwood.client.sync_client",
    "ClientClosed": "sapwood.client.errors",
    "ClientConfig": "sapwood.client.config",
    "Compression": "sapwood.wire.compression",
    "ErrorCode": "sapwood.wire.errors",
    "KafkaClient": "sapwood.client.blocking",
    "KafkaError": "sapwood.wire.errors",
    "MalformedMessage": "sapwood.wire.errors",
    "Message": "sapwood.client.messages",
    "NotAcknowledged": "sapwood.client.errors",
    "NotSubscribed": "sapwood.client.errors",
    "Pending": "sapwood.client.session",
    "PositionLost": "sapwood.client.errors",
    "Stored": "sapwood.client.messages",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
