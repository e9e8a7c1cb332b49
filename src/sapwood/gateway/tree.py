"""`/tree`, `/jtree`, `/tree/events`, `/broker`, `/node/…`: the supervisor, at every node."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse

from sapwood.client import ClientClosed, ErrorCode, KafkaError, Message
from sapwood.client.admin import NewTopic
from sapwood.client.tree_admin import NewEdge
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.lines.feed import Listener
from sapwood.gateway.problems import Refused
from sapwood.gateway.words import Answer, Body, Count

EVENTS_TOPIC = "__sapwood_tree"
MOST_WAITING = 1000
STILL_HERE_S = 15.0

Host = Annotated[str, Meta(min_length=1, max_length=253)]
Port = Annotated[int, Meta(ge=1, le=65535)]
NodeName = Annotated[str, Meta(min_length=1, max_length=300, examples=["127.0.0.1:9095"])]


class TreeNode(Answer):
    """A core node or an edge, with those that hang from it."""

    id: int
    kind: Literal["core", "edge"]
    host: str
    port: int
    state: Literal["PENDING", "CONFIRMED"]
    load: Count
    """Its clients."""
    controller: bool = False
    father: int | None = None
    ports: dict[str, int] = {}
    children: list[TreeNode] = []


class TreeAnswer(Answer):
    """The root is the cluster, its children the core nodes, below them the edges."""

    id: str | None
    kind: Literal["cluster"]
    children: list[TreeNode]
    pending: list[TreeNode]
    """Those that were given a father and haven't been confirmed by it yet."""


class BrokerToAskAnswer(Answer):
    id: int
    kind: Literal["core", "edge"]
    host: str
    port: int


class RegisterBody(Body):
    host: Host
    port: Port
    wish: NodeName | None = None
    """The father that it would like: an id or host:port."""
    ports: dict[str, Port] = {}
    """Of what else it serves, by name."""


class RegisteredAnswer(Answer):
    id: int
    state: Literal["PENDING"]
    father: str
    """host:port"""


class ConfirmBody(Body):
    father: NodeName
    """Who says it: an id or host:port."""
    child: NodeName


class DownBody(Body):
    reporter: NodeName
    """Who says it, its father or a child: an id or host:port."""
    node: NodeName


class DoneAnswer(Answer):
    done: Literal[True] = True


async def draw_tree(cluster: Cluster) -> PlainTextResponse:
    """For people."""
    return PlainTextResponse((await cluster.reader.tree()).drawing)


async def show_tree(cluster: Cluster) -> TreeAnswer:
    """For programs."""
    return await _tree(cluster)


async def find_broker(cluster: Cluster) -> BrokerToAskAnswer:
    """Whom a client is to talk to: any node, and the rather the fewer clients it has."""
    nodes = await nodes_of(cluster)
    if not nodes:
        raise Refused(503, "No node of the tree is there")
    # Not always the one with the fewest: what is known of loads is a moment old.
    (chosen,) = random.choices(nodes, [1 / (1 + each.load) for each in nodes])
    return BrokerToAskAnswer(id=chosen.id, kind=chosen.kind, host=chosen.host, port=chosen.port)


async def register_node(cluster: Cluster, body: RegisterBody, request: Request) -> RegisteredAnswer:
    """A node that joins asks for a father. It needs the cluster's secret, as a bearer's token."""
    edge = NewEdge(body.host, body.port, body.wish or "", body.ports)
    async with cluster.as_node(secret_of(request)) as kafka:
        found = await kafka.register_edge(edge)
    father = f"{found.host}:{found.port}"
    return RegisteredAnswer(id=found.edge_id, state="PENDING", father=father)


async def confirm_node(cluster: Cluster, body: ConfirmBody, request: Request) -> DoneAnswer:
    """A father has its child, which thereby is part of the tree."""
    async with cluster.as_node(secret_of(request)) as kafka:
        await kafka.confirm_edge(body.father, body.child)
    return DoneAnswer()


async def report_down(cluster: Cluster, body: DownBody, request: Request) -> DoneAnswer:
    """A neighbour says that a node is dead; one that lives is not harmed by that."""
    async with cluster.as_node(secret_of(request)) as kafka:
        await kafka.report_down(body.reporter, body.node)
    return DoneAnswer()


async def tell_events(cluster: Cluster) -> StreamingResponse:
    """The tree as it is, and every change from then on, as server-sent events."""
    news: asyncio.Queue[bytes | None] = asyncio.Queue()

    def tell(change: bytes) -> None:
        if news.qsize() < MOST_WAITING:
            news.put_nowait(change)
        else:
            news.put_nowait(None)  # too slow: it may connect again, and sees the tree as it is

    await _tree(cluster)  # what can't be had is refused here; what fails below ends the stream

    async def events() -> AsyncIterator[bytes]:
        with contextlib.suppress(KafkaError, ClientClosed):
            # Not before: who has gone by then never comes to this, nor to leaving.
            listener = await listen(cluster, tell)
            try:
                yield _told("tree", msgspec.json.encode(await _tree(cluster)))
                closing = asyncio.ensure_future(cluster.closing.wait())
                while not closing.done():
                    getting = asyncio.ensure_future(news.get())
                    await asyncio.wait(
                        {getting, closing},
                        timeout=STILL_HERE_S,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if not getting.done():
                        getting.cancel()
                        yield b": still here\n\n"
                    elif (change := getting.result()) is None:
                        return
                    else:
                        yield _told("change", change)
            finally:
                cluster.feed.leave(EVENTS_TOPIC, listener)

    return StreamingResponse(events(), media_type="text/event-stream")


def _told(event: str, line: bytes) -> bytes:
    return f"event: {event}\ndata: ".encode() + line + b"\n\n"


async def listen(cluster: Cluster, tell: Callable[[bytes], None]) -> Listener:
    """Be told of every change of the tree from now on, each a line of JSON."""

    def hear(message: Message) -> None:
        if (change := change_in(message.value)) is not None:
            tell(change)

    with contextlib.suppress(KafkaError):
        await cluster.talker.create_topics([NewTopic(EVENTS_TOPIC, 1)])
    listener = Listener(hear)
    await cluster.feed.listen(EVENTS_TOPIC, listener)
    return listener


def change_in(value: bytes | None) -> bytes | None:
    """One line, whatever is in it; None if that is no change of the tree."""
    try:
        return msgspec.json.encode(msgspec.json.decode(value or b"", type=dict[str, Any]))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


async def _tree(cluster: Cluster) -> TreeAnswer:
    return msgspec.convert((await cluster.reader.tree()).document, TreeAnswer)


async def nodes_of(cluster: Cluster) -> list[TreeNode]:
    """All that are in the tree."""
    return list(nodes_in((await _tree(cluster)).children))


def nodes_in(nodes: list[TreeNode]) -> Iterator[TreeNode]:
    for each in nodes:
        yield each
        yield from nodes_in(each.children)


def secret_of(request: Request) -> bytes:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    with contextlib.suppress(ValueError):
        if kind.lower() == "bearer" and token:
            return bytes.fromhex(token.strip())
    raise Refused(
        401,
        "This needs the cluster's secret: Authorization: Bearer and what its file holds",
        code=ErrorCode.SASL_AUTHENTICATION_FAILED.name,
        headers={"WWW-Authenticate": "Bearer"},
    )
