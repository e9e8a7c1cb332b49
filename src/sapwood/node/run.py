"""Assembly: lock, ports, disk, broker, server, signals; and all of it in reverse at the end."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sapwood.broker import Broker, BrokerConfig
from sapwood.disk import OsDisk
from sapwood.node import discovery, identity, logs, membership, ready
from sapwood.node.config import NodeConfig, parse_address
from sapwood.node.hints import Places, follow
from sapwood.node.joining import join
from sapwood.node.lock import DirectoryLock, DirectoryLocked
from sapwood.node.membership import Member, NoMembership
from sapwood.node.process import REMOVED_STATUS
from sapwood.replica import Peers, Timing, Voter
from sapwood.server import Limits, Server
from sapwood.wire.apis import Api
from sapwood.wire.schema import load

logger = logging.getLogger("sapwood.node")

T = TypeVar("T")

WATCH_S = 0.5
WILDCARDS = {"0.0.0.0", "::"}
# Descriptors for segments, indexes, the journal and the loop itself.
OWN_FILES_SHARE = 2

# One Ctrl-C or kill may arrive twice: to the process group, and passed on by a parent.
ECHO_S = 0.25

# glibc's numbers for mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 16 << 20

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


class StartFailed(Exception):
    """Why the node can't run, in one line."""


def run(config: NodeConfig, *, announce: bool = False, with_parent: bool = False) -> int:
    """Run a node until it is told to stop; the exit status of its process."""
    logs.configure(config.log_level, config.log_format)
    keep_memory()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            node = Node(config)
            return runner.run(node.serve(announce=announce, with_parent=with_parent))
    except StartFailed as error:
        logger.debug("start failed", exc_info=error)
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("the node failed")
        return 1


def keep_memory() -> None:
    """Have malloc keep what large answers were read into, up to a bound.

    By default glibc returns such blocks to the kernel at once, and the next fetch pays for fresh
    pages, zeroed one by one: a quarter of what serving a 1 MB fetch costs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # as on Windows
        return None
    return uvloop.new_event_loop


class Node:
    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._directory = Path(config.data_dir).absolute()
        routes = {node: parse_address(it) for node, it in config.peer_routes.items()}
        self._places = Places(routes, {})
        self._hints = config.join
        self._following: asyncio.Future[None]
        self._status = 0
        self._stop = asyncio.Event()
        self._signalled_at: float | None = None

    async def serve(self, *, announce: bool, with_parent: bool) -> int:
        """The exit status."""
        loop = asyncio.get_running_loop()
        self._listen_to_signals(loop)
        if with_parent:
            self._watch_parent(loop)
        lock = self._lock()
        try:
            ready.remove(self._directory)  # left by a node that was killed
            server, broker, member = await self._start()
            entry: Path | None = None
            watch = asyncio.ensure_future(self._watch(broker))
            try:
                self._tell(server, member, announce)
                entry = self._register(server, member)
                threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
                await self._stop.wait()
                logger.info("stopping")
            finally:
                watch.cancel()
                self._following.cancel()
                ready.remove(self._directory)
                if entry is not None:
                    entry.unlink(missing_ok=True)
                await broker.resign()
                broker.release_waiters()
                await server.close(self._config.stop_grace_s)
                await broker.stop()
            logger.info("stopped")
            return self._status
        finally:
            lock.release()

    def _lock(self) -> DirectoryLock:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return DirectoryLock(self._directory / ready.LOCK_NAME)
        except DirectoryLocked as error:
            raise StartFailed(f"{error}: stop it, or give another directory") from error
        except OSError as error:
            raise StartFailed(
                f"can't use the data directory {self._directory}: {error.strerror}"
            ) from error

    async def _start(self) -> tuple[Server, Broker, Member]:
        config = self._config
        server = Server(
            _not_ready, config.server_listeners(), fitting(config.limits, raise_file_limit())
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
            server.handler = broker.handle
            await server.start()  # before entering: the others must be able to answer
            await self._unless_stopped(broker.enter())
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
        config, who = self._config, member.identity
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
            str(self._directory),
            server_metrics=server.metrics,
            connect=lambda address_of: Peers(who.node_id, member.secret, address_of),
            on_fatal=self._give_up,
        )

    async def _membership(self, advertised: dict[str, tuple[str, int]]) -> Member:
        found = membership.settle(self._config, self._directory)
        if isinstance(found, Member):
            return found
        self._hints = found.addresses
        joining = join(found, self._config, self._directory, advertised)
        member = await self._unless_stopped(joining)
        if member is None:
            raise NoMembership("told to stop before the cluster has taken this node in")
        return member

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Its result. It may take long, and whoever started the node may lose patience."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            return working.result()
        working.cancel()
        return None

    def _follow_hints(self, member: Member, broker: Broker) -> None:
        def learn(node_id: int, address: tuple[str, int]) -> None:
            self._places.learn(node_id, address, lambda it: in_metadata(broker, it))

        node_id = member.identity.node_id
        self._following = asyncio.ensure_future(follow(self._hints, node_id, member.secret, learn))

    async def _watch(self, broker: Broker) -> None:
        """What the metadata come to say about this node and the others' addresses."""
        node_id, was_in = broker.state.config.node_id, False
        while (is_in := node_id in broker.state.image.nodes) or not was_in:
            was_in = is_in
            self._places.review(lambda it: in_metadata(broker, it))
            await asyncio.sleep(WATCH_S)
        self._give_up("this node was removed from the cluster", REMOVED_STATUS)

    def _give_up(self, reason: str, status: int = 1) -> None:
        logger.error("stopping: %s", reason)
        self._status = status
        self._stop.set()

    def _learn_cluster(self, member: Member, broker: Broker) -> Member:
        """A founder knows its cluster's id once it has read or begun the metadata log."""
        cluster_id = broker.state.image.cluster_id
        if member.identity.cluster_id is None and cluster_id is not None:
            known = msgspec.structs.replace(member.identity, cluster_id=cluster_id)
            identity.write(self._directory, known)
            return replace(member, identity=known)
        return member

    def _tell(self, server: Server, member: Member, announce: bool) -> None:
        info = ready.Ready(
            pid=os.getpid(),
            node_id=member.identity.node_id,
            kind="core",
            listeners={
                name: ready.join_address(*address) for name, address in server.addresses.items()
            },
            started=time.time(),
        )
        ready.write(self._directory, info)
        where = ", ".join(f"{name} at {address}" for name, address in info["listeners"].items())
        logger.info("node %d is ready: %s, data in %s", info["node_id"], where, self._directory)
        if announce:
            with contextlib.suppress(OSError):  # nobody listens any more
                print(json.dumps(info), flush=True)

    def _register(self, server: Server, member: Member) -> Path | None:
        """Let nodes that this user starts on this host find the cluster."""
        if not self._config.discoverable or member.identity.cluster_id is None:
            return None
        host, port = next(iter(server.addresses.values()))
        entry = discovery.Entry(
            cluster_id=member.identity.cluster_id,
            node_id=member.identity.node_id,
            address=ready.local_address(ready.join_address(host, port)),
            secret_file=str(member.secret_file),
            data_dir=str(self._directory),
            pid=os.getpid(),
            host=discovery.this_host(),
        )
        try:
            return discovery.register(entry)
        except (OSError, discovery.NotPrivate) as error:
            logger.warning("nodes started on this host won't find this one: %s", error)
            return None

    def _listen_to_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._on_signal)
            except NotImplementedError:  # Windows

                def handle(*_: object) -> None:
                    loop.call_soon_threadsafe(self._on_signal)

                signal.signal(number, handle)

    def _on_signal(self) -> None:
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
            self._stop.set()
        elif now - self._signalled_at > ECHO_S:
            logger.warning("stopping at once")
            os._exit(1)

    def _watch_parent(self, loop: asyncio.AbstractEventLoop) -> None:
        """A pipe from the parent on stdin ends when the parent does, even if it is killed."""

        def wait() -> None:
            with contextlib.suppress(OSError):
                while os.read(0, 1024):
                    pass
            with contextlib.suppress(RuntimeError):  # the loop has ended first
                loop.call_soon_threadsafe(self._stop.set)

        threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def in_metadata(broker: Broker, node_id: int) -> tuple[str, int] | None:
    """Where the metadata say that other nodes reach it."""
    node = broker.state.image.nodes.get(node_id)
    return None if node is None else next(iter(node.listeners.values()))


def _not_ready(_request: object) -> None:
    raise StartFailed("a request came in before the broker was there")


def reachable(advertised: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """A wildcard is where one listens, not where one can be reached: tell the host's name."""
    return {
        name: (socket.gethostname() if host in WILDCARDS else host, port)
        for name, (host, port) in advertised.items()
    }


def raise_file_limit() -> int | None:
    """As many open files as the system lets this process have; None if that isn't known."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def fitting(limits: Limits, files: int | None) -> Limits:
    """No more connections than leave the node enough descriptors for its own files."""
    if files is None or limits.max_connections <= files // OWN_FILES_SHARE:
        return limits
    return replace(limits, max_connections=max(1, files // OWN_FILES_SHARE))


def warm_up() -> None:
    """Load the schemas that every client begins with, so that the first one needn't wait."""
    for api, version in FIRST_REQUESTS:
        load(api, version, "request")
        load(api, version, "response")
