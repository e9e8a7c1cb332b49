"""Edges that hang from this core node: their requests, the beat, and the report of who is below."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from sapwood.broker.state import BrokerState
from sapwood.replica import PeerUnreachable
from sapwood.server import Request
from sapwood.tree.root import Root
from sapwood.tree.supervisor import place_of
from sapwood.tree.wiring import decode_attach, encode_answer, encode_claims
from sapwood.tree.words import Answer, Attach, Changed, Place, Reply, Since, Timing
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.frames import encode_response_frame

REPORT_S = 1.0
ANSWER_S = 1.0
CUT_OFF_AFTER = 3.0
"""So many silences without a controller, more than an election takes, and edges are told."""
CONNECTIONS = "kafka_server_socket_server_metrics_connection_count"


class Attaching:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._root = Root(self._me(), Timing(), state.loop_now())
        self._waiting: dict[tuple[int, Since, int], asyncio.Future[Answer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._is_closed = False

    def close(self) -> None:
        """Edges find another parent at once if they are told that this one goes."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()

    async def ask(self, attach: Attach) -> Answer:
        """What the child is to be told; if it is cancelled, the child's connection is gone."""
        key = attach.child.node_id, attach.since, attach.number
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        self._know_cores()
        self._root.asked(self._state.loop_now(), attach)
        self._act()
        try:
            return await answer
        except asyncio.CancelledError:
            self._root.lost(attach.child.node_id, attach.since)
            self._act()
            raise
        finally:
            if self._waiting.get(key) is answer:
                del self._waiting[key]

    async def run(self) -> None:
        """Tell the supervisor who is below, at every change and now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await self._news.wait()
            self._news.clear()
            await self._report()

    async def _report(self) -> None:
        state = self._state
        claims, load = self._root.claims(), int(state.server_metrics().get(CONNECTIONS, 0))
        if state.store.is_controller:
            state.supervising.reported(state.config.node_id, claims, load)
            return
        if state.store.controller_id in (-1, state.config.node_id):
            return
        message = Struct(claims=encode_claims(claims), load=load)
        with contextlib.suppress(PeerUnreachable):
            answer = await state.peers.request(
                state.store.controller_id, Api.REPORT_TREE, message, timeout_s=ANSWER_S
            )
            if not answer.error_code:
                state.supervising.loads = {it.node_id: it.load for it in answer.loads}

    def _act(self) -> None:
        for effect in self._root.take_effects():
            if isinstance(effect, Reply):
                key = effect.child, effect.since, effect.answer.number
                waiting = self._waiting.get(key)
                if waiting is not None and not waiting.done():
                    waiting.set_result(effect.answer)
            elif isinstance(effect, Changed):
                self._news.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        if (deadline := self._root.deadline) != float("inf"):
            self._timer = asyncio.get_running_loop().call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._know_cores()
        self._root.tick(self._state.loop_now())
        self._act()

    def _know_cores(self) -> None:
        state = self._state
        cores = (place_of(state.image, it) for it in state.image.nodes if state.is_alive(it))
        self._root.know_cores(self._me(), tuple(it for it in cores if it is not None))
        metadata = state.store.partition
        is_long = metadata.leaderless_s() > CUT_OFF_AFTER * state.silence_s
        self._root.cut_off(is_long and not metadata.has_leader)

    def _me(self) -> Place:
        config = self._state.config
        return Place(config.node_id, *next(iter(config.advertised.values()), ("", 0)))


def attach(state: BrokerState, request: Request) -> Awaitable[list[Buffer] | None]:
    header = request.header
    message = decode_request(Api.ATTACH, header.api_version, request.body, request.body_offset)
    if request.connection.node != message.node_id or message.node_id < 0:
        raise MalformedMessage("an edge attaches itself only, and has an id")

    async def answer() -> list[Buffer]:
        found = encode_answer(await state.attaching.ask(decode_attach(message)))
        if not found.refusal:
            found.siblings += _beside(state, message.node_id)
        return encode_response_frame(Api.ATTACH, header.api_version, header.correlation_id, found)

    return answer()


def _beside(state: BrokerState, child: int) -> list[Struct]:
    """Edges that hang from other core nodes. Clients may go on there as well as at this node's:
    to them all of the core is one."""
    others = {it for it in state.image.nodes if state.is_alive(it)} - {state.config.node_id}
    return [
        Struct(node_id=it.edge_id, host=it.host, port=it.port)
        for it in state.image.edges.known.values()
        if it.confirmed and it.father in others and it.edge_id != child
    ]
