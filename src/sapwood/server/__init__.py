"""Sockets: bytes in, whole requests to one handler, responses out.

In comes whatever a peer sends. Out go calls of the handler, synchronously and in the order of
arrival; it answers with buffers, with an awaitable of buffers, or with None (no response).
What always holds, per connection: a client's responses leave in request order though they may
finish in any, a node's as they are ready; a node is who has proved to know the cluster's secret,
and nobody else's private messages reach the handler; no more than a fixed number of requests and
bytes is outstanding, and nothing is read while the peer doesn't read; what all clients hold is
bounded, too, so memory is. Bad bytes, silence or a handler's failure cost one connection and
nobody else anything.
"""

from sapwood.server.connection import Connection
from sapwood.server.server import Server
from sapwood.server.types import Counters, Handler, Limits, Listener, Request, Unanswerable

__all__ = [
    "Connection",
    "Counters",
    "Handler",
    "Limits",
    "Listener",
    "Request",
    "Server",
    "Unanswerable",
]
