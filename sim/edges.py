"""An edge of Sapwood on a simulated machine: a relay that clients take for the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.edge import Edge, Identity
from sapwood.node.config import parse_address
from sapwood.node.edge import NO_ID, ask_for_id
from sapwood.server import Server
from sim.loop import Process
from sim.node import SECRET, STOP_GRACE_S, SimServer
from sim.world import World


class SimEdge(SimServer):
    def __init__(self, world: World, number: int, cores: Sequence[str], parent: str | None) -> None:
        super().__init__(world, f"edge{number}")
        self.node_id = NO_ID
        self._incarnation = 0
        self._known = tuple(parse_address(it) for it in cores)
        self._parent = None if parent is None else parse_address(parent)
        self._edge: Edge | None = None

    @property
    def is_attached(self) -> bool:
        return self.serves and self._edge is not None and self._edge.uplink.is_connected

    @property
    def depth(self) -> float:
        """How many are above it; -1 while nobody is."""
        if not self.serves or self._edge is None:
            return -1
        return self._edge.metrics()["sapwood_tree_depth"]

    async def _assemble(self, process: Process) -> Server:
        server = await self._listening()
        advertised = server.advertised()
        if self.node_id == NO_ID:
            given = await ask_for_id(SECRET, self._known, advertised, self.machine.entropy)
            self.node_id = given
        self._incarnation = max(self._incarnation + 1, self.machine.clock.now_ms())
        server.gate.node_id = self.node_id
        identity = Identity(
            self.node_id, self._incarnation, advertised, SECRET, self._known, self._parent
        )
        edge = self._edge = Edge(
            identity,
            self.machine.clock.now_ms,
            load=lambda: len(server.connections),
            entropy=self.machine.entropy,
        )
        server.handler, server.clock = edge.handle, edge.clock
        await server.start()
        await edge.ready()
        return server

    async def _take_apart(self, server: Server) -> None:
        await server.close(STOP_GRACE_S)
        if self._edge is not None:
            await self._edge.close()
