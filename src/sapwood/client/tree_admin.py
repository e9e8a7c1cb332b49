"""The tree of core nodes and edges: looked at by everybody, changed by whoever has the secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sapwood.client.calls import AnyNode, Call, Router
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Ticket
from sapwood.client.errors import error_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

T = TypeVar("T")


class TreeView(NamedTuple):
    drawing: str
    """For people."""
    document: dict[str, Any]
    """The cluster, with its core nodes as children, and below them the edges."""


@dataclass(frozen=True, slots=True)
class NewEdge:
    host: str
    port: int
    wish: str = ""
    """The father that it would like: an id or host:port."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Of what else it serves, by name."""
    edge_id: int = -1
    """Of one that has registered before."""


class RegisteredEdge(NamedTuple):
    edge_id: int
    father: int
    host: str
    """Where the father is."""
    port: int


class TreeAdmin:
    def __init__(self, config: ClientConfig, router: Router) -> None:
        self._config = config
        self._router = router

    def describe(self, *, now_ms: float) -> Ticket[TreeView]:
        return self._call(
            Api.DESCRIBE_TREE,
            Struct(),
            lambda answer: TreeView(answer.drawing, json.loads(answer.document)),
            "the tree",
            now_ms,
        )

    def register(self, edge: NewEdge, *, now_ms: float) -> Ticket[RegisteredEdge]:
        message = Struct(
            edge_id=edge.edge_id,
            host=edge.host,
            port=edge.port,
            ports=[Struct(name=name, port=port) for name, port in edge.ports.items()],
            wish=edge.wish,
        )
        return self._call(
            Api.REGISTER_EDGE,
            message,
            lambda answer: RegisteredEdge(answer.edge_id, answer.father, answer.host, answer.port),
            f"{edge.host}:{edge.port}",
            now_ms,
        )

    def confirm(self, father: str, child: str, *, now_ms: float) -> Ticket[None]:
        message = Struct(father=father, child=child)
        return self._call(Api.CONFIRM_EDGE, message, lambda _: None, child, now_ms)

    def report_down(self, reporter: str, node: str, *, now_ms: float) -> Ticket[None]:
        message = Struct(reporter=reporter, node=node)
        return self._call(Api.REPORT_DOWN, message, lambda _: None, node, now_ms)

    def _call(
        self, api: Api, message: Struct, read: Callable[[Struct], T], subject: str, now_ms: float
    ) -> Ticket[T]:
        def checked(answer: Struct) -> T:
            if answer.error_code:
                raise error_for(answer.error_code, subject, answer.error_message)
            return read(answer)

        ticket: Ticket[T] = Ticket()
        deadline_ms = now_ms + self._config.api_timeout_ms
        self._router.submit(Call(api, message, AnyNode(), checked, ticket, now_ms, deadline_ms))
        return ticket
