"""RabbitMQ: quorum queues, publisher confirms, a queue for each partition.

Quorum queues were the faster ones here, and a confirm means a sync (`wal_sync_method`), which the
OS-buffered rows turn off. A queue forgets what was read: consuming includes acknowledging.
"""

import functools
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pika

from bench.peers import LoadFailed, Peer

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
WINDOW = 2_000
PREFETCH = 2_000
TIMEOUT_S = 60.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def server() -> str | None:
    """The script itself, not Debian's wrapper, which insists on a user and on its directories."""
    return str(SERVER) if SERVER.exists() else shutil.which("rabbitmq-server")


class RabbitMQ(Peer):
    title = "RabbitMQ"

    def missing(self) -> str | None:
        if server() is None or shutil.which("epmd") is None:
            return "rabbitmq-server (Debian: rabbitmq-server)"
        return None

    def start(self, directory: Path, ports: Sequence[int], *, synced: bool) -> float:
        (port,) = ports
        method = "datasync" if synced else "none"
        files = {
            "rabbitmq.conf": "disk_free_limit.absolute = 50MB\n",
            "advanced.config": f"[{{ra, [{{wal_sync_method, {method}}}]}}].\n",
            "plugins": "[].\n",
        }
        for name, text in files.items():
            (directory / name).write_text(text)
        environment = {
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(port + 2),
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(port + 1),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
        }
        started = time.monotonic()
        # Erlang's port mapper, which a node would otherwise leave running behind it.
        epmd = ["epmd", "-address", "127.0.0.1", "-port", str(port + 2)]
        self.children.start(epmd, directory / "epmd.log", environment)
        self.children.start([str(server())], directory / "rabbitmq.log", environment)
        return started


class RabbitMQLoad:
    def __init__(self, ports: Sequence[int], *, synced: bool) -> None:
        (port,) = ports
        self._parameters = pika.ConnectionParameters(
            "127.0.0.1", port, blocked_connection_timeout=TIMEOUT_S
        )

    def first(self) -> None:
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel, "first.0")
            channel.basic_publish("", "first.0", b"first", PERSISTENT)

    def create(self, topic: str, partitions: int) -> None:
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            for queue in _queues(topic, partitions):
                declare(channel, queue)

    def delete(self, topic: str, partitions: int) -> None:
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            for queue in _queues(topic, partitions):
                channel.queue_delete(queue)

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
        publisher = _Publisher(_queues(topic, partitions), message, count, limit_s)
        publisher.run(self._parameters)
        return publisher.sent, publisher.taken_s

    def consume(self, topic: str, partitions: int, count: int) -> float:
        reader = _Reader(_queues(topic, partitions), count)
        reader.run(self._parameters)
        return reader.taken_s

    def paced(
        self, topic: str, partitions: int, message: bytes, rate: int, count: int
    ) -> list[float]:
        publisher = _PacedPublisher(_queues(topic, partitions), message, count, rate)
        publisher.run(self._parameters)
        return publisher.latencies_ms


def _queues(topic: str, partitions: int) -> list[str]:
    return [f"{topic}.{number}" for number in range(partitions)]


def declare(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})


class _Work:
    """One connection with one channel, driven by callbacks: pika's fastest way."""

    def __init__(self, queues: list[str], count: int) -> None:
        self.queues = queues
        self.count = count
        self.taken_s = 0.0
        self._finished = False

    def run(self, parameters: pika.ConnectionParameters) -> None:
        self.connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._closed,
            on_close_callback=self._closed,
        )
        self.connection.ioloop.start()
        if not self._finished:
            raise LoadFailed(f"the connection was lost: {self._reason}")

    def begin(self) -> None:
        """The channel is open; call `finish` in the end."""
        raise NotImplementedError

    def finish(self) -> None:
        self.taken_s = time.perf_counter() - self.started
        self._finished = True
        self.connection.close()

    def _opened(self, channel: Any) -> None:
        self.channel = channel
        self.started = time.perf_counter()
        self.begin()

    def _closed(self, connection: pika.SelectConnection, reason: object) -> None:
        self._reason = reason
        connection.ioloop.stop()


class _Publisher(_Work):
    """Keeps a window of messages unconfirmed."""

    def __init__(self, queues: list[str], message: bytes, count: int, limit_s: float) -> None:
        super().__init__(queues, count)
        self.sent = 0
        self._message = message
        self._limit_s = limit_s
        self._unconfirmed: set[int] = set()

    def begin(self) -> None:
        self.channel.confirm_delivery(self._confirmed, callback=lambda _: self._fill())

    def _fill(self) -> None:
        if time.perf_counter() - self.started >= self._limit_s:
            self.count = self.sent
        while self.sent < self.count and len(self._unconfirmed) < WINDOW:
            queue = self.queues[self.sent % len(self.queues)]
            self.channel.basic_publish("", queue, self._message, PERSISTENT)
            self.sent += 1
            self._unconfirmed.add(self.sent)

    def _confirmed(self, frame: Any) -> None:
        confirm(frame, self._unconfirmed)
        if len(self._unconfirmed) < WINDOW // 2:
            self._fill()
        if not self._unconfirmed:
            self.finish()


class _PacedPublisher(_Work):
    """Sends by the clock from a thread: the loop's own timers count in whole milliseconds."""

    def __init__(self, queues: list[str], message: bytes, count: int, rate: int) -> None:
        super().__init__(queues, count)
        self.latencies_ms: list[float] = []
        self._message = message
        self._rate = rate
        self._handed_over: dict[int, float] = {}

    def begin(self) -> None:
        sender = threading.Thread(target=self._send)
        self.channel.confirm_delivery(self._confirmed, callback=lambda _: sender.start())

    def _send(self) -> None:
        start = time.perf_counter()
        for number in range(self.count):
            wait = start + number / self._rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            publish = functools.partial(self._publish, number, time.perf_counter())
            self.connection.ioloop.add_callback_threadsafe(publish)

    def _publish(self, number: int, handed_over: float) -> None:
        self._handed_over[number + 1] = handed_over
        queue = self.queues[number % len(self.queues)]
        self.channel.basic_publish("", queue, self._message, PERSISTENT)

    def _confirmed(self, frame: Any) -> None:
        now = time.perf_counter()
        tags = set(self._handed_over)
        for tag in tags - confirm(frame, set(tags)):
            self.latencies_ms.append((now - self._handed_over.pop(tag)) * 1000)
        if len(self.latencies_ms) == self.count:
            self.finish()


class _Reader(_Work):
    def begin(self) -> None:
        self._read = 0
        self.channel.basic_qos(prefetch_count=PREFETCH, callback=lambda _: self._subscribe())

    def _subscribe(self) -> None:
        for queue in self.queues:
            self.channel.basic_consume(queue, self._arrived)

    def _arrived(self, channel: Any, method: Any, properties: object, body: bytes) -> None:
        self._read += 1
        if self._read % (PREFETCH // 4) == 0 or self._read == self.count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if self._read == self.count:
            self.finish()


def confirm(frame: Any, unconfirmed: set[int]) -> set[int]:
    """The set without what the broker confirmed."""
    method = frame.method
    if not isinstance(method, pika.spec.Basic.Ack):
        raise LoadFailed("a message was refused")
    if method.multiple:
        unconfirmed -= {tag for tag in unconfirmed if tag <= method.delivery_tag}
    else:
        unconfirmed.discard(method.delivery_tag)
    return unconfirmed


PEER = RabbitMQ
LOAD = RabbitMQLoad
