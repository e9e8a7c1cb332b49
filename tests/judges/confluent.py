"""confluent-kafka (librdkafka from Python)."""

from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.judges.judge import Message, Received, RefusedError, TopicDescription

TIMEOUT_S = 30


def result(futures: dict[Any, "Future[Any]"]) -> Any:
    """The one answer of an administrative call, or the broker's refusal."""
    (future,) = futures.values()
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as error:
        raise RefusedError(error.args[0].code(), error.args[0].str()) from None


class Confluent:
    name = "confluent-kafka"
    sets_timestamps = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused: partitions are assigned by hand",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )

    def produce(
        self,
        topic: str,
        messages: list[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
        retries: int = 2**31 - 1,
    ) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "message.max.bytes": 100_000_000,
                "message.timeout.ms": TIMEOUT_S * 1000,
                "retries": retries,
            }
        )
        refused: list[RefusedError] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(RefusedError(error.code(), error.str()))

        for message in messages:
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                partition=partition,
                on_delivery=delivered,
                timestamp=message.timestamp_ms or 0,
                headers=list(message.headers),
            )
        left = producer.flush(TIMEOUT_S)
        if refused:
            raise refused[0]
        if left:
            raise TimeoutError(f"{left} messages weren't delivered")

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        offset: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Received]:
        consumer = self.consumer()
        received: list[Received] = []
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            while len(received) < count:
                some = consumer.consume(count - len(received), timeout_s)
                if not some:
                    raise TimeoutError(f"{len(received)} of {count} messages arrived")
                received += [self._received(message) for message in some]
        finally:
            consumer.close()
        return received

    @staticmethod
    def _received(message: Any) -> Received:
        if error := message.error():
            raise RefusedError(error.code(), error.str())
        timestamp_type, timestamp_ms = message.timestamp()
        return Received(
            offset=message.offset(),
            timestamp_ms=timestamp_ms,
            is_append_time=timestamp_type == TIMESTAMP_LOG_APPEND_TIME,
            key=message.key(),
            value=message.value(),
            headers=tuple(message.headers() or ()),
        )

    def offset_for_timestamp(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        consumer = self.consumer()
        try:
            asked = [TopicPartition(topic, partition, timestamp_ms)]
            found: int = consumer.offsets_for_times(asked, TIMEOUT_S)[0].offset
        finally:
            consumer.close()
        return found

    def describe_topics(self) -> dict[str, TopicDescription]:
        topics = self.admin.list_topics(timeout=TIMEOUT_S).topics
        return {
            name: TopicDescription({it.id: it.leader for it in topic.partitions.values()})
            for name, topic in topics.items()
        }

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        replicas: int = 1,
    ) -> None:
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replicas,
            config=config or {},
        )
        result(self.admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        result(self.admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        result(self.admin.create_partitions([NewPartitions(topic, total)]))

    def alter_config(self, topic: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        result(self.admin.incremental_alter_configs([resource]))

    def config(self, topic: str) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResource.Type.TOPIC, topic))

    def broker_config(self, node_id: int) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResource.Type.BROKER, str(node_id)))

    def _describe(self, resource: ConfigResource) -> dict[str, str | None]:
        entries = result(self.admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None:
        result(self.admin.delete_records([TopicPartition(topic, partition, before_offset)]))

    def node_ids(self) -> set[int]:
        cluster = self.admin.describe_cluster().result(TIMEOUT_S)
        return {node.id for node in cluster.nodes}
