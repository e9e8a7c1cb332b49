"""A core node's process: ports, membership, disk, broker, server; and all of it in reverse."""

import asyncio
import errno
import gc
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

import msgspec

from sapwood.broker import Broker, BrokerConfig
from sapwood.broker.state import wall_clock_ms
from sapwood.disk import OsDisk
from sapwood.node import discovery, identity, membership, ready
from sapwood.node.config import NodeConfig, parse_address
from sapwood.node.hints import Places, follow
from sapwood.node.joining import join
from sapwood.node.membership import Member, NoMembership
from sapwood.node.process import REMOVED_STATUS
from sapwood.node.shell import Shell, StartFailed, fitting, not_ready, raise_file_limit, reachable
from sapwood.replica import Peers, Timing, Voter
from sapwood.server import Server
from sapwood.wire.apis import Api
from sapwood.wire.schema import load

logger = logging.getLogger("sapwood.node")

WATCH_S = 0.5

# What today's clients send before their first message is acknowledged.
FIRST_REQUESTS = (
    (Api.API_VERSIONS, 3),
    (Api.API_VERSIONS, 4),
    (Api.METADATA, 13),
    (Api.PRODUCE, 10),
    (Api.INIT_PRODUCER_ID, 4),
    (Api.PRODUCE, 12),
    (Api.INIT_PRODUCER_ID, 5),
)


class Node(Shell):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        routes = {node: parse_address(it) for node, it in config.peer_routes.items()}
        self._places = Places(routes, {})
        self._hints = config.join
        self._following: asyncio.Future[None]

    async def run(self, announce: bool) -> None:
        server, broker, member = await self._start()
        entry: Path | None = None
        watch = asyncio.ensure_future(self._watch(broker, member.identity))
        try:
            self.tell(server, member.identity.node_id, "core", announce)
            entry = self._register(server, member)
            threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
            await self.stop.wait()
            logger.info("stopping")
        finally:
            watch.cancel()
            self._following.cancel()
            self.untell()
            if entry is not None:
                entry.unlink(missing_ok=True)
            await broker.resign()
            broker.release_waiters()
            await server.close(self.config.stop_grace_s)
            await broker.stop()

    async def _start(self) -> tuple[Server, Broker, Member]:
        config = self.config
        server = Server(
            not_ready, config.server_listeners(), fitting(config.limits, raise_file_limit())
        )
        try:
            await server.bind()
            advertised = reachable(server.advertised())
            member = await self._membership(advertised)
            server.gate.secret, server.gate.node_id = member.secret, member.identity.node_id
            broker = self._broker(member, advertised, server)
            await broker.start()
            self._follow_hints(member, broker)
            # What lives as long as the node needn't be looked at by the garbage collector.
            gc.freeze()
            server.handler, server.clock = broker.handle, broker.state.replicas.clock
            await server.start()  # before entering: the others must be able to answer
            await self.unless_stopped(broker.enter())
            member = self._learn_cluster(member, broker)
        except NoMembership as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            advice = "; give another port" if error.errno == errno.EADDRINUSE else ""
            raise StartFailed((error.strerror or str(error)) + advice) from error
        except Exception as error:
            raise StartFailed(f"{type(error).__name__}: {error}") from error
        return server, broker, member

    def _broker(
        self, member: Member, advertised: dict[str, tuple[str, int]], server: Server
    ) -> Broker:
        config, who = self.config, member.identity
        for node, address in who.members.items():
            self._places.members[node] = parse_address(address)
        return Broker(
            BrokerConfig(
                node_id=who.node_id,
                incarnation=who.incarnation,
                cluster_id=who.cluster_id,
                metadata_voters=tuple(Voter(*voter) for voter in who.metadata_voters),
                rack=config.rack,
                members=self._places.members,
                routes=self._places.routes,
                timing=Timing(silence_s=config.link_timeout_ms / 1000),
                heartbeat_s=config.heartbeat_ms / 1000,
                advertised=advertised,
                auto_create_topics=config.auto_create_topics,
                num_partitions=config.num_partitions,
                overrides=config.broker_configs(),
            ),
            OsDisk(),
            str(self.directory),
            now_ms=lambda: wall_clock_ms() + config.clock_offset_ms,
            server_metrics=server.metrics,
            connect=lambda address_of: Peers(
                who.node_id, member.secret, address_of, routed=config.peer_routes
            ),
            on_fatal=self.give_up,
        )

    async def _membership(self, advertised: dict[str, tuple[str, int]]) -> Member:
        found = membership.settle(self.config, self.directory)
        if isinstance(found, Member):
            return found
        self._hints = found.addresses
        joining = join(found, self.config, self.directory, advertised)
        member = await self.unless_stopped(joining)
        if member is None:
            raise NoMembership("told to stop before the cluster has taken this node in")
        return member

    def _follow_hints(self, member: Member, broker: Broker) -> None:
        def learn(node_id: int, address: tuple[str, int]) -> None:
            self._places.learn(node_id, address, lambda it: in_metadata(broker, it))

        node_id = member.identity.node_id
        self._following = asyncio.ensure_future(follow(self._hints, node_id, member.secret, learn))

    async def _watch(self, broker: Broker, who: identity.Identity) -> None:
        """What the metadata come to say about this node and the others' addresses."""
        was_in = False
        while (is_in := who.node_id in broker.state.image.nodes) or not was_in:
            was_in = is_in
            self._places.review(lambda it: in_metadata(broker, it))
            who = await self._remember_others(broker, who)
            await asyncio.sleep(WATCH_S)
        self.give_up("this node was removed from the cluster", REMOVED_STATUS)

    async def _remember_others(self, broker: Broker, who: identity.Identity) -> identity.Identity:
        """Without its metadata log this node would know of nobody to fill it again from."""
        members = {
            node: ready.join_address(*address)
            for node in broker.state.image.nodes
            if node != who.node_id and (address := in_metadata(broker, node)) is not None
        }
        if members == who.members:
            return who
        known = msgspec.structs.replace(who, members=members)
        try:
            await asyncio.to_thread(identity.write, self.directory, known)
        except OSError as error:
            logger.warning("the other nodes' addresses were not written down: %s", error)
        return known

    def _learn_cluster(self, member: Member, broker: Broker) -> Member:
        """A founder knows its cluster's id once it has read or begun the metadata log."""
        cluster_id = broker.state.image.cluster_id
        if member.identity.cluster_id is None and cluster_id is not None:
            known = msgspec.structs.replace(member.identity, cluster_id=cluster_id)
            identity.write(self.directory, known)
            return replace(member, identity=known)
        return member

    def _register(self, server: Server, member: Member) -> Path | None:
        """Let nodes that this user starts on this host find the cluster."""
        if not self.config.discoverable or member.identity.cluster_id is None:
            return None
        host, port = next(iter(server.addresses.values()))
        entry = discovery.Entry(
            cluster_id=member.identity.cluster_id,
            node_id=member.identity.node_id,
            address=ready.local_address(ready.join_address(host, port)),
            secret_file=str(member.secret_file),
            data_dir=str(self.directory),
            pid=os.getpid(),
            host=discovery.this_host(),
        )
        try:
            return discovery.register(entry)
        except (OSError, discovery.NotPrivate) as error:
            logger.warning("nodes started on this host won't find this one: %s", error)
            return None


def in_metadata(broker: Broker, node_id: int) -> tuple[str, int] | None:
    """Where the metadata say that other nodes reach it."""
    node = broker.state.image.nodes.get(node_id)
    return None if node is None else next(iter(node.listeners.values()))


def warm_up() -> None:
    """Load the schemas that every client begins with, so that the first one needn't wait."""
    for api, version in FIRST_REQUESTS:
        load(api, version, "request")
        load(api, version, "response")
