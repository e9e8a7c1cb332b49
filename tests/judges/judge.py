"""What every independent Kafka client is asked to do, in one vocabulary."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Message:
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Received(NamedTuple):
    offset: int
    timestamp_ms: int
    is_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Headers


def received_from(record: Any) -> Received:
    """From a ConsumerRecord, which aiokafka and kafka-python share."""
    return Received(
        offset=record.offset,
        timestamp_ms=record.timestamp,
        is_append_time=record.timestamp_type == 1,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )


@dataclass
class RefusedError(Exception):
    """The broker answered with a Kafka error code."""

    code: int
    message: str = ""


@dataclass
class TopicDescription:
    leaders: dict[int, int] = field(default_factory=dict)  # partition → node id


@runtime_checkable
class Judge(Protocol):
    """A Kafka client that has never heard of Sapwood."""

    name: str
    sets_timestamps: bool

    def __init__(self, bootstrap: str) -> None: ...

    def produce(
        self,
        topic: str,
        messages: list[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None: ...

    def consume(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Received]: ...

    def offset_for_timestamp(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        """The first offset at or after that time; -1 if there is none."""

    def describe_topics(self) -> dict[str, TopicDescription]: ...


class Admin(Protocol):
    """A Kafka client that also administers."""

    name: str

    def __init__(self, bootstrap: str) -> None: ...

    def create_topic(
        self, topic: str, partitions: int = 1, config: dict[str, str] | None = None
    ) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def create_partitions(self, topic: str, total: int) -> None: ...

    def alter_config(self, topic: str, key: str, value: str) -> None: ...

    def config(self, topic: str) -> dict[str, str | None]: ...

    def broker_config(self, node_id: int) -> dict[str, str | None]: ...

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None: ...

    def node_ids(self) -> set[int]: ...


AN_HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000  # recent enough for any retention


def sample(count: int, start_ms: int = AN_HOUR_AGO_MS) -> list[Message]:
    """Messages with keys, headers and timestamps a second apart, compressible but all different."""
    return [
        Message(
            value=f"value {number} ".encode() * (number % 7 + 1),
            key=f"key {number % 5}".encode(),
            headers=(("trace", b"on"), ("shard", b"7")),
            timestamp_ms=start_ms + 1000 * number,
        )
        for number in range(count)
    ]


def same(sent: list[Message], received: list[Received], *, timestamps: bool = True) -> bool:
    """Whether all of `sent`, nothing else, arrived in its order from offset 0 on."""
    expected = [
        Received(n, it.timestamp_ms or 0, False, it.key, it.value, it.headers)
        for n, it in enumerate(sent)
    ]
    if not timestamps:
        expected = [it._replace(timestamp_ms=0) for it in expected]
        received = [it._replace(timestamp_ms=0) for it in received]
    return expected == received
