"""Sockets: bytes in, whole requests to one handler, responses out in the order of the requests.

In comes whatever a peer sends. Out go calls of the handler, synchronously and in the order of
arrival; it answers with buffers, with an awaitable of buffers, or with None (no response).
What always holds, per connection: responses leave in request order though they may finish in any;
no more than a fixed number of requests and bytes is outstanding, and nothing is read while the
peer doesn't read, so memory is bounded by the limits and not by the peer. Bad bytes, silence or a
handler's failure cost one connection and nobody else anything; each is counted.
"""

from sapwood.server.connection import Connection
from sapwood.server.server import Server
from sapwood.server.types import Counters, Handler, Limits, Listener, Request

__all__ = ["Connection", "Counters", "Handler", "Limits", "Listener", "Request", "Server"]
