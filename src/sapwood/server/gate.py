"""The door for nodes: what this server knows to tell them from strangers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.security import NONCE_BYTES, AuthenticationFailed, ServerSide
from sapwood.wire.apis import Api

AUTHENTICATE_KEY = int(Api.AUTHENTICATE)

# Of Sapwood's own messages, those that everybody may send; the others are for nodes.
OWN_PUBLIC_KEYS = frozenset(
    {
        int(Api.NODE_STATUS),
        int(Api.APPEND_TIMES),
        int(Api.TOPIC_TIMES),
        int(Api.DESCRIBE_REPLICAS),
        int(Api.CHANGE_CLIENT),
        int(Api.LIST_CLIENTS),
        int(Api.END_TXN_GROUP),
        int(Api.DESCRIBE_TREE),
        int(Api.OUTBOX),
    }
)
FIRST_OWN_KEY = int(Api.NODE_STATUS)

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


def is_public(api_key: int) -> bool:
    return api_key < FIRST_OWN_KEY or api_key in OWN_PUBLIC_KEYS
