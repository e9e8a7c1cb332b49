"""How the cluster is, as records of topics, for pipelines and whoever else wants to look back.

`__sapwood_nodes` has the nodes of the tree with their clients, `__sapwood_raft` the groups of
replicas as `/raft_status` shows them, `__sapwood_subscribers` what each durable subscriber has
acknowledged of each partition: JSON, keyed by what it is about, one record whenever that has
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

from sapwood.client import ClientClosed, ErrorCode, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.group_admin import list_groups
from sapwood.client.subscriber import SEPARATOR
from sapwood.gateway import consuming, health, tree
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.problems import Refused

logger = logging.getLogger("sapwood.gateway")

NODES_TOPIC = "__sapwood_nodes"
RAFT_TOPIC = "__sapwood_raft"
SUBSCRIBERS_TOPIC = "__sapwood_subscribers"
TOPICS = (NODES_TOPIC, RAFT_TOPIC, SUBSCRIBERS_TOPIC)
EVERY_S = 2.0
LARGEST_SHARE = 0.2
"""Of the time: where there is much to ask, it is asked less often."""

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
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._report()
            except (KafkaError, ClientClosed, Refused) as error:
                logger.debug("how the cluster is can't be reported now: %s", error)
            except Exception:
                logger.exception("how the cluster is can't be reported")
            await asyncio.sleep(max(EVERY_S, (clock() - began) * (1 / LARGEST_SHARE - 1)))

    async def _report(self) -> None:
        cluster = self._cluster
        if (await cluster.status(cluster.node_id)).controller != cluster.node_id:
            self._told.clear()
            return
        found = {**await self._nodes(), **await self._groups(), **await self._subscribers()}
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
        return {
            (RAFT_TOPIC, f"{it.topic}-{it.partition}"): msgspec.to_builtins(it)
            for it in found.groups
            if it.topic not in TOPICS  # which would never come to rest
        }

    async def _subscribers(self) -> dict[Key, dict[str, Any]]:
        """A node that has just become a coordinator may not list all that it has: so topics that
        had subscribers are asked after, too."""
        reader = self._cluster.reader
        listed = await reader.run(list_groups(reader.core, reader.now_ms))
        topics = {it.group_id.partition(SEPARATOR)[0] for it in listed if SEPARATOR in it.group_id}
        topics |= {it["topic"] for key, it in self._told.items() if key[0] == SUBSCRIBERS_TOPIC}
        found: dict[Key, dict[str, Any]] = {}
        for topic in sorted(topics.difference(TOPICS)):
            try:
                answer = await consuming.pending(self._cluster, consuming.PendingQuery(topic=topic))
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                continue  # deleted, or not a subscription at all
            for it in answer.pending:
                found[SUBSCRIBERS_TOPIC, f"{topic}-{it.partition}-{it.subscriber}"] = {
                    "subscriber": it.subscriber,
                    "topic": topic,
                    "partition": it.partition,
                    "acknowledged": it.position,
                    "end": it.end,
                    "pending": it.pending,
                }
        return found

    async def _make_topics(self) -> None:
        if not self._has_topics:
            for name in TOPICS:
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
