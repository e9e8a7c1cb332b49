"""Idempotent producers (confluent-kafka, acks=all) that never give up and note every answer."""

import random
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from chaos.history import Recorder, Send, Trouble, on_the_wire
from chaos.shape import Shape

TICK_S = 0.01
# Of one producer. Beyond, a slow machine would only work off what has piled up, for minutes.
MOST_WAITING = 300
# A client that lost its node looks for it again at once: what is measured is the cluster.
IMPATIENT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 2_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
}


class OneProducer:
    """Counts up, over all partitions of the workload; not thread-safe."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, name: str, shape: Shape, chance: random.Random
    ) -> None:
        self.name = name
        self._recorder = recorder
        self._shape = shape
        self._chance = chance
        self._number = 0
        self._budget = 0.0
        self._waiting: dict[int, Send] = {}
        self._waiting_at: Counter[tuple[str, int]] = Counter()
        self.failed = False
        self._producer = Producer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "socket.timeout.ms": shape.patience_ms,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": 0,  # never give up
                "linger.ms": shape.linger_ms,
                "batch.size": shape.batch_bytes,
                "compression.type": shape.compression,
                "max.in.flight.requests.per.connection": shape.requests_in_flight,
                "error_cb": self._on_error,
            }
        )

    @property
    def waiting(self) -> list[tuple[str, int]]:
        """Where records wait for their acknowledgement; partition -1: the client knows."""
        return list(self._waiting_at)

    def tick(self, seconds: float) -> None:
        """Send what is due by now, as far as the window allows."""
        rate_per_s = self._shape.rate_per_s / self._shape.producers
        self._budget = min(self._budget + rate_per_s * seconds, rate_per_s)  # no more than a second
        while self._budget >= 1 and not self.failed:
            self._budget -= 1
            self._send(*self._chance.choice(self._shape.partitions))
        self.poll()

    def poll(self) -> None:
        self._producer.poll(0)

    def abandon(self) -> None:
        """Note what was never answered, and let it go."""
        for send in self._waiting.values():
            self._recorder.add(send)
        self._waiting.clear()
        self._waiting_at.clear()
        self._producer.purge()

    def _send(self, topic: str, partition: int) -> None:
        partition = -1 if self._shape.keyed else partition
        if self._waiting_at[topic, partition] >= self._shape.window:
            return
        if len(self._waiting) >= MOST_WAITING:
            return
        number = self._number
        key = f"{self._chance.randrange(100)}" if self._shape.keyed else None
        send = Send(
            client=self.name,
            topic=topic,
            partition=partition,
            value=f"{self.name}:{number}",
            at=self._recorder.now(),
        )
        size_bytes = self._shape.size_bytes
        if self._shape.varied_sizes:
            size_bytes = self._chance.randint(1, size_bytes)
        try:
            self._producer.produce(
                topic,
                on_the_wire(send.value, size_bytes),
                key,
                partition,
                on_delivery=partial(self._delivered, number),
            )
        except BufferError:
            return
        except KafkaException as error:
            self._on_error(error.args[0], refused=True)
            return
        self._number += 1
        self._waiting[number] = send
        self._waiting_at[topic, partition] += 1

    def _delivered(self, number: int, error: KafkaError | None, message: Any) -> None:
        send = self._waiting.pop(number, None)
        if send is None:  # abandoned
            return
        place = (send.topic, send.partition)
        self._waiting_at[place] -= 1
        if not self._waiting_at[place]:
            del self._waiting_at[place]
        if error is None:
            send.done = self._recorder.now()
            send.outcome = "ok"
            send.partition = message.partition()
            send.offset = max(message.offset(), -1)  # librdkafka has other negative ones, too
        else:
            # Whatever the reason is: earlier attempts may have been stored.
            send.error = error.name()
            self.failed = self.failed or error.fatal()
        self._recorder.add(send)

    def _on_error(self, error: KafkaError, *, refused: bool = False) -> None:
        """`refused`: the client won't even take a record for a topic that is there."""
        self.failed = self.failed or error.fatal()
        fatal = error.fatal() or refused
        text = f"{error.name()}: {error.str()}"
        self._recorder.add(
            Trouble(client=self.name, at=self._recorder.now(), error=text, fatal=fatal)
        )


class Producers:
    """All producers of a workload, on as many threads as its shape says."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, shape: Shape, chance: random.Random
    ) -> None:
        self.all = [
            OneProducer(recorder, bootstrap, f"p{number}", shape, random.Random(chance.random()))
            for number in range(shape.producers)
        ]
        self._sending = threading.Event()
        self._sending.set()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(self.all[index :: shape.threads],),
                name=f"producers-{index}",
            )
            for index in range(shape.threads)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def stop(self) -> None:
        """Send nothing more; answers still come in."""
        self._sending.clear()

    @property
    def waiting(self) -> set[tuple[str, int]]:
        return {place for producer in self.all for place in producer.waiting}

    def finish(self) -> None:
        """Forget what is unanswered."""
        self.stop()
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for producer in self.all:
            producer.abandon()

    def _run(self, producers: list[OneProducer]) -> None:
        before = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            for producer in producers:
                if self._sending.is_set():
                    producer.tick(now - before)
                else:
                    producer.poll()
            before = now
            self._ended.wait(TICK_S)
