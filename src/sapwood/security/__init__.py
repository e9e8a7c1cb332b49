"""Who may speak as a node of this cluster.

In come the messages of an exchange, the cluster's secret, and nonces that somebody else drew; out
go the messages to send next, or AuthenticationFailed. Pure: no clock, no chance, no I/O.

What always holds: the secret never leaves; nothing that was overheard, sent back, or made for
another pair of nodes or another connection proves anything; proofs are compared in constant time.
"""

from sapwood.security.secret import NONCE_BYTES, AuthenticationFailed, ClientSide, ServerSide

__all__ = ["NONCE_BYTES", "AuthenticationFailed", "ClientSide", "ServerSide"]
