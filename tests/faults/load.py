"""Idempotent producers in processes of their own, and the reader that finds what they wrote.

Run as a program it is one producer: it writes `name:number` until it gets SIGTERM, then flushes,
and reports on standard output: a line `ack N` for each acknowledgement, at last `sent N`.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.faults.ledger import Entry
from tests.helpers import eventually

ROOT = Path(__file__).resolve().parents[2]
IN_FLIGHT = 500
PATIENCE_S = 30


class ProducerProcess:
    def __init__(self, bootstrap: str, topic: str, partition: int, name: str) -> None:
        self.name = name
        self.acknowledged: list[int] = []
        self.sent = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.load", bootstrap, topic, str(partition), name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            word, number = line.split()
            if word == "ack":
                self.acknowledged.append(int(number))
            else:
                self.sent = int(number)

    def await_more(self, deadline_s: float = 60) -> None:
        """Wait for an acknowledgement that isn't here yet."""
        before = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) > before, deadline_s)

    def finish(self, timeout_s: float = 60) -> None:
        """Stop producing, wait for what is under way; raises if the producer had to give up."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.reader.join(timeout_s)
        if status:
            raise RuntimeError(f"producer {self.name} gave up with status {status}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def produce_until_told(bootstrap: str, topic: str, partition: int, name: str) -> int:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    failed: list[str] = []

    def on_error(error: KafkaError) -> None:
        if error.fatal():
            failed.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "message.timeout.ms": 0,  # never give up
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "queue.buffering.max.messages": IN_FLIGHT,
            "error_cb": on_error,
            "log_level": 0,
        }
    )

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is None:
            sys.stdout.write(f"ack {message.value().decode().partition(':')[2]}\n")
        else:
            failed.append(str(error))

    number = 0
    while not told.is_set() and not failed:
        try:
            producer.produce(topic, f"{name}:{number}", partition=partition, on_delivery=delivered)
            number += 1
            producer.poll(0)
        except BufferError:
            producer.poll(0.1)
            sys.stdout.flush()
    producer.flush(30)
    sys.stdout.write(f"sent {number}\n")
    sys.stdout.flush()
    if failed:
        sys.stderr.write(f"{name}: {failed[:3]}\n")
    return 1 if failed else 0


def read_all(bootstrap: str, topic: str, partitions: int) -> Iterator[Entry]:
    """Every record of the topic, partition by partition, to the end as it is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            yield from _read_partition(consumer)
    finally:
        consumer.close()


def _read_partition(consumer: Consumer) -> Iterator[Entry]:
    """Up to the end of the partition, which comes as an event of its own."""
    quiet_since = time.monotonic()
    while time.monotonic() < quiet_since + PATIENCE_S:
        messages: list[Any] = consumer.consume(10_000, 0.1)
        for message in messages:
            quiet_since = time.monotonic()
            error = message.error()
            if error is None:
                name, _, number = message.value().decode().partition(":")
                yield name, int(number)
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise RuntimeError(str(error))
    raise TimeoutError("the end of the partition didn't come")


if __name__ == "__main__":
    _, bootstrap, topic, partition, name = sys.argv
    sys.exit(produce_until_told(bootstrap, topic, int(partition), name))
