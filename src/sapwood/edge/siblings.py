"""The edges that clients may go on at, and which of them a client is sent to."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


class Sibling(NamedTuple):
    """An edge as clients know it."""

    node_id: int
    host: str
    port: int


def leader_for(client_id: str | None, siblings: Iterable[Sibling]) -> Sibling:
    """The same from whichever of them is asked; and only who was sent to one that has gone is sent
    elsewhere (the highest of one hash per sibling)."""
    name = (client_id or "").encode()

    def weight(sibling: Sibling) -> bytes:
        return hashlib.blake2b(b"%d/%s" % (sibling.node_id, name), digest_size=8).digest()

    return max(siblings, key=weight)
