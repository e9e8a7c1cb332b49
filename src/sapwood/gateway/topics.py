"""`/topics`, `/partitions` and `/size`: what there is, and making more of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sapwood.client.admin import NewTopic
from sapwood.client.cluster import Metadata
from sapwood.gateway.cluster import Cluster
from sapwood.gateway.words import Answer, Body, Count, PartitionNumber, Query, TopicName

PartitionCount = Annotated[int, Meta(ge=1, le=1_000)]


class TopicAnswer(Answer):
    topic: str
    topic_id: str
    internal: bool
    partitions: int


class TopicsAnswer(Answer):
    topics: list[TopicAnswer]


class TopicsQuery(Query):
    topic: TopicName | None = None
    """This one only."""


class NewTopicBody(Body):
    topic: TopicName
    partitions: PartitionCount | None = None
    """By default one on every core broker."""
    replication_factor: Annotated[int, Meta(ge=1, le=100)] | None = None
    configs: dict[str, str] = {}


class TopicQuery(Query):
    topic: TopicName


class PartitionAnswer(Answer):
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


class PartitionsAnswer(Answer):
    partitions: list[PartitionAnswer]


class PartitionsQuery(Query):
    topic: TopicName | None = None
    partition: PartitionNumber | None = None
    """With `topic`: this one, and so its brokers."""
    broker: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Those that this broker has a replica of."""


class MorePartitionsBody(Body):
    topic: TopicName
    partitions: PartitionCount
    """How many there shall be."""


class SizeQuery(Query):
    topic: TopicName
    partition: PartitionNumber | None = None


class PartitionSize(Answer):
    partition: int
    start: Count
    end: Count
    size: Count


class SizeAnswer(Answer):
    """Offsets from the beginning to the end; those of transactions' markers are counted, too."""

    topic: str
    size: Count
    partitions: list[PartitionSize]


async def list_topics(cluster: Cluster, query: TopicsQuery) -> TopicsAnswer:
    if query.topic is not None:
        return TopicsAnswer(topics=[await _topic(cluster, query.topic)])
    return TopicsAnswer(topics=_shown(await cluster.metadata()))


async def create_topic(cluster: Cluster, body: NewTopicBody) -> TopicAnswer:
    topic = NewTopic(body.topic, body.partitions or -1, body.replication_factor or -1, body.configs)
    await cluster.reader.create_topics([topic])
    return await _topic(cluster, body.topic)


async def delete_topic(cluster: Cluster, query: TopicQuery) -> None:
    await cluster.reader.delete_topics([query.topic])


async def list_partitions(cluster: Cluster, query: PartitionsQuery) -> PartitionsAnswer:
    if query.topic is not None:  # an error if it isn't there
        await cluster.partitions(query.topic, query.partition)
    names = None if query.topic is None else [query.topic]
    async with cluster.at_the_core() as kafka:
        metadata = await kafka.metadata(names)
    found = [
        PartitionAnswer(
            topic=topic.name,
            partition=each.partition,
            leader=None if each.leader < 0 else each.leader,
            leader_epoch=each.leader_epoch,
            replicas=list(each.replicas),
            in_sync=list(each.in_sync),
        )
        for topic in metadata.topics.values()
        for each in topic.partitions.values()
        if query.partition in (None, each.partition)
        and (query.broker is None or query.broker in each.replicas)
    ]
    return PartitionsAnswer(partitions=found)


async def add_partitions(cluster: Cluster, body: MorePartitionsBody) -> TopicAnswer:
    await cluster.reader.create_partitions({body.topic: body.partitions})
    return await _topic(cluster, body.topic)


async def size(cluster: Cluster, query: SizeQuery) -> SizeAnswer:
    keys = await cluster.partitions(query.topic, query.partition)
    sizes = [
        PartitionSize(partition=key[1], start=it.start, end=it.end, size=it.end - it.start)
        for key, it in (await cluster.ends(keys)).items()
    ]
    return SizeAnswer(topic=query.topic, size=sum(each.size for each in sizes), partitions=sizes)


async def _topic(cluster: Cluster, name: str) -> TopicAnswer:
    await cluster.topic(name)
    (found,) = _shown(await cluster.metadata([name]))
    return found


def _shown(metadata: Metadata) -> list[TopicAnswer]:
    return [
        TopicAnswer(
            topic=each.name,
            topic_id=each.topic_id.hex(),
            internal=each.is_internal,
            partitions=len(each.partitions),
        )
        for each in sorted(metadata.topics.values())
    ]
