"""A producer that keeps working while somebody else misbehaves, and can prove that it could."""

import threading
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.ledger import judge
from tests.faults.load import read_all
from tests.helpers import eventually

IN_FLIGHT = 20


class Bystander:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = "bystander"
        self.acknowledged: list[int] = []
        self.sent = 0
        self.errors: list[str] = []
        new = NewTopic(self.topic, num_partitions=1, replication_factor=1)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([new])[self.topic].result(30)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "queue.buffering.max.messages": IN_FLIGHT,
                "error_cb": lambda error: self.errors.append(str(error)),
            }
        )
        while not self._stopped.is_set():
            try:
                producer.produce(
                    self.topic, f"bystander:{self.sent}", partition=0, on_delivery=self._delivered
                )
                self.sent += 1
            except BufferError:
                producer.poll(0.1)
        producer.flush(30)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(int(message.value().decode().partition(":")[2]))
        else:
            self.errors.append(str(error))

    def is_undisturbed(self) -> bool:
        """Whether it gets further acknowledgements and never saw an error."""
        before = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) > before)
        return not self.errors

    def finish(self) -> None:
        self._stopped.set()
        self._thread.join(60)

    def lost_nothing(self) -> bool:
        """To be asked after the end: all that it wrote is there once, in order."""
        verdict = judge(
            {"bystander": self.acknowledged},
            {"bystander": self.sent},
            read_all(self.bootstrap, self.topic, 1),
        )
        return verdict.is_clean and len(self.acknowledged) == self.sent
