"""What is around every node in its process: lock, signals, the end; and how others learn of it."""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sapwood.node import logs, ready
from sapwood.node.config import NodeConfig
from sapwood.node.lock import DirectoryLock, DirectoryLocked
from sapwood.server import Limits, Server

logger = logging.getLogger("sapwood.node")

T = TypeVar("T")

WILDCARDS = {"0.0.0.0", "::"}
# Descriptors for segments, indexes, the journal and the loop itself.
OWN_FILES_SHARE = 2

# One Ctrl-C or kill may arrive twice: to the process group, and passed on by a parent.
ECHO_S = 0.25

# glibc's numbers for mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 16 << 20


class StartFailed(Exception):
    """Why the node can't run, in one line."""


def run(config: NodeConfig, *, announce: bool = False, with_parent: bool = False) -> int:
    """Run a node until it is told to stop; the exit status of its process."""
    logs.configure(config.log_level, config.log_format)
    keep_memory()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_shell(config).serve(announce=announce, with_parent=with_parent))
    except StartFailed as error:
        logger.debug("start failed", exc_info=error)
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("the node failed")
        return 1


def _shell(config: NodeConfig) -> "Shell":
    """Imported now: the broker's modules take a while, and an edge doesn't need them."""
    if config.edge:
        from sapwood.node.edge import EdgeNode

        return EdgeNode(config)
    from sapwood.node.run import Node

    return Node(config)


def keep_memory() -> None:
    """Have malloc keep what large answers were read into, up to a bound.

    By default glibc returns such blocks to the kernel at once, and the next fetch pays for fresh
    pages, zeroed one by one: a quarter of what serving a 1 MB fetch costs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # as on Windows
        return None
    return uvloop.new_event_loop


class Shell(ABC):
    """One node's process, for as long as it runs."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.directory = Path(config.data_dir).absolute()
        self.stop = asyncio.Event()
        self._status = 0
        self._signalled_at: float | None = None

    @abstractmethod
    async def run(self, announce: bool) -> None:
        """Start, `tell`, wait for `stop`, end in good order."""

    async def serve(self, *, announce: bool, with_parent: bool) -> int:
        """The exit status."""
        loop = asyncio.get_running_loop()
        self._listen_to_signals(loop)
        if with_parent:
            self._watch_parent(loop)
        lock = self._lock()
        try:
            self.untell()  # left by a node that was killed
            await self.run(announce)
            logger.info("stopped")
            return self._status
        finally:
            lock.release()

    def tell(self, server: Server, node_id: int, kind: str, announce: bool) -> None:
        """Let everybody on this machine know that the node is ready."""
        info = ready.Ready(
            pid=os.getpid(),
            node_id=node_id,
            kind=kind,
            listeners={
                name: ready.join_address(*address) for name, address in server.addresses.items()
            },
            started=time.time(),
        )
        ready.write(self.directory, info)
        where = ", ".join(f"{name} at {address}" for name, address in info["listeners"].items())
        logger.info("node %d is ready: %s, data in %s", info["node_id"], where, self.directory)
        if announce:
            with contextlib.suppress(OSError):  # nobody listens any more
                print(json.dumps(info), flush=True)

    def untell(self) -> None:
        ready.remove(self.directory)

    def give_up(self, reason: str, status: int = 1) -> None:
        logger.error("stopping: %s", reason)
        self._status = status
        self.stop.set()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Its result. It may take long, and whoever started the node may lose patience."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            return working.result()
        working.cancel()
        return None

    def _lock(self) -> DirectoryLock:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            return DirectoryLock(self.directory / ready.LOCK_NAME)
        except DirectoryLocked as error:
            raise StartFailed(f"{error}: stop it, or give another directory") from error
        except OSError as error:
            raise StartFailed(
                f"can't use the data directory {self.directory}: {error.strerror}"
            ) from error

    def _listen_to_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._on_signal)
            except NotImplementedError:  # Windows

                def handle(*_: object) -> None:
                    loop.call_soon_threadsafe(self._on_signal)

                signal.signal(number, handle)

    def _on_signal(self) -> None:
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
            self.stop.set()
        elif now - self._signalled_at > ECHO_S:
            logger.warning("stopping at once")
            os._exit(1)

    def _watch_parent(self, loop: asyncio.AbstractEventLoop) -> None:
        """A pipe from the parent on stdin ends when the parent does, even if it is killed."""

        def wait() -> None:
            with contextlib.suppress(OSError):
                while os.read(0, 1024):
                    pass
            with contextlib.suppress(RuntimeError):  # the loop has ended first
                loop.call_soon_threadsafe(self.stop.set)

        threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def not_ready(_request: object) -> None:
    raise StartFailed("a request came in before the broker was there")


def reachable(advertised: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """A wildcard is where one listens, not where one can be reached: tell the host's name."""
    return {
        name: (socket.gethostname() if host in WILDCARDS else host, port)
        for name, (host, port) in advertised.items()
    }


def raise_file_limit() -> int | None:
    """As many open files as the system lets this process have; None if that isn't known."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def fitting(limits: Limits, files: int | None) -> Limits:
    """No more connections than leave the node enough descriptors for its own files."""
    if files is None or limits.max_connections <= files // OWN_FILES_SHARE:
        return limits
    return replace(limits, max_connections=max(1, files // OWN_FILES_SHARE))
