"""Asking a cluster to take this node in: any of its nodes, again and again until one can answer."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from sapwood.node import identity
from sapwood.node.config import NodeConfig, parse_address
from sapwood.node.identity import Identity
from sapwood.node.membership import Member, Newcomer, NoMembership
from sapwood.node.ready import join_address
from sapwood.replica.peers import Peers
from sapwood.security import AuthenticationFailed
from sapwood.server.link import PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode

logger = logging.getLogger("sapwood.node")

ANSWER_TIMEOUT_S = 10.0
# A cluster that is being started is there in a moment and isn't worth a word; later on, it is.
IMPATIENCE_S = 3.0
FIRST_PAUSE_S = 0.05
PAUSE_S = 1.0
REMINDER_S = 10.0
# A node that was killed and comes back with an empty directory is taken for its own twin at first:
# the cluster believes it alive until it has been silent for a while.
TWIN_S = 10.0

NO_ID = -1


async def join(
    newcomer: Newcomer,
    config: NodeConfig,
    directory: Path,
    listeners: dict[str, tuple[str, int]],
    *,
    entropy: Callable[[int], bytes] = os.urandom,
) -> Member:
    """The node as a member of the cluster, which is on disk by then."""
    # A lost answer is asked for again with the same incarnation, so that it is the same node.
    incarnation = identity.new_incarnation(entropy)
    request = Struct(
        cluster_id=None,
        node_id=NO_ID if config.node_id is None else config.node_id,
        incarnation=incarnation,
        listeners=[
            Struct(name=name, host=host, port=port) for name, (host, port) in listeners.items()
        ],
        rack=config.rack,
        version=release(),
    )
    peers = Peers(NO_ID, newcomer.secret, lambda _: None, entropy=entropy)
    try:
        answer = await _ask(peers, newcomer.addresses, request)
    finally:
        await peers.close()
    known = Identity(
        cluster_id=answer.cluster_id,
        node_id=answer.node_id,
        incarnation=incarnation,
        metadata_voters=tuple((voter.node, voter.incarnation) for voter in answer.metadata_voters),
        members={
            member.node_id: join_address(member.host, member.port) for member in answer.members
        },
    )
    identity.write(directory, known)
    logger.info("joined the cluster %s as node %d", known.cluster_id, known.node_id)
    return Member(known, newcomer.secret_file, newcomer.secret)


async def _ask(peers: Peers, addresses: list[str], request: Struct) -> Struct:
    loop = asyncio.get_running_loop()
    next_word_at = loop.time() + IMPATIENCE_S
    is_twin_at = loop.time() + TWIN_S
    pause_s = FIRST_PAUSE_S
    while True:
        reasons = []
        for address in addresses:
            try:
                answer = await peers.request_at(
                    *parse_address(address), Api.JOIN, request, timeout_s=ANSWER_TIMEOUT_S
                )
            except PeerUnreachable as error:
                if isinstance(error.__cause__, AuthenticationFailed):
                    raise NoMembership(
                        f"the cluster at {error}: copy its file 'secret' here again"
                    ) from error
                reasons.append(str(error))
                continue
            if not answer.error_code:
                return answer
            code = ErrorCode(answer.error_code)
            reason = f"{address}: {answer.error_message or code.name}"
            may_be_gone = (
                code == ErrorCode.DUPLICATE_BROKER_REGISTRATION and loop.time() < is_twin_at
            )
            if not code.retriable and not may_be_gone:
                raise NoMembership(f"the cluster doesn't take this node in: {reason}")
            reasons.append(reason)
        if loop.time() >= next_word_at:
            logger.warning("can't join yet, trying on: %s", "; ".join(reasons))
            next_word_at = loop.time() + REMINDER_S
            pause_s = PAUSE_S
        await asyncio.sleep(pause_s)


def release() -> str:
    from importlib.metadata import version  # it takes 14 ms to load

    return version("sapwood")
