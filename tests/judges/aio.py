"""aiokafka (pure Python on asyncio)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.judges.judge import (
    Message,
    Received,
    RefusedError,
    TopicDescription,
    received_from,
)

T = TypeVar("T")

TIMEOUT_S = 30


def refuse(rows: Iterable[tuple[int, object]]) -> None:
    for code, message in rows:
        if code:
            raise RefusedError(code, str(message))


class Aio:
    name = "aiokafka"
    sets_timestamps = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def _with(self, client: Callable[[], Any], work: Callable[[Any], Awaitable[T]]) -> T:
        """Start the client, do the work, stop the client."""

        async def run() -> T:
            started = client()
            try:
                await started.start()
                return await asyncio.wait_for(work(started), TIMEOUT_S)
            finally:
                stop = getattr(started, "stop", None) or started.close
                await stop()

        try:
            return asyncio.run(run())
        except KafkaError as error:
            if getattr(error, "errno", None) is None:
                raise
            raise RefusedError(error.errno, str(error)) from None

    def produce(
        self,
        topic: str,
        messages: list[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        async def work(producer: Any) -> None:
            sent = [
                await producer.send(
                    topic,
                    message.value,
                    message.key,
                    partition,
                    message.timestamp_ms,
                    list(message.headers),
                )
                for message in messages
            ]
            await asyncio.gather(*sent)

        self._with(
            lambda: AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all",
                linger_ms=5,
                max_request_size=100_000_000,
            ),
            work,
        )

    def _consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
        )

    def consume(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]:
        place = TopicPartition(topic, partition)

        async def work(consumer: Any) -> list[Received]:
            consumer.assign([place])
            consumer.seek(place, offset)
            return [received_from(await consumer.getone(place)) for _ in range(count)]

        return self._with(self._consumer, work)

    def offset_for_timestamp(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        place = TopicPartition(topic, partition)

        async def work(consumer: Any) -> int:
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return -1 if found is None else int(found.offset)

        return self._with(self._consumer, work)

    def _administer(self, work: Callable[[Any], Awaitable[T]]) -> T:
        return self._with(lambda: AIOKafkaAdminClient(bootstrap_servers=self.bootstrap), work)

    def describe_topics(self) -> dict[str, TopicDescription]:
        topics = self._administer(lambda admin: admin.describe_topics())
        return {
            topic["topic"]: TopicDescription(
                {it["partition"]: it["leader"] for it in topic["partitions"]}
            )
            for topic in topics
        }

    def create_topic(
        self, topic: str, partitions: int = 1, config: dict[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=config or {})
        answer = self._administer(lambda admin: admin.create_topics([new]))
        refuse((row[1], row[2]) for row in answer.topic_errors)

    def delete_topic(self, topic: str) -> None:
        answer = self._administer(lambda admin: admin.delete_topics([topic]))
        refuse((row[1], row[0]) for row in answer.topic_error_codes)

    def create_partitions(self, topic: str, total: int) -> None:
        self._administer(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))

    def alter_config(self, topic: str, key: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {key: value})
        for answer in self._administer(lambda admin: admin.alter_configs([resource])):
            refuse((row[0], row[1]) for row in answer.resources)

    def config(self, topic: str) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_config(self, node_id: int) -> dict[str, str | None]:
        return self._describe(ConfigResource(ConfigResourceType.BROKER, str(node_id)))

    def _describe(self, resource: Any) -> dict[str, str | None]:
        (answer,) = self._administer(lambda admin: admin.describe_configs([resource]))
        refuse((row[0], row[1]) for row in answer.resources)
        return {entry[0]: entry[1] for row in answer.resources for entry in row[4]}

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None:
        records = {TopicPartition(topic, partition): RecordsToDelete(before_offset)}
        self._administer(lambda admin: admin.delete_records(records))

    def node_ids(self) -> set[int]:
        cluster = self._administer(lambda admin: admin.describe_cluster())
        return {broker["node_id"] for broker in cluster["brokers"]}
