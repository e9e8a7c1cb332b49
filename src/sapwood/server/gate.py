"""The door for nodes: what this server knows to tell them from strangers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.security import NONCE_BYTES, AuthenticationFailed, ServerSide
from sapwood.wire.apis import Api

# Beyond this key come the messages of nodes; up to it everybody may ask.
LAST_PUBLIC_KEY = int(Api.NODE_STATUS)
AUTHENTICATE_KEY = int(Api.AUTHENTICATE)

# Whoever guesses at the secret waits this long for each guess.
REFUSAL_DELAY_S = 0.2


@dataclass(slots=True)
class Gate:
    """Shut without a secret. The id may be set later: a node that joins is told its own."""

    secret: bytes | None = field(repr=False)
    node_id: int
    entropy: Callable[[int], bytes]

    def exchange(self) -> ServerSide:
        """Our side of one attempt to show that somebody is a node."""
        if self.secret is None:
            raise AuthenticationFailed("this node has no secret, so it knows no other")
        return ServerSide(self.secret, self.node_id, self.entropy(NONCE_BYTES))
