"""A node of Sapwood on a simulated machine: assembled as a process assembles it, and mistreated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextvars import Context
from pathlib import Path

import msgspec

from sapwood.broker import Broker, BrokerConfig
from sapwood.node import identity
from sapwood.node.config import NodeConfig, parse_address
from sapwood.node.hints import Places, follow
from sapwood.node.identity import Identity
from sapwood.node.joining import join
from sapwood.node.membership import Newcomer
from sapwood.node.run import in_metadata
from sapwood.replica import Partition, Peers, Voter
from sapwood.server import Limits, Listener, Request, Server
from sim.disk import Crashed
from sim.loop import Process
from sim.world import World

PORT = 9092
DATA = Path("/data")
SECRET = b"a secret that only the nodes know"
STOP_GRACE_S = 2.0
CONFIGS = {
    # Each is a group of replicas like any other, and most of sixteen would idle.
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    # Members die all the time here, and others are to take over within a seed.
    "group.consumer.session.timeout.ms": "3000",
}


class NotStarted(Exception):
    """A request came in before the broker was there."""


class SimServer(ABC):
    """A program on a machine of its own, which dies and is started again by its supervisor."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.machine = world.machine(name)
        self.address = f"{name}:{PORT}"
        self.failure: str | None = None
        """Why the last start didn't succeed."""
        self.restart_after_s: Callable[[], float] | None = None
        """How long its supervisor takes to start it again, if it has one."""
        self._server: Server | None = None

    @property
    def runs(self) -> bool:
        return self.machine.runs

    @property
    def serves(self) -> bool:
        return self.runs and self._server is not None

    @abstractmethod
    async def _assemble(self, process: Process) -> Server:
        """Start all that it consists of."""

    @abstractmethod
    async def _take_apart(self, server: Server) -> None:
        """In good order; OSError if that can't be."""

    def start(self) -> None:
        self._server = None
        self.failure = None
        process = self.machine.begin()
        self.world.trace.note(f"{self.machine.name} starts")
        process.at_end.append(self._ended)
        process.spawn(self._start(process))

    def _ended(self) -> None:
        if self.restart_after_s is not None:
            loop = self.world.loop
            loop.call_later(self.restart_after_s(), self._restart, context=Context())

    def _restart(self) -> None:
        if not self.runs and self.restart_after_s is not None:
            self.start()

    async def _start(self, process: Process) -> None:
        try:
            server = await self._assemble(process)
        except Crashed:
            raise
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self.world.trace.note(f"start failed: {self.failure}")
            self.machine.crash()
        else:
            self._server = server
            self.world.trace.note("ready")

    async def _listening(self) -> Server:
        server = Server(
            _not_started,
            [Listener(host=self.machine.name, port=PORT)],
            Limits(),
            secret=SECRET,
            entropy=self.machine.entropy,
        )
        await server.bind()
        return server

    def stop(self) -> None:
        """In good order, if it is that far; it may be killed half-way."""
        process = self.machine.process
        if process is not None and process.alive:
            self.world.trace.note(f"{self.machine.name} is asked to stop")
            if self._server is not None:
                process.spawn(self._stop(process))
            else:
                process.kill()

    async def _stop(self, process: Process) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            try:
                await self._take_apart(server)
            except OSError as error:
                self.world.trace.note(f"stop failed: {error}")
            else:
                self.world.trace.note("stopped")
            process.kill()


class SimNode(SimServer):
    def __init__(self, world: World, node_id: int, *, founds: bool, is_told: bool) -> None:
        super().__init__(world, f"node{node_id}")
        self.node_id = node_id
        self.others: list[str] = []
        """Where it may ask to be taken in."""
        self._founds = founds
        self._is_told = is_told
        """Whether each start tells it where others may be, as `sapwood up` does."""
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker | None:
        """Once it has recovered what it had."""
        return self._broker if self.runs else None

    def partitions(self) -> Iterator[Partition]:
        """What it holds, if it runs."""
        if (broker := self.broker) is not None:
            yield from broker.state.replicas

    def offline(self) -> list[tuple[str, int, str]]:
        return [] if self.broker is None else self.broker.offline_partitions()

    # -- life and death ------------------------------------------------------------------------

    def start(self) -> None:
        self._broker = None
        super().start()

    async def _assemble(self, process: Process) -> Server:
        server = await self._listening()
        who = await self._identity(server.advertised())
        server.gate.node_id = who.node_id
        places = Places({}, {node: parse_address(it) for node, it in who.members.items()})
        broker = self._assembled(who, server, places)
        await broker.start()
        self._broker = broker
        if self._is_told:
            process.spawn(self._follow_hints(who.node_id, broker, places))
        server.handler, server.clock = broker.handle, broker.state.replicas.clock
        await server.start()
        await broker.enter()
        self._learn_cluster(who, broker)
        return server

    async def _take_apart(self, server: Server) -> None:
        if self._broker is not None:
            await self._broker.resign()
            self._broker.release_waiters()
            await server.close(STOP_GRACE_S)
            await self._broker.stop()

    async def _identity(self, advertised: dict[str, tuple[str, int]]) -> Identity:
        disk, path = self.machine.disk, str(DATA / identity.FILE_NAME)
        if disk.exists(path):
            file = disk.open(path, write=False)
            return identity.parse(file.pread(file.size, 0), path)
        disk.makedirs(str(DATA))
        if self._founds:
            known = identity.found(self.node_id, identity.OLD_INCARNATION)
            identity.write(DATA, known)
            self._founds = False  # founded again it would be another cluster
            return known
        newcomer = Newcomer(self.others, DATA, SECRET)
        config = NodeConfig(data_dir=str(DATA), node_id=self.node_id)
        member = await join(newcomer, config, DATA, advertised, entropy=self.machine.entropy)
        return member.identity

    def _learn_cluster(self, who: Identity, broker: Broker) -> None:
        cluster_id = broker.state.image.cluster_id
        if who.cluster_id is None and cluster_id is not None:
            identity.write(DATA, msgspec.structs.replace(who, cluster_id=cluster_id))

    async def _follow_hints(self, node_id: int, broker: Broker, places: Places) -> None:
        def learn(node: int, address: tuple[str, int]) -> None:
            places.learn(node, address, lambda it: in_metadata(broker, it))

        await follow(self.others, node_id, SECRET, learn, entropy=self.machine.entropy)

    def _assembled(self, who: Identity, server: Server, places: Places) -> Broker:
        return Broker(
            BrokerConfig(
                node_id=who.node_id,
                incarnation=who.incarnation,
                cluster_id=who.cluster_id,
                metadata_voters=tuple(Voter(*voter) for voter in who.metadata_voters),
                members=places.members,
                routes=places.routes,
                advertised=server.advertised(),
                auto_create_topics=False,
                overrides=CONFIGS,
            ),
            self.machine.disk,
            str(DATA),
            now_ms=self.machine.clock.now_ms,
            server_metrics=server.metrics,
            connect=lambda address_of: Peers(
                who.node_id,
                SECRET,
                address_of,
                entropy=self.machine.entropy,
                is_own=lambda host: True,  # nobody refuses here but a host whose process has ended
            ),
            entropy=self.machine.entropy,
            on_fatal=self._give_up,
        )

    def _give_up(self, reason: str) -> None:
        self.world.trace.note(f"gives up: {reason}")
        self.machine.crash()


def _not_started(request: Request) -> None:
    raise NotStarted
