"""A broker at the other end of a connection: confirmed to the supervisor, and reported if it goes.

The secret is what the broker itself has shown; a gateway has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from sapwood.client import ClientClosed, ErrorCode, KafkaError
from sapwood.client.tree_admin import NewEdge
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.lines.words import InvalidLine, Port
from sapwood.gateway.tree import nodes_in, show_tree

logger = logging.getLogger("sapwood.gateway")

REPORT_S = 10.0
LOOK_S = 2.0
NOBODY = -1
"""The father of one that is pending and was sent to nobody."""


class Child:
    """Nobody yet, or the broker that this connection has turned out to be."""

    def __init__(self, cluster: Cluster, host: str, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._host = host
        self._changed = changed
        self._secret = b""
        self._name = ""
        self._ports: dict[str, int] = {}
        self._staying: asyncio.Task[None] | None = None

    @property
    def is_broker(self) -> bool:
        return bool(self._name)

    async def confirm(self, command: Port) -> None:
        """InvalidLine without the cluster's secret; KafkaError if it wasn't sent to this node."""
        try:
            secret = bytes.fromhex(command.secret)
        except ValueError as error:
            raise InvalidLine("PORT: the secret is the one line of the cluster's file") from error
        if not secret:
            raise InvalidLine("PORT is for brokers, which know the cluster's secret")
        name = f"{command.host or self._host}:{command.port}"
        with _invalid_if_wrong():
            async with self._cluster.as_node(secret) as kafka:
                await kafka.confirm_edge(self._father(), name)
        self._secret, self._name = secret, name
        if self._staying is None:
            self._staying = asyncio.ensure_future(self._stay())
        self._changed()  # a broker is no client

    async def gone(self) -> None:
        """Its connection has ended: the relation to this node has, too."""
        if self._staying is not None:
            self._staying.cancel()
            await asyncio.gather(self._staying, return_exceptions=True)
        if not self._name or self._cluster.closing.is_set():
            return  # if it is this process that goes, the broker may well be there
        try:
            async with asyncio.timeout(REPORT_S), self._cluster.as_node(self._secret) as kafka:
                await kafka.report_down(self._father(), self._name)
        except (KafkaError, TimeoutError, asyncio.CancelledError) as error:
            logger.info("%s has gone, which can't be reported: %s", self._name, error)

    async def _stay(self) -> None:
        """As long as its connection lives it isn't dead, whoever has reported that."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._confirm_again()
            except (KafkaError, ClientClosed) as error:
                logger.info("whether %s is in the tree can't be told: %s", self._name, error)

    async def _confirm_again(self) -> None:
        found = await show_tree(self._cluster)
        for it in (*nodes_in(found.children), *found.pending):
            if f"{it.host}:{it.port}" == self._name:
                self._ports = it.ports
                if it.state == "CONFIRMED" or it.father not in (NOBODY, self._cluster.node_id):
                    return
        host, _, port = self._name.rpartition(":")
        edge = NewEdge(host, int(port), self._father(), self._ports)
        async with self._cluster.as_node(self._secret) as kafka:
            await kafka.register_edge(edge)
            await kafka.confirm_edge(self._father(), self._name)
        logger.warning("%s was reported down and lives: it is confirmed again", self._name)

    def _father(self) -> str:
        if self._cluster.node_id is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "this gateway stands beside no node: ask the father's"
            )
        return str(self._cluster.node_id)


@contextlib.contextmanager
def _invalid_if_wrong() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise InvalidLine("PORT: that isn't the cluster's secret") from error
        raise
