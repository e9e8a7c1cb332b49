"""The edge as a whole: which request is answered how."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

from sapwood.edge.cache import DEFAULT_BYTES, Cache
from sapwood.edge.clock import HeardClock
from sapwood.edge.delivering import CLIENT_ID
from sapwood.edge.fetching import Fetching
from sapwood.edge.filling import Filling
from sapwood.edge.hanging import Hanging, Identity
from sapwood.edge.outbox import Outbox
from sapwood.edge.rewriting import View, rewritten
from sapwood.edge.siblings import Sibling, leader_for
from sapwood.edge.standing_in import StandIn
from sapwood.edge.topics import Topics
from sapwood.edge.uplink import Lost, Uplink
from sapwood.server import Request, Unanswerable
from sapwood.server.gate import is_public
from sapwood.tree.words import Timing
from sapwood.wire.apis import PATIENT, REPEATABLE, Api
from sapwood.wire.codec import Buffer, Struct, decode_request
from sapwood.wire.errors import ErrorCode, MalformedMessage
from sapwood.wire.frames import encode_response_frame

ANSWER_S = 60.0
LONGEST_ANSWER_S = 30 * 60.0
FOR_SUPERVISOR = (Api.REGISTER_EDGE, Api.CONFIRM_EDGE, Api.REPORT_DOWN)
PARENT_MS = "sapwood_tree_parent_round_trip_ms"
_LENGTH_BYTES = 4

Response = list[Buffer] | None


class Edge:
    def __init__(
        self,
        identity: Identity,
        now_ms: Callable[[], int],
        *,
        load: Callable[[], int] = lambda: 0,
        cache_bytes: int = DEFAULT_BYTES,
        outbox: Outbox | None = None,
        timing: Timing | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        """`load` is how many clients there are. `stopwatch`: seconds, where a loop's are coarse."""
        self.clock = HeardClock(now_ms)
        self.node_id = identity.node_id
        self._advertised = identity.advertised
        self._load = load
        self._stopwatch = stopwatch or asyncio.get_running_loop().time
        self._parent_ms: float | None = None
        """None while the parent doesn't answer."""
        self._parked: dict[object, set[asyncio.Future[Response]]] = {}
        """Fetches that wait, by the connection that they came over."""
        self.uplink = Uplink()
        self._hanging = Hanging(
            identity, self.uplink, load, timing or Timing(), entropy, self.clock
        )
        self.cache = Cache(cache_bytes)
        topics = Topics(self._ask_for_itself)
        self._filling = Filling(self.cache, self.uplink, topics.forget)
        self._fetching = Fetching(self.cache, self._filling, topics, self._ask_up)
        self._stand_in: StandIn | None = None
        if outbox is not None:
            host, port = next(iter(identity.advertised.values()))
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            self._stand_in = StandIn(
                outbox, self.uplink, self.node_id, address, self._ask_for_itself
            )

    async def ready(self) -> None:
        """Until clients can be served."""
        if self._stand_in is not None:
            await self._stand_in.ready()
        else:
            await self.uplink.connected()

    async def close(self) -> None:
        if self._stand_in is not None:
            await self._stand_in.close()
        await self._filling.close()
        await self._hanging.close()
        self.uplink.close()

    def metrics(self) -> dict[str, float]:
        return {
            "sapwood_edge_cached_partitions": float(len(self.cache.partitions)),
            "sapwood_edge_cache_bytes": float(self.cache.size_bytes),
            "sapwood_edge_from_cache_bytes_total": float(self._fetching.cached_bytes_total),
            "sapwood_edge_fetches_passed_total": float(self._fetching.passed_total),
            "sapwood_edge_fetches_at_parent_total": float(self._filling.fetches_total),
            "sapwood_edge_parent_changes_total": float(self.uplink.changes_total),
            "sapwood_edge_lag_records": float(self.cache.lag),
            "sapwood_tree_clients": float(self._load()),
            **self._hanging.metrics(),
            **({} if self._stand_in is None else self._stand_in.outbox.metrics()),
            **({} if self._parent_ms is None else {PARENT_MS: self._parent_ms}),
        }

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        key = request.header.api_key
        if self._stand_in is not None and request.connection.node is None:
            answer = self._stand_in.answer(request, self._view)
            if answer is not None:
                return answer
        if key == Api.RELAY:
            return self._pass_on(request)
        if key == Api.FETCH:
            return self._park(request, self._fetching.fetch(request))
        if key == Api.OFFSET_FOR_LEADER_EPOCH:
            return self._ask_after_fetches(request)
        if key == Api.ATTACH:
            return self._hanging.attach(request)
        if key in FOR_SUPERVISOR:
            return self._pass_up(request, Api(key))
        if key == Api.NODE_STATUS:
            return self._status(request)
        if not is_public(key):
            raise MalformedMessage(f"API key {key} is not served by an edge")
        return self._answer(request, self._ask_up(request, request.body))

    def _park(
        self, request: Request, answer: Response | Awaitable[Response]
    ) -> Response | Awaitable[Response]:
        if not isinstance(answer, Awaitable):
            return answer
        parked = asyncio.ensure_future(answer)
        connection = request.connection
        fetches = self._parked.setdefault(connection, set())
        fetches.add(parked)

        def forget(_: object) -> None:
            fetches.discard(parked)
            if not fetches:
                self._parked.pop(connection, None)

        parked.add_done_callback(forget)
        return parked

    async def _ask_after_fetches(self, request: Request) -> Response:
        """Where an epoch ends, as it is once the client has got what it asked for before.

        Asked at once, the core may say that the log ends at 74; then the fetch that has been
        waiting is answered up to 79, and the client, which is told 74 behind that, thinks that the
        log was cut under its feet.
        """
        if fetches := self._parked.get(request.connection):
            await asyncio.wait(fetches)
        return await self._answer(request, self._ask_up(request, request.body))

    # Upwards

    def _ask_up(self, request: Request, frame: Buffer) -> asyncio.Future[Struct]:
        """Sent at once, so that what a client sent first arrives first."""
        key, connection = request.header.api_key, request.connection

        def message(proved_at: float) -> Struct:
            return Struct(
                listener=connection.listener,
                address=connection.peer[0],
                principal=connection.principal,
                opened_after_s=connection.opened_at - proved_at,
                here=False,
                frame=frame,
            )

        timeout_s = LONGEST_ANSWER_S if key in PATIENT else ANSWER_S
        repeatable = key in REPEATABLE
        return self.uplink.ask(Api.RELAY, message, timeout_s=timeout_s, repeatable=repeatable)

    def _ask_for_itself(self, frame: Buffer) -> asyncio.Future[Struct]:
        return self.uplink.ask(Api.RELAY, Struct(frame=frame), timeout_s=ANSWER_S, repeatable=True)

    async def _answer(self, request: Request, asked: asyncio.Future[Struct]) -> Response:
        try:
            answer = await asked
        except Lost as error:
            raise Unanswerable(str(error)) from error
        if answer.closes:
            request.connection.finish()
        if answer.error_code:
            raise Unanswerable(answer.error_message or f"error {answer.error_code}")
        frame: memoryview = answer.frame
        if not frame:
            return None
        header = request.header
        if self._stand_in is not None:
            self._stand_in.hear(header, frame)
        response = rewritten(header, frame, self._view(request))
        if response is not None:
            return response
        return [len(frame).to_bytes(_LENGTH_BYTES, "big"), frame]

    async def _status(self, request: Request) -> Response:
        """With how long the way to the parent and back takes just now."""
        asked = self._ask_up(request, request.body)
        began = self._stopwatch()
        sign = Struct(frame=b"")
        self._parent_ms = None
        with contextlib.suppress(Lost):
            await self.uplink.ask(Api.RELAY, sign, timeout_s=ANSWER_S, repeatable=True)
            self._parent_ms = 1000 * (self._stopwatch() - began)
        return await self._answer(request, asked)

    def _pass_on(self, request: Request) -> Response | Awaitable[Response]:
        """A child's client: it hangs from this one's parent in the end."""
        header, child = request.header, request.connection
        message = decode_request(Api.RELAY, header.api_version, request.body, request.body_offset)
        if not message.frame:  # it asks for a sign of life
            return _relay_frame(request, Struct())
        opened_at = child.opened_at + message.opened_after_s

        def said(proved_at: float) -> Struct:
            return Struct(**{**vars(message), "opened_after_s": opened_at - proved_at})

        key = int.from_bytes(message.frame[:2], "big")
        asked = self.uplink.ask(
            Api.RELAY,
            said,
            timeout_s=LONGEST_ANSWER_S if key in PATIENT else ANSWER_S,
            repeatable=key in REPEATABLE,
        )
        return self._hand_down(request, asked)

    async def _pass_up(self, request: Request, api: Api) -> Response:
        """What the supervisor is asked and told by those below, who have the secret."""
        header = request.header
        message = decode_request(api, header.api_version, request.body, request.body_offset)
        try:
            answer = await self.uplink.ask(api, message, timeout_s=ANSWER_S, repeatable=True)
        except Lost as error:
            code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            answer = Struct(error_code=code, error_message=str(error))
        return encode_response_frame(api, header.api_version, header.correlation_id, answer)

    async def _hand_down(self, request: Request, asked: asyncio.Future[Struct]) -> Response:
        try:
            return _relay_frame(request, await asked)
        except Lost as error:
            code = int(ErrorCode.REQUEST_TIMED_OUT)
            lost = Struct(error_code=code, error_message=str(error), closes=True, frame=b"")
            return _relay_frame(request, lost)

    def _view(self, request: Request) -> View:
        """The cluster as this client is to see it."""
        host, port = self._advertised.get(
            request.connection.listener, next(iter(self._advertised.values()))
        )
        siblings = (Sibling(*it) for it in self._hanging.siblings if it.node_id != self.node_id)
        me = Sibling(self.node_id, host, port)
        if request.header.client_id == CLIENT_ID:
            return View([me], me, self.metrics)  # what this edge has to deliver it delivers itself
        living = [me, *siblings]
        return View(living, leader_for(request.header.client_id, living), self.metrics)


def _relay_frame(request: Request, answer: Struct) -> Response:
    header = request.header
    return encode_response_frame(Api.RELAY, header.api_version, header.correlation_id, answer)
