"""An edge's process: who it is, ports, the edge, the server; and all of it in reverse."""

import asyncio
import errno
import json
import logging
import os
import time
from collections.abc import Callable

from sapwood.disk import JournalCorrupt, OsDisk
from sapwood.edge import Edge, Identity, Outbox
from sapwood.node import membership
from sapwood.node.config import parse_address
from sapwood.node.layout import EDGE_FILE_NAME, OUTBOX_NAME, edge_identity
from sapwood.node.membership import Newcomer, NoMembership
from sapwood.node.shell import Shell, StartFailed, fitting, not_ready, raise_file_limit, reachable
from sapwood.replica.peers import Peers
from sapwood.security import AuthenticationFailed
from sapwood.server import Server
from sapwood.server.link import Address, PeerUnreachable
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode

logger = logging.getLogger("sapwood.node")

NO_ID = -1
ANSWER_S = 5.0
PAUSE_S = 0.1
REMINDER_S = 10.0


class EdgeNode(Shell):
    async def run(self, announce: bool) -> None:
        server, edge = await self._start()
        try:
            await self.unless_stopped(edge.ready())
            self.tell(server, edge.node_id, "edge", announce)
            await self.stop.wait()
            logger.info("stopping")
        finally:
            self.untell()
            await server.close(self.config.stop_grace_s)
            await edge.close()

    async def _start(self) -> tuple[Server, Edge]:
        config = self.config
        server = Server(
            not_ready, config.server_listeners(), fitting(config.limits, raise_file_limit())
        )
        try:
            cluster = self._cluster()
            await server.bind()
            advertised = reachable(server.advertised())
            known = tuple(parse_address(it) for it in cluster.addresses)
            node_id, incarnation = await self._register(cluster, known, advertised)
            server.gate.secret, server.gate.node_id = cluster.secret, node_id
            parent = parse_address(config.parent) if config.parent else None
            routes = {node: parse_address(it) for node, it in config.peer_routes.items()}
            identity = Identity(
                node_id, incarnation, advertised, cluster.secret, known, parent, routes
            )
            outbox = self._outbox()
            edge = Edge(
                identity,
                _now_ms,
                load=lambda: len(server.connections),
                outbox=outbox,
                stopwatch=time.perf_counter,
            )
            server.handler, server.clock = edge.handle, edge.clock
            await server.start()
        except (NoMembership, JournalCorrupt) as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            advice = "; give another port" if error.errno == errno.EADDRINUSE else ""
            raise StartFailed((error.strerror or str(error)) + advice) from error
        return server, edge

    def _outbox(self) -> Outbox | None:
        directory = self.directory / OUTBOX_NAME
        if not self.config.outbox:
            if directory.exists():
                logger.warning("what is in %s is not delivered without --outbox", directory)
            return None
        return Outbox(OsDisk(), str(directory), self.config.outbox_bytes, _now_ms, os.urandom)

    def _cluster(self) -> Newcomer:
        found = membership.settle(self.config, self.directory)
        if not isinstance(found, Newcomer):
            raise NoMembership(
                f"{self.directory} belongs to core node {found.identity.node_id}: an edge needs a "
                "directory of its own"
            )
        return found

    async def _register(
        self, cluster: Newcomer, known: tuple[Address, ...], advertised: dict[str, Address]
    ) -> tuple[int, int]:
        """Its id, given by the cluster once and for all; and an incarnation larger than before."""
        path = self.directory / EDGE_FILE_NAME
        # Without a file that can be read it is a new edge.
        node_id, before = edge_identity(self.directory) or (NO_ID, 0)
        if node_id == NO_ID:
            given = await self.unless_stopped(ask_for_id(cluster.secret, known, advertised))
            if given is None:
                raise NoMembership("told to stop before the cluster has taken this edge in")
            node_id = given
        incarnation = max(before + 1, _now_ms())
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps({"id": node_id, "incarnation": incarnation}) + "\n")
        os.replace(temporary, path)
        return node_id, incarnation


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def ask_for_id(
    secret: bytes,
    known: tuple[Address, ...],
    advertised: dict[str, Address],
    entropy: Callable[[int], bytes] = os.urandom,
) -> int:
    host, port = next(iter(advertised.values()))
    message = Struct(edge_id=NO_ID, host=host, port=port, ports=[], wish="")
    loop = asyncio.get_running_loop()
    next_word_at = loop.time() + REMINDER_S
    peers = Peers(NO_ID, secret, lambda _: None, entropy=entropy)
    try:
        while True:
            reasons = []
            for at in known:
                try:
                    answer = await peers.request_at(
                        *at, Api.REGISTER_EDGE, message, timeout_s=ANSWER_S
                    )
                except PeerUnreachable as error:
                    if isinstance(error.__cause__, AuthenticationFailed):
                        raise NoMembership(f"the cluster at {error}: copy its secret") from error
                    reasons.append(str(error))
                    continue
                if not answer.error_code:
                    node_id: int = answer.edge_id
                    return node_id
                code = ErrorCode(answer.error_code)
                reasons.append(f"{at[0]}:{at[1]}: {answer.error_message or code.name}")
            if loop.time() >= next_word_at:
                logger.warning("not taken in yet, trying on: %s", "; ".join(reasons))
                next_word_at = loop.time() + REMINDER_S
            await asyncio.sleep(PAUSE_S)
    finally:
        await peers.close()
