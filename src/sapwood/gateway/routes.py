"""The table: every path and method, who answers it, and what can go wrong.

What a row doesn't say follows from its handler's signature: `query` and `body` are structs, what it
returns is the answer, None an answer without content.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from sapwood.gateway import (
    clients,
    consuming,
    health,
    metrics,
    pipelines,
    producing,
    topics,
    tree,
)
from sapwood.gateway.words import MessageAnswer

# What any request may come to, beside what its row names.
COMMON_PROBLEMS = (400, 403, 431, 503)
BODY_PROBLEMS = (408, 413, 415)


@cache
def _hints(handler: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(handler)


class Route(NamedTuple):
    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    status: int = 200
    problems: tuple[int, ...] = ()
    media_type: str = "application/json"

    @property
    def summary(self) -> str:
        words = self.handler.__name__.replace("_", " ")
        return words[0].upper() + words[1:]

    @property
    def description(self) -> str:
        return " ".join((self.handler.__doc__ or "").split())

    def hint(self, name: str) -> Any:
        """The type of the handler's parameter, or None if it has no such one."""
        return _hints(self.handler).get(name)

    @property
    def gives_a_message(self) -> bool:
        """Once, as it were: it isn't to be asked for by those who don't take the answer."""
        return self.handler is consuming.consume

    @property
    def answers(self) -> dict[int, type[msgspec.Struct]]:
        """By the status that comes with them."""
        if self.gives_a_message:
            return {self.status: MessageAnswer}
        found = self.hint("return")
        return {
            getattr(each, "http_status", None) or self.status: each
            for each in typing.get_args(found) or (found,)
            if isinstance(each, type) and issubclass(each, msgspec.Struct)
        }

    def statuses(self) -> dict[int, bool]:
        """Every status that this row may be answered with; True: with the answer in it."""
        found = {self.status: self.status != 204, **dict.fromkeys(self.answers, True)}
        if self.gives_a_message:
            found[204] = False
        problems = COMMON_PROBLEMS + self.problems
        if self.hint("body") is not None:
            problems += BODY_PROBLEMS
        return {**found, **dict.fromkeys(sorted(problems), False)}


ROUTES = (
    Route("GET", "/", health.welcome),
    Route("GET", "/livez", health.live),
    Route("GET", "/readyz", health.ready),
    Route("GET", "/status", health.status),
    Route("GET", "/metrics", metrics.metrics, media_type="text/plain"),
    Route("GET", "/topics", topics.list_topics, problems=(404,)),
    Route("POST", "/topics", topics.create_topic, 201, problems=(404, 409)),
    Route("DELETE", "/topics", topics.delete_topic, 204, problems=(404,)),
    Route("GET", "/partitions", topics.list_partitions, problems=(404,)),
    Route("POST", "/partitions", topics.add_partitions, 201, problems=(404,)),
    Route("GET", "/size", topics.size, problems=(404,)),
    Route("GET", "/producers", clients.list_producers),
    Route("POST", "/producers", clients.register_producer, 201, problems=(404, 409)),
    Route("DELETE", "/producers", clients.remove_producer, 204, problems=(404,)),
    Route("GET", "/consumers", clients.list_consumers),
    Route("POST", "/consumers", clients.register_consumer, 201, problems=(404, 409)),
    Route("DELETE", "/consumers", clients.remove_consumer, 204, problems=(404, 409)),
    Route("POST", "/producer/produce", producing.produce, problems=(404, 409)),
    Route("GET", "/consumer/consume", consuming.consume, problems=(404, 409, 410)),
    Route("POST", "/consumer/ack", consuming.acknowledge, problems=(404, 409)),
    Route("GET", "/pending", consuming.pending, problems=(404,)),
    Route("GET", "/logs", producing.look, problems=(404, 410)),
    Route("POST", "/logs", producing.append, 201, problems=(404,)),
    Route("GET", "/tree", tree.draw_tree, media_type="text/plain"),
    Route("GET", "/jtree", tree.show_tree),
    Route("GET", "/tree/events", tree.tell_events, media_type="text/event-stream"),
    Route("GET", "/broker", tree.find_broker),
    Route("POST", "/node/register", tree.register_node, 201, problems=(401, 404, 409)),
    Route("POST", "/node/confirm", tree.confirm_node, problems=(401, 404, 409)),
    Route("POST", "/node/down", tree.report_down, problems=(401, 404, 409)),
    Route("GET", "/brokers", health.list_brokers),
    Route("POST", "/brokers", health.start_broker, 201, problems=(401, 409)),
    Route("GET", "/pipelines", pipelines.list_pipelines),
    Route("POST", "/pipelines", pipelines.start_pipeline, 201, problems=(409,)),
    Route("GET", "/raft_status", health.raft_status, problems=(404,)),
)
