"""The load on Sapwood and on Kafka: the very same confluent-kafka code."""

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import LoadFailed

BATCH = 10_000
MOST_QUEUED = 200_000
TIMEOUT_S = 60.0


class ConfluentLoad:
    def __init__(self, port: int, *, synced: bool) -> None:
        # Quiet: a broker that is just starting refuses connections, and that is no news.
        self._common: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "log_level": 2,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
        }
        self.synced = synced

    def topic_configs(self) -> dict[str, str]:
        """What makes a topic synced, or OS-buffered, where the broker's own settings don't."""
        return {}

    def first(self) -> None:
        # Not idempotent: librdkafka asks for its id by a timer of half a second, and the row
        # would tell more of that than of a broker.
        producer = self._producer(linger_ms=0, idempotent=False)
        producer.produce("first", b"first")
        if producer.flush(TIMEOUT_S):
            raise LoadFailed("the first message wasn't acknowledged")

    def create(self, topic: str, partitions: int) -> None:
        admin = AdminClient(self._common)
        new = NewTopic(topic, partitions, replication_factor=1, config=self.topic_configs())
        admin.create_topics([new])[topic].result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions
            if len(found) == partitions and all(it.leader >= 0 for it in found.values()):
                return
            time.sleep(0.02)
        raise LoadFailed(f"{topic} has no leaders")

    def delete(self, topic: str, partitions: int) -> None:
        admin = AdminClient(self._common)  # named: a client that is collected cancels its futures
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)

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
        self, topic: str, partitions: int, message: bytes, rate: int, count: int
    ) -> list[float]:
        producer = self._producer(linger_ms=0, only_errors=False)
        for number in range(partitions):
            producer.produce(topic, message, partition=number)
        producer.flush(TIMEOUT_S)
        latencies_ms: list[float] = []
        ended = threading.Event()

        # A thread of its own: poll() counts in whole milliseconds, as long as the gap between
        # two messages, but wakes at once for an acknowledgement.
        def poll() -> None:
            while not ended.is_set():
                producer.poll(0.1)

        poller = threading.Thread(target=poll)
        poller.start()
        start = time.perf_counter()
        for number in range(count):
            wait = start + number / rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)

            def delivered(
                error: KafkaError | None, _: Message, sent: float = time.perf_counter()
            ) -> None:
                if error is None:
                    latencies_ms.append((time.perf_counter() - sent) * 1000)

            producer.produce(topic, message, partition=number % partitions, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
        ended.set()
        poller.join()
        if len(latencies_ms) != count:
            raise LoadFailed(f"{count - len(latencies_ms)} of {count} messages were refused")
        return latencies_ms

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
