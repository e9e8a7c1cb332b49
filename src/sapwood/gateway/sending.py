"""Sending through an edge that may have an outbox."""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.client import AsyncKafkaClient, ErrorCode, KafkaError
from sapwood.client.batches import MessageKey, RecordMetadata
from sapwood.client.messages import message_key
from sapwood.client.own import offers_outbox
from sapwood.client.procedures import wait_for

OWN = "__sapwood_"
"""So begin the names of topics to which only the cluster's own parts write."""


def check_is_for_clients(topic: str) -> None:
    if topic.startswith(OWN):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic} is for what the cluster tells of itself: clients may read it",
        )


class Sender:
    """Of a client that does nothing else: a node answers in order, and what can't be answered by an
    edge that is cut off must not keep it from saying that it has queued something."""

    def __init__(self, kafka: AsyncKafkaClient) -> None:
        self.kafka = kafka
        self._has_outbox = False

    async def send(
        self,
        topic: str,
        message_id: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int | None = None,
        *,
        known_id: MessageKey | None,
    ) -> tuple[RecordMetadata, bool]:
        """Where it is stored, and whether that is an edge's outbox and nowhere else yet.

        What may be queued goes by its id, so that it is recognised whichever way it comes, even if
        the first try got lost on its way. `known_id` is for what has to be recognised anyhow.
        """
        kafka = self.kafka
        if kafka.core.usable_topic(topic, partition) is None:
            await kafka.run(wait_for(kafka.core.await_topic(topic, partition, kafka.now_ms())))
        self._has_outbox = self._has_outbox or offers_outbox(kafka.core)
        if self._has_outbox and known_id is None:
            known_id = message_key(topic, message_id)
        delivery = await kafka.send(
            topic,
            value,
            key,
            headers,
            partition,
            message_key=known_id,
            may_queue=self._has_outbox,
        )
        stored = await delivery
        return stored, self._has_outbox and stored.offset < 0
