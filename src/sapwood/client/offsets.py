"""Looking offsets up by time, at each partition's leader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from sapwood.client.cluster import TopicPartition
from sapwood.client.config import ClientConfig
from sapwood.client.effects import Ticket
from sapwood.client.scatter import Scatter, Scatterer, Verdict
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3

V = TypeVar("V")


class FoundOffset(NamedTuple):
    offset: int  # −1: no record is that young
    timestamp: int
    leader_epoch: int


def list_offsets(
    config: ClientConfig,
    scatterer: Scatterer,
    wanted: Mapping[TopicPartition, int],
    now_ms: float,
) -> Ticket[dict[TopicPartition, FoundOffset]]:
    """The first offset at or after each timestamp, which may be LATEST, EARLIEST or so."""

    def build(items: dict[TopicPartition, int]) -> Struct:
        topics: dict[str, list[Struct]] = {}
        for (topic, partition), timestamp in items.items():
            topics.setdefault(topic, []).append(
                Struct(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
            )
        return Struct(
            replica_id=-1,
            isolation_level=config.isolation_level,
            topics=[Struct(name=name, partitions=each) for name, each in topics.items()],
            timeout=config.request_timeout_ms,
        )

    def read(answer: Struct) -> Iterator[Verdict[FoundOffset]]:
        for topic in answer.topics:
            for partition in topic.partitions:
                epoch = getattr(partition, "leader_epoch", -1)
                found = FoundOffset(partition.offset, partition.timestamp, epoch)
                yield Verdict(topic.name, partition.partition_index, partition.error_code, found)

    ticket: Ticket[dict[TopicPartition, FoundOffset]] = Ticket()
    deadline_ms = now_ms + config.api_timeout_ms
    scatterer.submit(
        Scatter(Api.LIST_OFFSETS, dict(wanted), build, read, ticket, now_ms, deadline_ms)
    )
    return ticket


def delete_records(
    config: ClientConfig,
    scatterer: Scatterer,
    before: Mapping[TopicPartition, int],
    now_ms: float,
) -> Ticket[dict[TopicPartition, int]]:
    """Drop what lies before each offset (−1: everything); the partitions' new first offsets."""

    def build(items: dict[TopicPartition, int]) -> Struct:
        topics: dict[str, list[Struct]] = {}
        for (topic, partition), offset in items.items():
            topics.setdefault(topic, []).append(Struct(partition_index=partition, offset=offset))
        return Struct(
            topics=[Struct(name=name, partitions=each) for name, each in topics.items()],
            timeout=config.request_timeout_ms,
        )

    def read(answer: Struct) -> Iterator[Verdict[int]]:
        for topic in answer.topics:
            for partition in topic.partitions:
                yield Verdict(
                    topic.name,
                    partition.partition_index,
                    partition.error_code,
                    partition.low_watermark,
                )

    ticket: Ticket[dict[TopicPartition, int]] = Ticket()
    deadline_ms = now_ms + config.api_timeout_ms
    scatterer.submit(
        Scatter(Api.DELETE_RECORDS, dict(before), build, read, ticket, now_ms, deadline_ms)
    )
    return ticket
