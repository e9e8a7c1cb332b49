"""Where the other nodes are, if the metadata doesn't know, or doesn't know any more.

A node knows the others' addresses from the metadata, and newer ones from whoever leads that. If
everybody has moved nobody finds anybody, unless somebody says where to look: `join` does.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable

from sapwood.node.config import parse_address
from sapwood.replica.peers import Peers
from sapwood.server.link import PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

logger = logging.getLogger("sapwood.node")

ANSWER_TIMEOUT_S = 5.0
PAUSE_S = 0.25
# Afterwards the others will have found this node, or there is nobody to find.
PATIENCE_S = 60.0


Address = tuple[str, int]
InMetadata = Callable[[int], Address | None]


class Places:
    """Addresses of other nodes besides those in the metadata, shared with whoever connects."""

    def __init__(self, routes: dict[int, Address], members: dict[int, Address]) -> None:
        self.routes = routes
        """These go before what the metadata says."""
        self.members = members
        """These count only where the metadata says nothing."""
        self._outdated: dict[int, Address] = {}
        """What the metadata said when a hint was found to be newer."""

    def learn(self, node_id: int, address: Address, in_metadata: InMetadata) -> None:
        """A node was found there, just now."""
        self.members[node_id] = address
        known = in_metadata(node_id)
        if known not in (None, address) and node_id not in self.routes:
            logger.info("node %d is at %s:%d now", node_id, *address)
            self.routes[node_id] = address
            self._outdated[node_id] = known

    def review(self, in_metadata: InMetadata) -> None:
        """A hint has done its work when the metadata has anything newer."""
        for node_id, outdated in list(self._outdated.items()):
            if in_metadata(node_id) != outdated:
                del self._outdated[node_id], self.routes[node_id]


async def follow(
    addresses: Iterable[str],
    node_id: int,
    secret: bytes,
    learn: Callable[[int, Address], None],
    *,
    entropy: Callable[[int], bytes] = os.urandom,
) -> None:
    """Ask at each address, until it answers, which node is there; and pass that on."""
    peers = Peers(node_id, secret, lambda _: None, entropy=entropy)
    try:
        await asyncio.gather(*(_follow(peers, address, node_id, learn) for address in addresses))
    finally:
        await peers.close()


async def _follow(
    peers: Peers, address: str, node_id: int, learn: Callable[[int, Address], None]
) -> None:
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while loop.time() < deadline:
        try:
            # On a proved connection: a stranger must not send us to where it likes.
            answer = await peers.request_at(
                host, port, Api.NODE_STATUS, Struct(), timeout_s=ANSWER_TIMEOUT_S
            )
        except PeerUnreachable as error:
            logger.debug("nobody there yet: %s", error)
            await asyncio.sleep(PAUSE_S)
            continue
        if answer.node_id != node_id:
            learn(answer.node_id, (host, port))
        return
