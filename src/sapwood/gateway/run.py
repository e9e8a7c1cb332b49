"""The process: sockets, the HTTP server, signals; and all of it in reverse at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn

from sapwood.gateway.app import LARGEST_HEAD_BYTES, App
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.connection import Connection
from sapwood.gateway.lines.serving import LineServer
from sapwood.gateway.lines.words import LARGEST_LINE_BYTES
from sapwood.gateway.reporting import Reporting
from sapwood.gateway.supervised import Supervised

logger = logging.getLogger("sapwood.gateway")

MOST_CONNECTIONS = 2048
KEEP_ALIVE_S = 60
GOODBYE_S = 3
LAST_RESORT_S = 30.0
BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    bootstrap: Sequence[str]
    rest: str
    """Where to listen for HTTP: host:port, or the number of a socket that listens already."""
    lines: str | None = None
    """The same for the line protocol; by default it is served as a WebSocket only."""
    advertise_lines: str | None = None
    """Where other gateways send clients that are better off here: host:port."""
    node_id: int | None = None
    announce: bool = False
    with_parent: bool = False
    supervised: bool = False
    """Whether the parent answers questions."""
    reporting: bool = False
    """Whether it writes how the cluster is to topics, while its node is the active controller."""


class GatewayFailed(Exception):
    """Why it can't run, in one line."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the process, which has more to stop than this."""
        yield


def run(settings: Settings) -> int:
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings))
    except (GatewayFailed, ValueError) as error:
        logger.error("%s", error)
        return 1
    return 0


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    _listen_to_signals(loop, stop)
    supervised = Supervised() if settings.supervised else None
    if settings.with_parent:
        _listen_to_parent(loop, stop, supervised)
    advertised = None
    if settings.advertise_lines is not None:
        advertised = _host_and_port(settings.advertise_lines)
    places = {"rest": listen(settings.rest)}
    if settings.lines is not None:
        places["lines"] = listen(settings.lines)
    cluster = Cluster(settings.bootstrap, settings.node_id, supervised)
    lines = LineServer(cluster)
    server = _Server(
        uvicorn.Config(
            App(cluster, lines),
            http=Connection,
            ws="websockets-sansio",
            ws_max_size=LARGEST_LINE_BYTES,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GOODBYE_S,
        )
    )
    reporting = Reporting(cluster) if settings.reporting else None
    serving = asyncio.ensure_future(server.serve(sockets=[places["rest"]]))
    if "lines" in places:
        await lines.start(places["lines"], advertised)
    try:
        where = {name: _address(it) for name, it in places.items()}
        logger.info("the gateway is ready: %s", ", ".join(f"{k} at {v}" for k, v in where.items()))
        if settings.announce:
            with contextlib.suppress(OSError):  # nobody listens any more
                print(json.dumps({"pid": os.getpid(), **where}), flush=True)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
    finally:
        cluster.closing.set()
        server.should_exit = True
        await lines.close()
        if reporting is not None:
            await reporting.close()
        await serving
        await cluster.close()
        for each in places.values():
            each.close()
    logger.info("stopped")


def listen(where: str) -> socket.socket:
    """A socket that listens; its port is there before this process is, if somebody passed it on."""
    if where.isdigit():
        return socket.socket(fileno=int(where))
    host, port = _host_and_port(where)
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=BACKLOG,
        )
    except OSError as error:
        raise GatewayFailed(f"can't listen at {where}: {error.strerror}") from error


def _host_and_port(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    if not port.isdigit():
        raise GatewayFailed(f"{where!r} isn't an address: write host:port")
    return host.strip("[]"), int(port)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen_to_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))


def _listen_to_parent(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, supervised: Supervised | None
) -> None:
    """Its answers, and its end: the pipe on stdin ends when the parent does.

    Nobody else would stop this process then, so it goes even if it can't do so in good order.
    """

    def read() -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the loop may have ended first
            with open(0, "rb", closefd=False) as lines:
                for line in lines:
                    if supervised is not None:
                        loop.call_soon_threadsafe(supervised.answered, line)
            loop.call_soon_threadsafe(stop.set)
            time.sleep(LAST_RESORT_S)
            os._exit(1)

    threading.Thread(target=read, name="parent-watch", daemon=True).start()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # as on Windows
        return None
    return uvloop.new_event_loop
