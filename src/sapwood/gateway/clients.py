"""`/producers` and `/consumers`: clients that the cluster knows by name, for good."""

from __future__ import annotations

import secrets
from typing import Literal

from sapwood.client.own import (
    CONSUMER,
    PRODUCER,
    KnownClient,
    register_client,
    remove_client,
)
from sapwood.client.subscriber import Subscriber
from sapwood.gateway.cluster import Cluster, find
from sapwood.gateway.problems import Refused
from sapwood.gateway.words import Answer, Body, ClientName, PartitionNumber, Query, TopicName

ALL_PARTITIONS = -1


class ProducerAnswer(Answer):
    producer: str
    topic: str
    partition: int | None
    """Where its messages go; null: to each partition in turn."""


class ProducersAnswer(Answer):
    producers: list[ProducerAnswer]


class NewProducerBody(Body):
    topic: TopicName
    producer: ClientName | None = None
    """Its name; one is made up if it is left out."""
    partition: PartitionNumber | None = None


class ProducerQuery(Query):
    producer: ClientName
    topic: TopicName


class ConsumerAnswer(Answer):
    consumer: str
    topic: str
    partition: int | None
    """Where its messages come from; null: from every partition."""


class ConsumersAnswer(Answer):
    consumers: list[ConsumerAnswer]


class NewConsumerBody(Body):
    topic: TopicName
    consumer: ClientName | None = None
    """Its name; one is made up if it is left out."""
    partition: PartitionNumber | None = None
    start: Literal["earliest", "now"] = "earliest"
    """Where a consumer that is new begins."""


class ConsumerQuery(Query):
    consumer: ClientName
    topic: TopicName


async def list_producers(cluster: Cluster) -> ProducersAnswer:
    found = sorted((await cluster.known_clients()).producers)
    return ProducersAnswer(producers=[_producer(each) for each in found])


async def register_producer(cluster: Cluster, body: NewProducerBody) -> ProducerAnswer:
    client = _client(body.producer, body.topic, body.partition)
    before = find((await cluster.known_clients()).producers, client.name, client.topic)
    _check_same(before, client)
    await _register(cluster, PRODUCER, client)
    return _producer(client)


async def remove_producer(cluster: Cluster, query: ProducerQuery) -> None:
    known = find((await cluster.known_clients()).producers, query.producer, query.topic)
    await _remove(cluster, PRODUCER, known, query.producer, query.topic)


async def list_consumers(cluster: Cluster) -> ConsumersAnswer:
    found = sorted((await cluster.known_clients()).consumers)
    return ConsumersAnswer(consumers=[_consumer(each) for each in found])


async def register_consumer(cluster: Cluster, body: NewConsumerBody) -> ConsumerAnswer:
    client = _client(body.consumer, body.topic, body.partition)
    before = find((await cluster.known_clients()).consumers, client.name, client.topic)
    _check_same(before, client)
    await _register(cluster, CONSUMER, client)
    await cluster.run(subscriber(cluster, client.topic, client.name).subscribe(body.start))
    return _consumer(client)


async def remove_consumer(cluster: Cluster, query: ConsumerQuery) -> None:
    """And what it has yet to get is held for it no longer."""
    known = find((await cluster.known_clients()).consumers, query.consumer, query.topic)
    if known is not None:
        await cluster.run(subscriber(cluster, query.topic, query.consumer).unsubscribe())
    await _remove(cluster, CONSUMER, known, query.consumer, query.topic)


def subscriber(cluster: Cluster, topic: str, consumer: str) -> Subscriber:
    """A consumer's place in a topic is a durable subscription, as `put` and `get` have them."""
    return Subscriber(
        cluster.reader.core, cluster.reader.now_ms, lambda: secrets.token_hex(16), topic, consumer
    )


def _client(name: str | None, topic: str, partition: int | None) -> KnownClient:
    number = ALL_PARTITIONS if partition is None else partition
    return KnownClient(name or secrets.token_hex(8), topic, number)


def _check_same(before: KnownClient | None, client: KnownClient) -> None:
    if before is not None and before != client:
        raise Refused(
            409,
            f"{client.name} is registered for {client.topic} with "
            f"{'all partitions' if before.partition < 0 else f'partition {before.partition}'}: "
            "remove it first, or choose another name",
        )


async def _register(cluster: Cluster, kind: int, client: KnownClient) -> None:
    await cluster.run(register_client(cluster.reader.core, cluster.reader.now_ms, kind, client))


async def _remove(
    cluster: Cluster, kind: int, known: KnownClient | None, name: str, topic: str
) -> None:
    if known is None:
        raise Refused(404, f"{name} is not registered for {topic}")
    await cluster.run(remove_client(cluster.reader.core, cluster.reader.now_ms, kind, known))


def _producer(client: KnownClient) -> ProducerAnswer:
    return ProducerAnswer(
        producer=client.name, topic=client.topic, partition=_partition(client.partition)
    )


def _consumer(client: KnownClient) -> ConsumerAnswer:
    return ConsumerAnswer(
        consumer=client.name, topic=client.topic, partition=_partition(client.partition)
    )


def _partition(number: int) -> int | None:
    return None if number < 0 else number
