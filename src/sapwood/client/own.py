"""What only Sapwood's nodes can be asked: how they are, their replicas, clients known by name, and
what is in an edge's outbox.

Procedures over the core, for either shell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from sapwood.client.calls import AnyNode, Controller, Node
from sapwood.client.core import ClientCore
from sapwood.client.errors import error_for
from sapwood.client.procedures import Procedure, wait_for
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import KafkaError

PRODUCER, CONSUMER = 1, 2
_REGISTER, _REMOVE = 1, 2

Clock = Callable[[], float]


class KnownClient(NamedTuple):
    """A producer or a consumer that the cluster knows by name; partition -1 is all of them."""

    name: str
    topic: str
    partition: int


class KnownClients(NamedTuple):
    producers: frozenset[KnownClient]
    consumers: frozenset[KnownClient]


def node_status(core: ClientCore, clock: Clock, node_id: int | None = None) -> Procedure[Struct]:
    """What a node says of itself and of the cluster: any, or this one."""
    target = AnyNode() if node_id is None else Node(node_id)
    return (
        yield from wait_for(core.request(Api.NODE_STATUS, Struct(), target, None, clock(), _read))
    )


def offers_outbox(core: ClientCore) -> bool:
    """Whether an edge that there is a connection to has an outbox."""
    return core.offers(Api.OUTBOX)


def outbox(core: ClientCore, clock: Clock) -> Procedure[Struct]:
    """What is in it."""
    return (yield from wait_for(core.request(Api.OUTBOX, Struct(), AnyNode(), None, clock())))


def replicas_by_node(
    core: ClientCore, clock: Clock, node_ids: Iterable[int], topics: Iterable[str] | None = None
) -> Procedure[dict[int, list[Struct] | KafkaError]]:
    """What each of these nodes says of its own replicas, or why it says nothing."""
    question = Struct(topics=None if topics is None else list(topics))
    tickets = {
        each: core.request(Api.DESCRIBE_REPLICAS, question, Node(each), None, clock())
        for each in node_ids
    }
    found: dict[int, list[Struct] | KafkaError] = {}
    for node_id, ticket in tickets.items():
        try:
            found[node_id] = (yield from wait_for(ticket)).groups
        except KafkaError as error:
            found[node_id] = error
    return found


def known_clients(core: ClientCore, clock: Clock) -> Procedure[KnownClients]:
    answer = yield from wait_for(core.request(Api.LIST_CLIENTS, Struct(), AnyNode(), None, clock()))
    return KnownClients(
        *(
            frozenset(KnownClient(it.name, it.topic, it.partition) for it in each)
            for each in (answer.producers, answer.consumers)
        )
    )


def register_client(
    core: ClientCore, clock: Clock, kind: int, client: KnownClient
) -> Procedure[None]:
    """Durable on return, and known at every node; one that is registered already stays so."""
    yield from _change(core, clock, kind, _REGISTER, client)


def remove_client(
    core: ClientCore, clock: Clock, kind: int, client: KnownClient
) -> Procedure[None]:
    yield from _change(core, clock, kind, _REMOVE, client)


def _change(
    core: ClientCore, clock: Clock, kind: int, action: int, client: KnownClient
) -> Procedure[None]:
    message = Struct(kind=kind, action=action, **client._asdict())
    yield from wait_for(
        core.request(Api.CHANGE_CLIENT, message, Controller(), None, clock(), _read)
    )


def _read(answer: Struct) -> Struct:
    if answer.error_code:
        raise error_for(answer.error_code, "the cluster refuses", answer.error_message)
    return answer
