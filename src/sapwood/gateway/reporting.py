"""How the cluster is, as records of topics, for pipelines and whoever else wants to look back.

`__sapwood_nodes` has the nodes of the tree with their clients, `__sapwood_raft` the groups of
replicas as `/raft_status` shows them: JSON, keyed by what it is about, one record whenever that has
changed. The gateway beside the active controller writes them; if that moves, the next one begins
with everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from sapwood.client import ClientClosed, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.gateway import health, tree
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.problems import Refused

logger = logging.getLogger("sapwood.gateway")

NODES_TOPIC = "__sapwood_nodes"
RAFT_TOPIC = "__sapwood_raft"
EVERY_S = 2.0

Key = tuple[str, str]


class Reporting:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: dict[Key, dict[str, Any]] = {}
        self._has_topics = False
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._report()
            except (KafkaError, ClientClosed, Refused) as error:
                logger.debug("how the cluster is can't be reported now: %s", error)
            except Exception:
                logger.exception("how the cluster is can't be reported")
            await asyncio.sleep(EVERY_S)

    async def _report(self) -> None:
        cluster = self._cluster
        if (await cluster.status(cluster.node_id)).controller != cluster.node_id:
            self._told.clear()
            return
        found = {**await self._nodes(), **await self._groups()}
        news = {key: it for key, it in found.items() if self._told.get(key) != it}
        gone = self._told.keys() - found.keys()
        if not news and not gone:
            return
        await self._make_topics()
        now_ms = cluster.talker.wall_clock_ms()
        for (topic, name), it in news.items():
            value = msgspec.json.encode({"time_ms": now_ms, **it})
            await cluster.talker.send(topic, value, name.encode())
        for topic, name in gone:
            value = msgspec.json.encode({"time_ms": now_ms, "gone": True})
            await cluster.talker.send(topic, value, name.encode())
        await cluster.talker.flush()
        self._told = found

    async def _nodes(self) -> dict[Key, dict[str, Any]]:
        found = msgspec.to_builtins(await tree.show_tree(self._cluster))
        return {(NODES_TOPIC, f"node-{it['node']}"): it for it in _flat(found["children"], None)}

    async def _groups(self) -> dict[Key, dict[str, Any]]:
        found = await health.raft_status(self._cluster, health.RaftQuery())
        own = (NODES_TOPIC, RAFT_TOPIC)  # which would never come to rest
        return {
            (RAFT_TOPIC, f"{it.topic}-{it.partition}"): msgspec.to_builtins(it)
            for it in found.groups
            if it.topic not in own
        }

    async def _make_topics(self) -> None:
        if not self._has_topics:
            for name in (NODES_TOPIC, RAFT_TOPIC):
                with contextlib.suppress(KafkaError):  # it is there already
                    await self._cluster.talker.create_topics([NewTopic(name, 1)])
            self._has_topics = True


def _flat(nodes: list[dict[str, Any]], father: int | None) -> Iterator[dict[str, Any]]:
    for it in nodes:
        yield {
            "node": it["id"],
            "kind": it["kind"],
            "host": it["host"],
            "port": it["port"],
            "father": father,
            "clients": it["load"],
            "controller": it["controller"],
            "children": [each["id"] for each in it["children"]],
        }
        yield from _flat(it["children"], it["id"])
