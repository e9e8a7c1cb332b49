"""Each broker's way to put messages safely and to get them as a durable subscriber.

A `Mailbox` is the connection of one publisher or one subscriber. A put returns when the message is
on disk; a get acknowledges what it returns, and waits for that where the broker can tell. A list
goes the cheapest way that the broker has for one.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import nats
import pika
import redis
import uvloop
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from bench import peers
from bench.peers import LoadFailed
from bench.peers.rabbitmq import PERSISTENT, confirm, declare
from sapwood import Client

TIMEOUT_S = 60.0

Result = TypeVar("Result")


class Mailbox(Protocol):
    def put(self, messages: Sequence[bytes]) -> None:
        """Return when all of them are safe."""

    def get(self, most: int, timeout_s: float) -> list[bytes]:
        """What is there, acknowledged; waits for one message, and returns none at the timeout."""

    def close(self) -> None: ...


class SapwoodMailbox:
    def __init__(self, ports: Sequence[int], topic: str, name: str) -> None:
        self._topic = topic
        self._client = Client([f"127.0.0.1:{port}" for port in ports], id=name)

    @staticmethod
    def create(ports: Sequence[int], topic: str, subscribers: Sequence[str]) -> None:
        peers.load("sapwood", ports, synced=True).create(topic, 1)
        for name in subscribers:
            with Client([f"127.0.0.1:{port}" for port in ports], id=name) as client:
                client.subscribe(topic, "earliest")

    def put(self, messages: Sequence[bytes]) -> None:
        if len(messages) == 1:
            self._client.put(self._topic, messages[0])
        else:
            self._client.put_many(self._topic, messages)

    def get(self, most: int, timeout_s: float) -> list[bytes]:
        return [it.value or b"" for it in self._client.get_many(self._topic, most, timeout_s)]

    def close(self) -> None:
        self._client.close()


class NatsMailbox:
    """Atomic batches for lists. Acknowledgements count for all before, and are confirmed."""

    def __init__(self, ports: Sequence[int], topic: str, name: str) -> None:
        self._stream, self._subject, self._name = f"{topic}-0", f"{topic}.0", name
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        servers = [f"nats://127.0.0.1:{port}" for port in ports]
        self._client = self._run(nats.connect(servers))
        self._consumer: JetStreamContext.PullSubscription | None = None

    @staticmethod
    def create(ports: Sequence[int], topic: str, subscribers: Sequence[str]) -> None:
        peers.load("nats", ports, synced=True).create(topic, 1)
        for name in subscribers:
            mailbox = NatsMailbox(ports, topic, name)
            config = ConsumerConfig(
                durable_name=name, ack_policy=AckPolicy.ALL, num_replicas=len(ports)
            )
            jetstream = mailbox._client.jetstream(timeout=TIMEOUT_S)
            mailbox._run(jetstream.add_consumer(mailbox._stream, config))
            mailbox.close()

    def put(self, messages: Sequence[bytes]) -> None:
        if len(messages) == 1:
            self._run(self._client.jetstream().publish(self._subject, messages[0], TIMEOUT_S))
        else:
            self._run(self._put_batch(messages))

    def get(self, most: int, timeout_s: float) -> list[bytes]:
        return self._run(self._get(most, timeout_s))

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.close()

    async def _put_batch(self, messages: Sequence[bytes]) -> None:
        headers = {"Nats-Batch-Id": uuid.uuid4().hex}
        for number, message in enumerate(messages[:-1], 1):
            headers["Nats-Batch-Sequence"] = str(number)
            await self._client.publish(self._subject, message, headers=headers)
        headers["Nats-Batch-Sequence"] = str(len(messages))
        headers["Nats-Batch-Commit"] = "1"
        answer = await self._client.request(
            self._subject, messages[-1], timeout=TIMEOUT_S, headers=headers
        )
        if json.loads(answer.data).get("count") != len(messages):
            raise LoadFailed(f"a batch was refused: {answer.data.decode()}")

    async def _get(self, most: int, timeout_s: float) -> list[bytes]:
        if self._consumer is None:
            self._consumer = await self._client.jetstream().pull_subscribe_bind(
                durable=self._name, stream=self._stream
            )
        try:
            found = await self._consumer.fetch(most, timeout=timeout_s)
        except TimeoutError:  # of the library or of asyncio
            return []
        await found[-1].ack_sync(timeout=TIMEOUT_S)
        return [it.data for it in found]

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)


class RedisMailbox:
    """A group for each subscriber; pipelines for lists."""

    def __init__(self, ports: Sequence[int], topic: str, name: str) -> None:
        self._topic, self._name = topic, name
        self._client: Any = redis.Redis(host="127.0.0.1", port=ports[0])

    @staticmethod
    def create(ports: Sequence[int], topic: str, subscribers: Sequence[str]) -> None:
        with redis.Redis(host="127.0.0.1", port=ports[0]) as client:
            for name in subscribers:
                client.xgroup_create(topic, name, id="0", mkstream=True)

    def put(self, messages: Sequence[bytes]) -> None:
        if len(messages) == 1:
            self._client.execute_command("XADD", self._topic, "*", b"v", messages[0])
            return
        pipeline = self._client.pipeline(transaction=False)
        for message in messages:
            pipeline.execute_command("XADD", self._topic, "*", b"v", message)
        pipeline.execute()

    def get(self, most: int, timeout_s: float) -> list[bytes]:
        wait_ms = max(1, int(timeout_s * 1000))
        found: Any = self._client.xreadgroup(
            self._name, "one", {self._topic: ">"}, count=most, block=wait_ms
        )
        if not found:
            return []
        # By stream, as a mapping or as pairs: that depends on the protocol's version.
        entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
        self._client.xack(self._topic, self._name, *[number for number, _ in entries])
        return [fields[b"v"] for _, fields in entries]

    def close(self) -> None:
        self._client.close()


class RabbitMQMailbox:
    """An exchange for each topic, a quorum queue for each subscriber.

    AMQP doesn't confirm acknowledgements, but the next message comes after they are processed.
    """

    def __init__(self, ports: Sequence[int], topic: str, name: str) -> None:
        self._exchange, self._queue = topic, f"{topic}.{name}"
        self._channel: Any = None
        self._lost: object = None
        self._is_confirming = False
        self._published = 0
        self._unconfirmed: set[int] = set()
        self._prefetch = 0
        self._arrived: list[tuple[int, bytes]] = []
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", ports[0]),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._closed,
            on_close_callback=self._closed,
        )
        self._until(lambda: self._channel is not None)

    @staticmethod
    def create(ports: Sequence[int], topic: str, subscribers: Sequence[str]) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", ports[0])
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.exchange_declare(topic, "fanout", durable=True)
            for name in subscribers:
                declare(channel, f"{topic}.{name}")
                channel.queue_bind(f"{topic}.{name}", topic)

    def put(self, messages: Sequence[bytes]) -> None:
        if not self._is_confirming:
            self._channel.confirm_delivery(self._confirmed, callback=self._confirming)
            self._until(lambda: self._is_confirming)
        for message in messages:
            self._channel.basic_publish(self._exchange, "", message, PERSISTENT)
            self._published += 1
            self._unconfirmed.add(self._published)
        self._until(lambda: not self._unconfirmed)

    def get(self, most: int, timeout_s: float) -> list[bytes]:
        if self._prefetch != most:
            if self._prefetch:
                raise LoadFailed("a queue's consumer keeps the length of its lists")
            self._prefetch = most
            self._channel.basic_qos(prefetch_count=most)
            self._channel.basic_consume(self._queue, self._came)
        with contextlib.suppress(TimeoutError):
            self._until(lambda: bool(self._arrived), timeout_s)
        found, self._arrived = self._arrived, []
        if found:
            self._channel.basic_ack(found[-1][0], multiple=True)
        return [body for _, body in found]

    def close(self) -> None:
        self._connection.close()
        with contextlib.suppress(LoadFailed):
            self._until(lambda: False)

    def _until(self, is_so: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Every callback stops the loop, so that this can look."""
        loop, is_late = self._connection.ioloop, False

        def late() -> None:
            nonlocal is_late
            is_late = True
            loop.stop()

        timer = loop.call_later(timeout_s, late)
        while not is_so() and not is_late:
            if self._lost is not None:
                raise LoadFailed(f"the connection was lost: {self._lost}")
            loop.start()
        loop.remove_timeout(timer)
        if is_late:
            raise TimeoutError

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        self._connection.ioloop.stop()

    def _closed(self, connection: Any, reason: object) -> None:
        self._lost = reason
        connection.ioloop.stop()

    def _confirming(self, _: object) -> None:
        self._is_confirming = True
        self._connection.ioloop.stop()

    def _confirmed(self, frame: Any) -> None:
        self._unconfirmed = confirm(frame, self._unconfirmed)
        self._connection.ioloop.stop()

    def _came(self, channel: object, method: Any, properties: object, body: bytes) -> None:
        self._arrived.append((method.delivery_tag, body))
        self._connection.ioloop.stop()


KINDS: dict[str, Any] = {
    "sapwood": SapwoodMailbox,
    "nats": NatsMailbox,
    "redis": RedisMailbox,
    "rabbitmq": RabbitMQMailbox,
}


def create(name: str, ports: Sequence[int], topic: str, subscribers: Sequence[str]) -> None:
    """A topic that keeps order, with these durable subscribers of all that will be put."""
    KINDS[name].create(ports, topic, subscribers)


def mailbox(name: str, ports: Sequence[int], topic: str, owner: str) -> Mailbox:
    found: Mailbox = KINDS[name](ports, topic, owner)
    return found
