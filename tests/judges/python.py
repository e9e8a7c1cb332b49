"""kafka-python (pure Python, threads)."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from tests.judges.judge import (
    Message,
    Received,
    RefusedError,
    TopicDescription,
    received_from,
)

TIMEOUT_S = 30


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        if getattr(error, "errno", None) is None:
            raise
        raise RefusedError(error.errno, str(error)) from None


class KafkaPython:
    name = "kafka-python"
    sets_timestamps = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        messages: list[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=5,
            max_request_size=100_000_000,
        )
        with contextlib.closing(producer), refusals():
            futures = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            for future in futures:
                future.get(TIMEOUT_S)

    def _consumer(self) -> Any:
        return contextlib.closing(
            KafkaConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
            )
        )

    def consume(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]:
        place = TopicPartition(topic, partition)
        received: list[Received] = []
        deadline = time.monotonic() + TIMEOUT_S
        with self._consumer() as consumer, refusals():
            consumer.assign([place])
            consumer.seek(place, offset)
            while len(received) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(received)} of {count} messages arrived")
                records = consumer.poll(1000, max_records=count - len(received)).get(place, [])
                received += [received_from(record) for record in records]
        return received

    def offset_for_timestamp(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer, refusals():
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
        return -1 if found is None else int(found.offset)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Any]:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        with contextlib.closing(admin), refusals():
            yield admin

    def describe_topics(self) -> dict[str, TopicDescription]:
        with self._admin() as admin:
            topics = admin.describe_topics()
        return {
            topic["name"]: TopicDescription(
                {it["partition_index"]: it["leader_id"] for it in topic["partitions"]}
            )
            for topic in topics
        }

    def create_topic(
        self, topic: str, partitions: int = 1, config: dict[str, str] | None = None
    ) -> None:
        new = {"num_partitions": partitions, "replication_factor": 1, "configs": config or {}}
        with self._admin() as admin:
            admin.create_topics({topic: new})

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def create_partitions(self, topic: str, total: int) -> None:
        with self._admin() as admin:
            admin.create_partitions({topic: total})

    def alter_config(self, topic: str, key: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {key: value})
        with self._admin() as admin:
            outcome = admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if outcome != "OK":
            name, _, message = str(outcome).partition(":")
            raise RefusedError(code_of(name.strip("[] ")), message)

    def config(self, topic: str) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_config(self, node_id: int) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.BROKER, str(node_id)))

    def _describe(self, resource: Any) -> dict[str, str | None]:
        with self._admin() as admin:
            described = admin.describe_configs([resource], config_filter="all")
        (by_name,) = described.values()
        return {key: entry["value"] for key, entry in by_name[resource.name].items()}

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None:
        with self._admin() as admin:
            admin.delete_records({TopicPartition(topic, partition): before_offset})

    def node_ids(self) -> set[int]:
        with self._admin() as admin:
            return {broker["broker_id"] for broker in admin.describe_cluster()["brokers"]}


def code_of(class_name: str) -> int:
    """The Kafka code behind the name of one of kafka-python's exceptions."""
    from kafka import errors

    return int(getattr(errors, class_name.split()[-1]).errno)
