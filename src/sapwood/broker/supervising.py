"""The supervisor of the tree: a part of the active controller; its answers, given by any node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from sapwood.broker.refusal import refuse
from sapwood.broker.replication import sender
from sapwood.broker.state import BrokerState
from sapwood.broker.tree_events import TreeEvents
from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.server import Request
from sapwood.tree import supervisor
from sapwood.tree.drawing import document, drawn
from sapwood.tree.supervisor import Supervisor
from sapwood.tree.wiring import decode_claims
from sapwood.tree.words import Claim
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

TURN_S = 0.25
TURN_EVERYBODY_S = 0.05
EVERYBODY_S = 0.5
"""How long somebody who changes the tree waits for all nodes to know: orphans are in a hurry."""


class Supervising:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._supervisor: Supervisor | None = None
        self._core_loads: dict[int, int] = {}
        self._news = asyncio.Event()
        self.events = TreeEvents(state)
        self.loads: Mapping[int, int] = {}
        """Clients by node, as far as this node has heard."""

    def reported(self, core: int, claims: Iterable[Claim], load: int) -> None:
        """At the active controller: a core node says who hangs below it."""
        self._own().reported(core, claims, self._state.loop_now())
        self._core_loads[core] = load
        self._news.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._turn()
            except KafkaError as error:
                logger.info("the supervisor's turn failed and will be tried again: %s", error)
            except Exception:
                logger.exception("the supervisor's turn failed and will be tried again")

    async def _turn(self) -> None:
        state = self._state
        if not state.store.is_controller:
            self._supervisor = None
            return
        own = self._own()
        now = state.loop_now()
        records = own.turn(state.image, state.is_alive, now)
        self.loads = {**self._core_loads, **own.loads}
        if records:
            await self.change(
                lambda image: own.turn(image, state.is_alive, now), everybody_s=TURN_EVERYBODY_S
            )

    async def change(
        self, decide: Callable[[Image], list[r.Record]], *, everybody_s: float = EVERYBODY_S
    ) -> None:
        """Write down what is decided on the image as it is then, and tell of it."""
        store = self._state.store
        async with store.changing() as image:
            before = set(image.edges.known)
            records = decide(image)
            await store.commit(records, everybody_s=everybody_s)
            self.events.add(records, sorted(before - set(image.edges.known)))

    def _own(self) -> Supervisor:
        if self._supervisor is None:
            self._supervisor = Supervisor(self._state.loop_now())
            self._core_loads = {}
        return self._supervisor


async def register(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, error_message=None, edge_id=-1, father=-1, host="", port=-1)

    def decide(image: Image) -> list[r.Record]:
        edge_id, father, records = supervisor.register(
            image,
            message.edge_id,
            message.host,
            message.port,
            message.wish,
            {it.name: it.port for it in message.ports},
            is_alive=lambda node: _is_there(state, node),
            loads=state.supervising.loads,
        )
        answer.edge_id = edge_id
        answer.father, answer.host, answer.port = father
        return records

    return await _changed(state, answer, decide)


def _is_there(state: BrokerState, core: int) -> bool:
    """Fresher than the metadata: an orphan whose core node just died must not be sent there."""
    now, me = state.loop_now(), state.config.node_id
    heard_at = now if core == me else state.replicas.exchange.heard_of(core)
    return state.is_alive(core) and heard_at > now - state.silence_s


async def confirm(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, error_message=None)
    return await _changed(
        state, answer, lambda image: supervisor.confirm(image, message.father, message.child)
    )


async def report_down(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, error_message=None)
    return await _changed(
        state, answer, lambda image: supervisor.report_down(image, message.reporter, message.node)
    )


async def _changed(
    state: BrokerState, answer: Struct, decide: Callable[[Image], list[r.Record]]
) -> Struct:
    try:
        await state.supervising.change(decide)
    except KafkaError as error:
        refuse(answer, error)
    return answer


def report_tree(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, error_message=None, loads=[])
    if not state.store.is_controller:
        refuse(answer, KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the active controller"))
        return answer
    supervising, core = state.supervising, sender(request)
    if core not in state.image.nodes:
        refuse(answer, KafkaError(ErrorCode.INVALID_REQUEST, f"{core} is no core node"))
        return answer
    supervising.reported(core, decode_claims(message.claims), message.load)
    answer.loads = [Struct(node_id=node, load=load) for node, load in supervising.loads.items()]
    return answer


def describe(state: BrokerState, request: Request, message: Struct) -> Struct:
    loads, controller = state.supervising.loads, state.store.controller_id
    tree = document(state.image, state.is_alive, loads, controller)
    text = msgspec.json.encode(tree).decode()
    return Struct(error_code=0, error_message=None, drawing=drawn(tree), document=text)
