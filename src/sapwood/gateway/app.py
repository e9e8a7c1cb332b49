"""From a request to its row of the table, and back: checked going in, encoded coming out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from sapwood.client import ClientClosed, KafkaError
from sapwood.gateway import metrics, openapi
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.connection import Connection
from sapwood.gateway.consuming import Given
from sapwood.gateway.lines.serving import LineServer
from sapwood.gateway.problems import Refused, closing, out_of_time, refusal_of
from sapwood.gateway.routes import ROUTES, Route

logger = logging.getLogger("sapwood.gateway")

ANSWER_S = 15.0
"""How long a request may take, beside what it asked to wait."""
ARRIVE_S = 10.0
LARGEST_BODY_BYTES = 2 << 20
LARGEST_HEAD_BYTES = 32 * 1024
MOST_UNDER_WAY = 1000
UNKNOWN_PATH = "other"


class App:
    """The ASGI application."""

    def __init__(self, cluster: Cluster, lines: LineServer) -> None:
        self._cluster = cluster
        self._lines = lines
        self._under_way = 0
        self._retracting: set[asyncio.Task[None]] = set()
        self._by_path: dict[str, dict[str, Route]] = {}
        for route in ROUTES:
            self._by_path.setdefault(route.path, {})[route.method] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._talk(WebSocket(scope, receive, send))
            return
        request = Request(scope, receive)
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._under_way += 1
        metrics.under_way.set(self._under_way)
        path, response, given = UNKNOWN_PATH, None, None
        connection: Connection = scope["state"]["connection"]
        try:
            path, response, given = await self._answer(request)
            if connection.is_open:
                await response(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            self._under_way -= 1
            metrics.under_way.set(self._under_way)
            status = response.status_code if response is not None else 499
            metrics.answered.labels(request.method, path, status).inc()
            metrics.seconds.labels(path).observe(loop.time() - began)
            if given is not None:
                await self._settle(given, connection)

    async def _talk(self, connection: WebSocket) -> None:
        """Lines over a WebSocket; pages of others may not open one."""
        if connection.url.path == "/ws" and _is_own(connection):
            await self._lines.serve_websocket(connection)
        else:
            await connection.close()

    async def _settle(self, given: Given, connection: Connection) -> None:
        """Say whether the message was delivered; take it back if it turns out not to be."""

        def retract() -> None:
            task = asyncio.ensure_future(_patiently(given.retract()))
            self._retracting.add(task)
            task.add_done_callback(self._retracting.discard)

        connection.on_reset = retract
        await _patiently(given.settle(delivered=connection.is_open))

    async def _answer(self, request: Request) -> tuple[str, Response, Given | None]:
        """The path as the table has it, the response, and the message in it whose fate matters."""
        path = request.url.path
        if path == "/openapi.json" and request.method == "GET":
            body = openapi.document(version("sapwood"))
            return path, Response(body, media_type="application/json"), None
        methods = self._by_path.get(path)
        try:
            if methods is None:
                raise Refused(404, f"There is no {path[:200]}: see /openapi.json")
            route = methods.get("GET" if request.method == "HEAD" else request.method)
            if route is None or (request.method == "HEAD" and route.gives_a_message):
                allowed = ", ".join(methods)
                raise Refused(405, f"{path} takes {allowed}", headers={"Allow": allowed})
            if self._under_way > MOST_UNDER_WAY:
                raise Refused(503, "This gateway has too much to do")
            _check_head(request)
            answer = await self._call(route, request)
            if isinstance(answer, Given):
                return path, _response(route, answer.answer), answer
            return path, _response(route, answer), None
        except Refused as refused:
            return path if methods else UNKNOWN_PATH, refused.response(), None

    async def _call(self, route: Route, request: Request) -> Any:
        arguments: dict[str, Any] = {}
        if route.hint("request") is not None:
            arguments["request"] = request
        limit_s = ANSWER_S
        query = route.hint("query")
        if query is not None:
            arguments["query"] = read_query(request, query)
            limit_s += getattr(arguments["query"], "timeout_ms", 0) / 1000
        body = route.hint("body")
        if body is not None:
            arguments["body"] = await read_body(request, body)
        try:
            async with asyncio.timeout(limit_s):
                return await route.handler(self._cluster, **arguments)
        except TimeoutError as error:
            raise out_of_time() from error
        except KafkaError as error:
            refused = refusal_of(error)
            if refused.status == 500:
                logger.error("%s %s: %s", route.method, route.path, error)
            raise refused from error
        except ClientClosed as error:
            raise closing(error) from error
        except Refused:
            raise
        except Exception as error:
            logger.exception("%s %s", route.method, route.path)
            raise Refused(500, f"{type(error).__name__}: see the gateway's log") from error


def read_query(request: Request, kind: type[msgspec.Struct]) -> Any:
    given = dict(request.query_params)
    if len(given) < len(request.query_params.multi_items()):
        raise Refused(400, "A parameter is given twice")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, str(error)) from error


async def read_body(request: Request, kind: type[msgspec.Struct]) -> Any:
    # Whatever a foreign page may send without asking first is no JSON.
    sort = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sort != "application/json" and not sort.endswith("+json"):
        raise Refused(415, f"The content type is {sort[:100] or 'missing'}, not application/json")
    data = bytearray()
    try:
        async with asyncio.timeout(ARRIVE_S):
            async for part in request.stream():
                data += part
                if len(data) > LARGEST_BODY_BYTES:
                    raise Refused(413, f"A body has {LARGEST_BODY_BYTES} bytes at most")
    except TimeoutError as error:
        raise Refused(408, f"The body wasn't there within {ARRIVE_S:g} s") from error
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, str(error)) from error


def _check_head(request: Request) -> None:
    """Its size, and its origin: a browser may change things here for our own pages only."""
    if sum(len(name) + len(value) for name, value in request.headers.raw) > LARGEST_HEAD_BYTES:
        raise Refused(431, f"A request's head has {LARGEST_HEAD_BYTES} bytes at most")
    if request.method not in ("GET", "HEAD") and not _is_own(request):
        origin = request.headers["origin"][:200]
        raise Refused(403, f"Pages of {origin} may not change anything here")


def _is_own(connection: HTTPConnection) -> bool:
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


def _response(route: Route, answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return Response(status_code=204)
    status = getattr(answer, "http_status", None) or route.status
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


async def _patiently(noting: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(ANSWER_S):
            await noting
    except (KafkaError, ClientClosed, TimeoutError) as error:
        logger.warning("a message may come again: %s", error)
