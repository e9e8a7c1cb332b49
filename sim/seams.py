"""What the shipped code takes from the system by itself, taken from the world instead.

The list is short on purpose: time, chance and the disk come in through arguments, and sockets
through the event loop. What is left is patched here while a world runs.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Iterator

from sapwood.log.cleaner import Cleaned, CompactionPlan, clean
from sapwood.log.log import Log
from sapwood.node import identity as node_identity
from sapwood.server import server as server_module
from sim.disk import SimDisk
from sim.loop import PROCESS
from sim.network import SimSocket
from sim.planting import patched
from sim.trace import TraceHandler
from sim.world import World


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """For as long as the world runs, which has the process to itself."""

    def bind_one(family: int, kind: int, protocol: int, address: tuple[str, int]) -> SimSocket:
        return world.network.bind(address[1])

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(server_module, "bind_one", bind_one))
        stack.enter_context(patched(os, "urandom", world.entropy))
        stack.enter_context(patched(node_identity, "OsDisk", lambda: own_disk(world)))
        stack.enter_context(patched(Log.compact, "__defaults__", (compact_on_disk(world),)))
        stack.enter_context(_logging_into(TraceHandler(world.trace)))
        stack.enter_context(_without_collector())
        yield


def own_disk(world: World) -> SimDisk:
    """Of the machine whose process asks."""
    return world.machines[PROCESS.get().host].disk


def compact_on_disk(world: World) -> Callable[[CompactionPlan], Awaitable[Cleaned]]:
    """Compaction's helper process, as work for the machine's disk."""

    async def run(plan: CompactionPlan) -> Cleaned:
        disk = own_disk(world)
        return await disk.offload(lambda: clean(disk, plan))

    return run


@contextlib.contextmanager
def _logging_into(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("sapwood")
    before, level = (logger.handlers, logger.propagate), logger.level
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)  # not by assignment: loggers remember what they may say
    logging.getLogger("asyncio").addFilter(_nothing)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
        logger.setLevel(level)
        logging.getLogger("asyncio").removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Finalizers would run at moments that depend on all that this process has done before."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
