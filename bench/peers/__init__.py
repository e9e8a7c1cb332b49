"""The brokers that are compared: one file each, with how it is run and how it is loaded.

A `Peer` lives in the harness and owns the broker's processes. A `Load` lives in the process of a
measurement and is the client: the fastest sensible one for Python, with the batching that serves
it best. A topic's partitions are whatever keeps order: partitions, streams or queues. A broker has
a node for each port it is given; with several, every partition has a replica on each.
"""

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from bench.processes import Children

NAMES = ("sapwood", "kafka", "nats", "redis", "rabbitmq")
SPEAK_KAFKA = ("sapwood", "kafka")
PATIENCE_S = 120.0
POLL_S = 0.02


class PeerFailed(Exception):
    """A broker that can't be prepared, started or stopped; the text says why."""


class LoadFailed(Exception):
    """A client whose messages were refused or lost."""


class Peer:
    """One broker. `start` may return before it listens; `stop` is safe at any time."""

    title: str
    is_clustered = False
    """Whether it can be run as several nodes, each of them a child."""

    def __init__(self) -> None:
        self.children = Children()

    def missing(self) -> str | None:
        """What has to be installed first, in one line; None if nothing."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Fetch what is fetched once and kept."""

    def start(self, directory: Path, ports: Sequence[int], *, synced: bool) -> float:
        """Run a node at each port of 127.0.0.1 with all data under an empty directory.

        The three ports after each are free, too. Returns the moment of the start command, on the
        monotonic clock.
        """
        raise NotImplementedError

    def roots(self) -> list[int]:
        """Process ids whose trees are the broker."""
        return self.children.pids

    def stop(self) -> None:
        self.children.stop()


class Load(Protocol):
    """One client, of one measurement."""

    def first(self) -> None:
        """Return when one message has been acknowledged, by a partition on all nodes.

        Nothing was created before, and nodes may still be starting.
        """

    def create(self, topic: str, partitions: int) -> None:
        """Return when it can be used, with all replicas in sync."""

    def delete(self, topic: str, partitions: int) -> None: ...

    def produce(
        self,
        topic: str,
        partitions: int,
        message: bytes,
        count: int,
        limit_s: float,
        *,
        keyed: bool,
    ) -> tuple[int, float]:
        """Messages acknowledged, at most about `count`, and the seconds it took.

        Sending ends at the limit; waiting for the acknowledgements counts.
        """

    def consume(self, topic: str, partitions: int, count: int) -> float:
        """Seconds until `count` messages have been read from the start of every partition."""

    def paced(
        self, topic: str, partitions: int, message: bytes, rate: int, count: int
    ) -> list[float]:
        """Milliseconds from handing a message to the client to its acknowledgement."""


class ClusterLoad(Load, Protocol):
    """A client that can tell how a cluster does, and goes on while its nodes come and go."""

    def leaders(self, topic: str, partitions: int) -> list[int]:
        """The node that leads each partition; -1 if that isn't known."""

    def is_whole(self, topic: str, partitions: int) -> bool:
        """Whether every partition has a leader and all its replicas in sync."""

    def steady(
        self,
        topic: str,
        message: bytes,
        rate: int,
        acknowledged: list[float],
        ended: threading.Event,
    ) -> None:
        """Single messages to partition 0 until the end, each until it is acknowledged.

        The moments of the acknowledgements, on the monotonic clock, are added to the list.
        """


def wait(what: str, is_so: Callable[[], bool]) -> None:
    """Until it is so. Asking takes a fifth of the time at most: it isn't what is measured."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        asked = time.monotonic()
        if is_so():
            return
        now = time.monotonic()
        if now > deadline:
            raise LoadFailed(f"no {what} within {PATIENCE_S:.0f} s")
        time.sleep(max(POLL_S, 4 * (now - asked)))


def peer(name: str) -> Peer:
    found: Peer = importlib.import_module(f"bench.peers.{name}").PEER()
    return found


def load(name: str, ports: Sequence[int], *, synced: bool) -> Load:
    found: Load = importlib.import_module(f"bench.peers.{name}").LOAD(ports, synced=synced)
    return found
