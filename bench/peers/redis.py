"""Redis Streams: an append-only file, XADD in pipelines, a stream for each partition."""

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import redis

from bench.peers import LoadFailed, Peer

# An append-only file synced once for a whole pipeline: longer ones share the sync among more
# messages, but 1 KB messages fall back again when a pipeline outgrows the socket's buffers.
PIPELINE_BYTES = 1_000_000
LONGEST_PIPELINE = 5_000
READ_COUNT = 5_000
CONNECTIONS = 8


class Redis(Peer):
    title = "Redis Streams"

    def missing(self) -> str | None:
        if shutil.which("redis-server") is None:
            return "redis-server (Debian: redis-server)"
        return None

    def start(self, directory: Path, ports: Sequence[int], *, synced: bool) -> float:
        (port,) = ports
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": "always" if synced else "everysec",
            # Neither snapshots nor rewriting of the file in the middle of a measurement.
            "save": "",
            "auto-aof-rewrite-percentage": "0",
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        started = time.monotonic()
        self.children.start(["redis-server", *flags], directory / "redis.log")
        return started


class RedisLoad:
    def __init__(self, ports: Sequence[int], *, synced: bool) -> None:
        (self._port,) = ports

    def _connect(self) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self._port)

    def first(self) -> None:
        with self._connect() as client:
            client.xadd("first", {"v": b"first"})

    def create(self, topic: str, partitions: int) -> None:
        """The first XADD makes a stream."""

    def delete(self, topic: str, partitions: int) -> None:
        with self._connect() as client:
            client.unlink(*_streams(topic, partitions))

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
        length = min(count, LONGEST_PIPELINE, PIPELINE_BYTES // len(message))
        streams = _streams(topic, partitions)
        sent = 0
        with self._connect() as client:
            client.ping()
            start = time.perf_counter()
            while sent < count and time.perf_counter() - start < limit_s:
                stream = streams[sent // length % partitions]
                pipeline = client.pipeline(transaction=False)
                for _ in range(length):
                    # What xadd() boils down to, at half its price.
                    pipeline.execute_command("XADD", stream, "*", b"v", message)
                pipeline.execute()
                sent += length
            return sent, time.perf_counter() - start

    def consume(self, topic: str, partitions: int, count: int) -> float:
        read = 0
        with self._connect() as client:
            start = time.perf_counter()
            for stream in _streams(topic, partitions):
                position = b"-"
                while entries := client.xrange(stream, min=position, count=READ_COUNT):
                    read += len(entries)
                    position = b"(" + entries[-1][0]
            taken = time.perf_counter() - start
        if read < count:
            raise LoadFailed(f"{read} of {count} messages could be read")
        return taken

    def paced(
        self, topic: str, partitions: int, message: bytes, rate: int, count: int
    ) -> list[float]:
        streams = _streams(topic, partitions)
        clients = [self._connect() for _ in range(CONNECTIONS)]
        for client in clients:
            client.ping()
        latencies_ms: list[float] = []

        def send(number: int, handed_over: float) -> None:
            client = clients[number % CONNECTIONS]
            client.xadd(streams[number % partitions], {b"v": message})
            latencies_ms.append((time.perf_counter() - handed_over) * 1000)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            start = time.perf_counter()
            for number in range(count):
                wait = start + number / rate - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                pool.submit(send, number, time.perf_counter())
        for client in clients:
            client.close()
        if len(latencies_ms) != count:
            raise LoadFailed(f"{count - len(latencies_ms)} of {count} messages were refused")
        return latencies_ms


def _streams(topic: str, partitions: int) -> list[str]:
    return [f"{topic}.{number}" for number in range(partitions)]


PEER = Redis
LOAD = RedisLoad
