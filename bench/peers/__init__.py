"""The brokers that are compared: one file each, with how it is run and how it is loaded.

A `Peer` lives in the harness and owns the broker's processes. A `Load` lives in the process of a
measurement and is the client: the fastest sensible one for Python, with the batching that serves
it best. A topic's partitions are whatever keeps order: partitions, streams or queues.
"""

import importlib
from pathlib import Path
from typing import Protocol

NAMES = ("sapwood", "kafka", "nats", "redis", "rabbitmq")


class PeerFailed(Exception):
    """A broker that can't be prepared, started or stopped; the text says why."""


class LoadFailed(Exception):
    """A client whose messages were refused or lost."""


class Peer(Protocol):
    """One broker. `start` may return before it listens; `stop` is safe at any time."""

    title: str

    def missing(self) -> str | None:
        """What has to be installed first, in one line; None if nothing."""

    def prepare(self) -> None:
        """Fetch what is fetched once and kept."""

    def start(self, directory: Path, port: int, *, synced: bool) -> float:
        """Run on 127.0.0.1:port with all data under an empty directory.

        Returns the moment of its start command, on the monotonic clock.
        """

    def roots(self) -> list[int]:
        """Process ids whose trees are the broker."""

    def stop(self) -> None: ...


class Load(Protocol):
    """One client. Every method connects for itself and leaves nothing open."""

    def first(self) -> None:
        """Return when one message has been acknowledged; nothing was created before."""

    def create(self, topic: str, partitions: int) -> None: ...

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


def peer(name: str) -> Peer:
    found: Peer = importlib.import_module(f"bench.peers.{name}").PEER()
    return found


def load(name: str, port: int, *, synced: bool) -> Load:
    found: Load = importlib.import_module(f"bench.peers.{name}").LOAD(port, synced=synced)
    return found
