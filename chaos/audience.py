"""Who listens at nodes of a tree while those die, and who speaks: each subscriber has a list of
what it got, to be held against the log.

Four kinds of clients: confluent-kafka and aiokafka, which read a partition from its beginning, and
the line protocol over TCP and over a WebSocket, which hear what comes from now on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, TopicPartition
from websockets.asyncio.client import connect

from sapwood.client import KafkaClient, KafkaError
from sapwood.node.process import ChildProcess

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
logging.getLogger("websockets").setLevel(logging.CRITICAL)

KINDS = ("confluent", "aiokafka", "lines", "websocket")
POLL_S = 0.02
START_S = 60.0
LARGEST_LINE_BYTES = 1 << 22


class Subscriber:
    """What one client got, in its order."""

    def __init__(self, kind: str, name: str, servers: Sequence[str], topic: str) -> None:
        """`servers`: where the client may turn to; for lines, the gateway."""
        self.kind = kind
        self.name = name
        self.servers = list(servers)
        self.topic = topic
        self.got: list[str] = []
        self.ready = threading.Event()
        self.answers = 0
        self.troubles: list[str] = []


class GatewayProcess(ChildProcess):
    """A gateway of its own in front of some nodes, gone at the end."""

    def __init__(self, servers: Sequence[str]) -> None:
        command = [sys.executable, "-P", "-m", "sapwood.gateway", "--announce", "--with-parent"]
        command += ["--bootstrap", ",".join(servers), "--rest", "127.0.0.1:0"]
        command += ["--lines", "127.0.0.1:0"]
        super().__init__(command, subprocess.PIPE, subprocess.DEVNULL)
        line = self.stdout.readline() if self.stdout is not None else b""
        ready = json.loads(line)
        self.rest, self.lines = ready["rest"], ready["lines"]


class Audience:
    """All subscribers: one thread polls those of librdkafka, an event loop has the others."""

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        self.subscribers = list(subscribers)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll, name="audience-confluent", daemon=True),
            threading.Thread(target=self._loop, name="audience-loop", daemon=True),
        ]

    def __enter__(self) -> Audience:
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + START_S
        for each in self.subscribers:
            if not each.ready.wait(max(0.0, deadline - time.monotonic())):
                self._end()
                raise RuntimeError(f"{each.name} ({each.kind}) doesn't listen: {each.troubles}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def await_count(self, count: int, patience_s: float) -> None:
        """Until everybody has got so many, or nobody gets more for so long."""
        progress, last = -1, time.monotonic()
        while min(len(it.got) for it in self.subscribers) < count:
            now = sum(len(it.got) for it in self.subscribers)
            if now != progress:
                progress, last = now, time.monotonic()
            if time.monotonic() - last > patience_s:
                return
            time.sleep(POLL_S)

    # confluent-kafka

    def _poll(self) -> None:
        consumers = []
        for each in self.subscribers:
            if each.kind == "confluent":
                consumer = Consumer(_confluent(each))
                consumer.assign([TopicPartition(each.topic, 0, 0)])
                consumers.append((each, consumer))
                each.ready.set()
        while consumers and not self._ended.is_set():
            for each, consumer in consumers:
                for message in consumer.consume(1000, POLL_S / len(consumers)):
                    error = message.error()
                    if error is None:
                        each.got.append((message.value() or b"").decode())
                    else:
                        each.troubles.append(f"{error.name()}: {error.str()}")
        for _, consumer in consumers:
            consumer.close()

    # The others

    def _loop(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        ways = {"aiokafka": _aiokafka, "lines": _lines, "websocket": _websocket}
        tasks = [
            asyncio.ensure_future(_noted(each, ways[each.kind](each)))
            for each in self.subscribers
            if each.kind in ways
        ]
        await asyncio.to_thread(self._ended.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _noted(subscriber: Subscriber, listening: Any) -> None:
    try:
        await listening
    except Exception as error:
        subscriber.troubles.append(repr(error))


def _confluent(subscriber: Subscriber) -> dict[str, Any]:
    return {
        "bootstrap.servers": ",".join(subscriber.servers),
        "client.id": subscriber.name,
        "group.id": subscriber.name,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "topic.metadata.refresh.interval.ms": 1000,
        "socket.timeout.ms": 5000,
        "reconnect.backoff.max.ms": 500,
        "fetch.wait.max.ms": 500,
        "log_level": 0,
    }


async def _aiokafka(subscriber: Subscriber) -> None:
    place = AioPartition(subscriber.topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=subscriber.servers,
        client_id=subscriber.name,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        retry_backoff_ms=100,
        request_timeout_ms=5_000,
        metadata_max_age_ms=1_000,
    )
    await consumer.start()
    consumer.assign([place])
    consumer.seek(place, 0)
    subscriber.ready.set()
    try:
        while True:
            try:
                found = await consumer.getmany(timeout_ms=500)
            except AioError as error:
                subscriber.troubles.append(repr(error))
                await asyncio.sleep(POLL_S)
                continue
            for messages in found.values():
                subscriber.got += [it.value.decode() for it in messages]
    finally:
        await consumer.stop()


async def _lines(subscriber: Subscriber) -> None:
    host, _, port = subscriber.servers[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=LARGEST_LINE_BYTES)
    try:
        writer.write(_subscribe(subscriber))
        while line := await reader.readline():
            _hear(subscriber, line.decode())
        subscriber.troubles.append("the gateway closed the connection")
    finally:
        writer.close()


async def _websocket(subscriber: Subscriber) -> None:
    async with connect(f"ws://{subscriber.servers[0]}/ws", max_size=LARGEST_LINE_BYTES) as socket:
        await socket.send(_subscribe(subscriber).decode())
        async for line in socket:
            _hear(subscriber, str(line))
    subscriber.troubles.append("the gateway closed the connection")


def _subscribe(subscriber: Subscriber) -> bytes:
    return b"[HELP] {}\n[SUBSCRIBE] " + json.dumps({"topic": subscriber.topic}).encode() + b"\n"


def _hear(subscriber: Subscriber, line: str) -> None:
    if line.startswith("[NEW_MESSAGE] "):
        subscriber.got.append(json.loads(line.removeprefix("[NEW_MESSAGE] "))["message"])
    elif line.startswith("[RESULT] ERROR"):
        subscriber.troubles.append(line.strip())
    elif line.startswith("[RESULT] OK"):
        # The greeting, the answer to HELP, and that to SUBSCRIBE.
        subscriber.answers += 1
        if subscriber.answers == 3:
            subscriber.ready.set()


class Publisher(threading.Thread):
    """Numbers, at a steady rate, to one partition."""

    def __init__(self, servers: Sequence[str], topic: str, rate_per_s: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self._servers = list(servers)
        self._topic = topic
        self._every_s = 1 / rate_per_s
        self._ended = threading.Event()
        self.acknowledged: list[str] = []
        self.refused: list[str] = []

    def run(self) -> None:
        sent = []
        with KafkaClient(self._servers, delivery_timeout_ms=60_000) as client:
            number = 0
            while not self._ended.wait(self._every_s):
                text = str(number)
                sent.append((text, client.send(self._topic, text.encode(), partition=0)))
                number += 1
            with contextlib.suppress(KafkaError):
                client.flush()
            for text, delivery in sent:
                try:
                    delivery.result()
                    self.acknowledged.append(text)
                except KafkaError as error:
                    self.refused.append(f"{text}: {error}")

    def finish(self) -> None:
        self._ended.set()
        self.join()


def judged(log: Sequence[str], publisher: Publisher, audience: Audience) -> list[str]:
    """What is wrong: everything acknowledged is in the log once and in order, and everybody got
    the log, neither more nor less."""
    problems = []
    if len(set(log)) != len(log):
        problems.append("the log holds a record twice")
    if sorted(log, key=int) != list(log):
        problems.append("the log isn't in the order of sending")
    if lost := set(publisher.acknowledged) - set(log):
        problems.append(f"acknowledged and not in the log: {sorted(lost, key=int)[:5]}")
    for each in audience.subscribers:
        if each.got != list(log):
            problems.append(f"{each.name} ({each.kind}): {difference(each.got, log)}")
            problems += [f"  {it}" for it in each.troubles[-3:]]
    return problems


def difference(got: Sequence[str], log: Sequence[str]) -> str:
    doubled = len(got) - len(set(got))
    missing = [it for it in log if it not in set(got)]
    foreign = len(set(got) - set(log))
    order = "" if sorted(got, key=int) == list(got) else ", not in order"
    return (
        f"{len(got)} of {len(log)}: {len(missing)} missing"
        + (f" from {missing[0]} to {missing[-1]}" if missing else "")
        + f", {doubled} twice, {foreign} not of the log{order}"
    )
