"""Where this edge hangs: what the tree's rules decide, carried out over links.

The link over which the edge is attached to its parent is the one that everything else goes over,
too. Children attach here in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from sapwood.edge.uplink import Uplink
from sapwood.security import NONCE_BYTES, ClientSide
from sapwood.server import Request
from sapwood.server.link import Link, PeerUnreachable, open_link
from sapwood.server.types import Clock
from sapwood.tree.edge import Edge
from sapwood.tree.wiring import decode_answer, decode_attach, encode_answer, encode_attach
from sapwood.tree.words import (
    Answer,
    Ask,
    AskSupervisor,
    Attach,
    Attached,
    Part,
    Place,
    Reply,
    Since,
    Timing,
)
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.frames import encode_response_frame

log = logging.getLogger("sapwood.edge")

CONNECT_TIMEOUT_S = 1.0
ANSWER_S = 2.0
UNKNOWN_ID = -1
DRAWN_BYTES = 6

Way = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who an edge is, and whom it knows to begin with."""

    node_id: int
    incarnation: int
    """Of its process: it grows with every start."""
    advertised: dict[str, tuple[str, int]]
    """Listener name → the address that its clients are told; edges below find it at the first."""
    secret: bytes = field(repr=False)
    known: tuple[tuple[str, int], ...]
    """Where core nodes or other edges may be."""
    parent: tuple[str, int] | None = None
    """Whom it would like to hang from."""
    routes: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """Node → where to reach it, in place of the address that it tells."""


class Hanging:
    def __init__(
        self,
        identity: Identity,
        uplink: Uplink,
        load: Callable[[], int],
        timing: Timing,
        entropy: Callable[[int], bytes],
        clock: Clock,
    ) -> None:
        """`load` is how many clients there are."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        wish = identity.parent
        self._rules = Edge(
            Place(identity.node_id, *next(iter(identity.advertised.values()))),
            identity.incarnation,
            tuple(Place(UNKNOWN_ID, *it) for it in identity.known),
            timing,
            lambda: int.from_bytes(entropy(DRAWN_BYTES), "big") / 256**DRAWN_BYTES,
            self._loop.time(),
            None if wish is None else Place(UNKNOWN_ID, *wish),
        )
        self._uplink = uplink
        self._load = load
        self._secret = identity.secret
        self._routes = identity.routes
        self._entropy = entropy
        self._links: dict[Link, None] = {}
        self._open: dict[Way, Link] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._waiting: dict[tuple[int, Since, int], asyncio.Future[Answer]] = {}
        self._timer: asyncio.Handle = self._loop.call_soon(self._tick)
        self._is_closed = False

    @property
    def siblings(self) -> tuple[Place, ...]:
        return self._rules.siblings if self._rules.parent is not None else ()

    def metrics(self) -> dict[str, float]:
        rules = self._rules
        return {
            "sapwood_tree_depth": float(len(rules.ancestors) if rules.parent is not None else -1),
            "sapwood_tree_children": float(len(rules.children)),
            "sapwood_tree_healing_ms": float(rules.healing_ms),
        }

    async def close(self) -> None:
        self._is_closed = True
        self._timer.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links):
            link.part("this edge stops")

    # -- children ----------------------------------------------------------------------------

    def attach(self, request: Request) -> Awaitable[list[Buffer]]:
        """A child asks, or one that would like to be."""
        header = request.header
        message = decode_request(Api.ATTACH, header.api_version, request.body, request.body_offset)
        if request.connection.node != message.node_id or message.node_id < 0:
            raise MalformedMessage("an edge attaches itself only, and has an id")

        async def answer() -> list[Buffer]:
            found = encode_answer(await self._ask_rules(decode_attach(message)))
            return encode_response_frame(
                Api.ATTACH, header.api_version, header.correlation_id, found
            )

        return answer()

    async def _ask_rules(self, attach: Attach) -> Answer:
        key = attach.child.node_id, attach.since, attach.number
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[key] = answer
        self._rules.asked(self._loop.time(), attach)
        self._act()
        try:
            return await answer
        except asyncio.CancelledError:
            self._rules.child_lost(self._loop.time(), attach.child.node_id, attach.since)
            self._act()
            raise
        finally:
            if self._waiting.get(key) is answer:
                del self._waiting[key]

    # -- effects -----------------------------------------------------------------------------

    def _tick(self) -> None:
        self._rules.load = self._load()
        self._rules.tick(self._loop.time())
        self._act()

    def _act(self) -> None:
        if self._is_closed:
            return
        for effect in self._rules.take_effects():
            match effect:
                case Ask():
                    self._ask(effect)
                case AskSupervisor():
                    self._start(self._ask_supervisor(effect))
                case Part():
                    self._part(_way(effect.place))
                case Reply():
                    key = effect.child, effect.since, effect.answer.number
                    waiting = self._waiting.get(key)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(effect.answer)
        if self._rules.parent is None:
            self._uplink.leave()
        self._timer.cancel()
        if (deadline := self._rules.deadline) != float("inf"):
            self._timer = self._loop.call_at(deadline, self._tick)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _ask(self, effect: Ask) -> None:
        link = self._open.get(_way(effect.place))
        if link is not None and link.is_open:
            self._send(link, effect.attach)
        else:
            self._start(self._connect(effect))

    async def _connect(self, effect: Ask) -> None:
        try:
            link = await self._link(effect.place)
        except PeerUnreachable as error:
            log.debug("%s", error)
            self._rules.lost(self._loop.time(), effect.attach.since)
            self._act()
            return
        if effect.attach.since != self._rules.since:
            link.part("it was given up meanwhile")
            return
        self._part(_way(effect.place))
        self._open[_way(effect.place)] = link
        self._send(link, effect.attach)

    async def _link(self, place: Place) -> Link:
        me = self._rules.me.node_id
        name = f"{place.host}:{place.port}"
        expected_id = place.node_id if place.node_id >= 0 else None
        link = Link(name, self._links, expected_id, self._clock)
        side = ClientSide(self._secret, me, self._entropy(NONCE_BYTES))
        way = self._routes.get(place.node_id, _way(place))
        await open_link(link, side, way, CONNECT_TIMEOUT_S)
        return link

    def _send(self, link: Link, attach: Attach) -> None:
        def answered(answer: asyncio.Future[Struct]) -> None:
            error = None if answer.cancelled() else answer.exception()
            if answer.cancelled() or self._is_closed:
                return
            now = self._loop.time()
            if error is not None:
                if not link.is_open:
                    self._rules.lost(now, attach.since)
            else:
                said = decode_answer(attach.number, answer.result())
                is_mine = attach.since == self._rules.since
                self._rules.answered(now, attach.since, said)
                if is_mine and isinstance(said, Attached) and self._rules.parent is not None:
                    self._uplink.use(link)
            self._act()

        try:
            link.send(Api.ATTACH, encode_attach(attach), ANSWER_S).add_done_callback(answered)
        except PeerUnreachable:
            self._loop.call_soon(self._lost, attach.since)

    def _lost(self, since: Since) -> None:
        self._rules.lost(self._loop.time(), since)
        self._act()

    def _part(self, way: Way) -> None:
        link = self._open.pop(way, None)
        if link is not None:
            self._uplink.leave(link)
            link.part("it is no longer needed")

    # -- the supervisor ----------------------------------------------------------------------

    async def _ask_supervisor(self, effect: AskSupervisor) -> None:
        place = None
        me = self._rules.me
        message = Struct(edge_id=me.node_id, host=me.host, port=me.port, ports=[], wish="")
        for it in effect.places:
            try:
                link = await self._link(it)
            except PeerUnreachable:
                continue
            try:
                answer = await link.ask(Api.REGISTER_EDGE, message, ANSWER_S)
                if not answer.error_code:
                    place = Place(answer.father, answer.host, answer.port)
                    break
            except PeerUnreachable as error:
                log.debug("%s", error)
            finally:
                link.part("it is no longer needed")
        self._rules.offered(self._loop.time(), effect.number, place)
        self._act()


def _way(place: Place) -> Way:
    return place.host, place.port
