"""Nodes that say what a test wants them to: a real server each, behind which a script answers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sapwood.node import secret
from sapwood.server import Listener, Request, Server
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.frames import encode_response_frame


class ScriptedNode:
    """Answers of each kind in turn, the last one for ever; what changed it is noted."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.address = ""
        self.answers: dict[Api, list[Struct]] = {}
        self.asked: list[tuple[Api, Struct]] = []

    def handle(self, request: Request) -> list[Buffer]:
        api = Api(request.header.api_key)
        message = decode_request(api, 0, request.body, request.body_offset)
        if api not in (Api.NODE_STATUS, Api.DESCRIBE_REPLICAS):
            self.asked.append((api, message))
        script = self.answers[api]
        answer = script.pop(0) if len(script) > 1 else script[0]
        return encode_response_frame(api, 0, request.header.correlation_id, answer)


@contextmanager
def scripted_nodes(count: int, secret_file: Path) -> Iterator[list[ScriptedNode]]:
    """Nodes of one cluster, each at an address of its own."""
    nodes = [ScriptedNode(node_id) for node_id in range(count)]
    shared = secret.ensure(secret_file)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers = []

    async def start() -> None:
        for node in nodes:
            listener = Listener("kafka", "127.0.0.1", 0)
            server = Server(node.handle, [listener], secret=shared, node_id=node.node_id)
            await server.start()
            servers.append(server)
            node.address = f"127.0.0.1:{server.addresses['kafka'][1]}"

    async def stop() -> None:
        for server in servers:
            await server.close(0)

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        yield nodes
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def known(node: ScriptedNode, **details: Any) -> Struct:
    """A node as another one sees it."""
    host, _, port = node.address.rpartition(":")
    usual = {"alive": True, "draining": False, "rack": None, "replicas": 2, "leaders": 1}
    return Struct(**{"node_id": node.node_id, "host": host, "port": int(port), **usual, **details})


def status(nodes: list[Struct], **details: Any) -> Struct:
    usual = {
        "node_id": 0,
        "kind": "core",
        "pid": 1,
        "version": "1",
        "listeners": [],
        "metrics": [],
        "offline_partitions": [],
        "cluster_id": "c" * 22,
        "controller": 0,
        "controller_epoch": 3,
        "healthy": True,
    }
    return Struct(**{**usual, "nodes": nodes, **details})


def replica(topic: str, partition: int, **details: Any) -> Struct:
    usual = {
        "topic_id": bytes(16),
        "role": "follower",
        "term": 2,
        "leader": 0,
        "epoch": 2,
        "log_start": 0,
        "log_end": 10,
        "high_watermark": 10,
        "voters": [Struct(node=0, incarnation=0), Struct(node=1, incarnation=7)],
        "learners": [],
        "in_sync": [0, 1],
        "target": [0, 1],
        "followers": [],
    }
    return Struct(**{"topic": topic, "partition": partition, **usual, **details})
