"""The load on Sapwood and on Kafka: the very same confluent-kafka code."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from bench.peers import LoadFailed, wait

BATCH = 10_000
MOST_QUEUED = 200_000
TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 5.0


class ConfluentLoad:
    def __init__(self, ports: Sequence[int], *, synced: bool) -> None:
        # Quiet: a broker that is just starting refuses connections, and that is no news.
        self._common: dict[str, Any] = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
            "log_level": 2,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
        }
        self.synced = synced
        self._replicas = len(ports)
        # One for all: each begins by asking any node, and one that is just starting knows nobody.
        self._admin = AdminClient(self._common)

    def topic_configs(self) -> dict[str, str]:
        """What makes a topic as durable as it is to be, where the broker's own settings don't."""
        # An acknowledged message outlives any one of three nodes.
        return {"min.insync.replicas": "2"} if self._replicas > 2 else {}

    def first(self) -> None:
        if self._replicas > 1:
            self._wait_for_all_nodes()
            self.create("first", 1)
        # Not idempotent: librdkafka asks for its id by a timer of half a second, and the row
        # would tell more of that than of a broker.
        producer = self._producer(linger_ms=0, idempotent=False)
        producer.produce("first", b"first")
        if producer.flush(TIMEOUT_S):
            raise LoadFailed("the first message wasn't acknowledged")

    def create(self, topic: str, partitions: int) -> None:
        new = NewTopic(topic, partitions, self._replicas, config=self.topic_configs())
        self._admin.create_topics([new])[topic].result(TIMEOUT_S)
        wait(f"leaders and replicas of {topic}", lambda: self.is_whole(topic, partitions))

    def delete(self, topic: str, partitions: int) -> None:
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def leaders(self, topic: str, partitions: int) -> list[int]:
        found = self._described(topic)
        return [found[number].leader if number in found else -1 for number in range(partitions)]

    def is_whole(self, topic: str, partitions: int) -> bool:
        found = self._described(topic)
        return len(found) == partitions and all(
            it.leader >= 0 and len(it.isrs) == self._replicas for it in found.values()
        )

    def _described(self, topic: str) -> dict[int, PartitionMetadata]:
        """As any of the nodes tells it; nothing if none answers."""
        try:
            described = self._admin.list_topics(topic, ASK_TIMEOUT_S).topics[topic]
            found: dict[int, PartitionMetadata] = described.partitions
            return found
        except KafkaException:
            return {}

    def _wait_for_all_nodes(self) -> None:
        """Brokers refuse more replicas than they know nodes."""

        def are_up() -> bool:
            with contextlib.suppress(KafkaException):
                return len(self._admin.list_topics(timeout=ASK_TIMEOUT_S).brokers) == self._replicas
            return False

        wait("nodes", are_up)

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
        producer = self._producer(linger_ms=5)
        producer.produce(topic, message)  # connects and gets a producer id
        producer.flush(TIMEOUT_S)
        batch: list[dict[str, Any]] = [{"value": message} for _ in range(min(BATCH, count))]
        if keyed:
            for number, row in enumerate(batch):
                row["key"] = b"%d" % number
        sent = 0
        start = time.perf_counter()
        while sent < count and time.perf_counter() - start < limit_s:
            while len(producer) > MOST_QUEUED - len(batch):
                producer.poll(0.005)
            if producer.produce_batch(topic, batch, on_delivery=_refuse) != len(batch):
                raise LoadFailed("the client's queue is full")
            sent += len(batch)
            producer.poll(0)
        if producer.flush(TIMEOUT_S):
            raise LoadFailed("messages weren't acknowledged in time")
        return sent, time.perf_counter() - start

    def consume(self, topic: str, partitions: int, count: int) -> float:
        consumer = Consumer(
            {
                **self._common,
                "group.id": "bench",
                "enable.auto.commit": False,
                # The default waits a second whenever the client's own queue is full.
                "fetch.queue.backoff.ms": 10,
            }
        )
        start = time.perf_counter()
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        read = 0
        last = start
        while read < count:
            messages = consumer.consume(BATCH, 1.0)
            read += len(messages)
            now = time.perf_counter()
            if messages:
                last = now
                if error := messages[-1].error():
                    raise KafkaException(error)
            elif now - last > TIMEOUT_S:
                raise LoadFailed(f"{read} of {count} messages could be read")
        taken = time.perf_counter() - start
        consumer.close()
        return taken

    def paced(
        self,
        topic: str,
        partitions: int,
        message: bytes,
        rate: int,
        count: int,
        *,
        linger_ms: int = 0,
    ) -> list[float]:
        latencies_ms: list[float] = []

        def acknowledged(sent: float, now: float) -> None:
            latencies_ms.append((now - sent) * 1000)

        numbers = range(count)
        self._pace(topic, partitions, message, rate, numbers, acknowledged, linger_ms)
        if len(latencies_ms) != count:
            raise LoadFailed(f"{count - len(latencies_ms)} of {count} messages were refused")
        return latencies_ms

    def steady(
        self,
        topic: str,
        message: bytes,
        rate: int,
        acknowledged: list[float],
        ended: threading.Event,
    ) -> None:
        numbers = itertools.takewhile(lambda _: not ended.is_set(), itertools.count())
        sent = self._pace(topic, 1, message, rate, numbers, lambda _, now: acknowledged.append(now))
        if len(acknowledged) != sent:
            raise LoadFailed(f"{sent - len(acknowledged)} of {sent} messages were refused")

    def _pace(
        self,
        topic: str,
        partitions: int,
        message: bytes,
        rate: int,
        numbers: Iterable[int],
        acknowledged: Callable[[float, float], None],
        linger_ms: int = 0,
    ) -> int:
        """How many were sent; tells when each was handed over and acknowledged."""
        producer = self._producer(linger_ms=linger_ms, only_errors=False)
        for number in range(partitions):
            producer.produce(topic, message, partition=number)
        producer.flush(TIMEOUT_S)
        ended = threading.Event()
        sent = 0

        # A thread of its own: poll() counts in whole milliseconds, as long as the gap between
        # two messages, but wakes at once for an acknowledgement.
        def poll() -> None:
            while not ended.is_set():
                producer.poll(0.1)

        poller = threading.Thread(target=poll)
        poller.start()
        start = time.monotonic()
        for number in numbers:
            wait = start + number / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)

            def delivered(
                error: KafkaError | None, _: Message, handed_over: float = time.monotonic()
            ) -> None:
                if error is None:
                    acknowledged(handed_over, time.monotonic())

            producer.produce(topic, message, partition=number % partitions, on_delivery=delivered)
            sent += 1
        producer.flush(TIMEOUT_S)
        ended.set()
        poller.join()
        return sent

    def _producer(
        self, linger_ms: int, *, only_errors: bool = True, idempotent: bool = True
    ) -> Producer:
        return Producer(
            {
                **self._common,
                "acks": "all",
                "enable.idempotence": idempotent,
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": MOST_QUEUED,
                "delivery.report.only.error": only_errors,
                "topic.metadata.refresh.fast.interval.ms": 20,
            }
        )


def _refuse(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)
