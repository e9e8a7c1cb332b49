"""What the client knows of the cluster, learnt from Metadata answers, newest leader epoch first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sapwood.client.config import ClientConfig
from sapwood.client.errors import error_for
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

TopicPartition = tuple[str, int]

_NEVER = float("inf")
_NO_ID = bytes(16)


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class Partition(NamedTuple):
    partition: int
    leader: int  # −1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


class Topic(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    error_code: int
    partitions: dict[int, Partition]

    @property
    def led_partitions(self) -> list[int]:
        return [number for number, partition in self.partitions.items() if partition.leader >= 0]


class Metadata(NamedTuple):
    """One Metadata answer, as handed to callers."""

    cluster_id: str | None
    controller: int
    brokers: dict[int, Broker]
    topics: dict[str, Topic]


def metadata_request(topics: Iterable[str] | None, allow_auto_create: bool) -> Struct:
    return Struct(
        topics=None if topics is None else [Struct(name=each, topic_id=_NO_ID) for each in topics],
        allow_auto_topic_creation=allow_auto_create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def read_metadata(answer: Struct) -> Metadata:
    brokers = {
        broker.node_id: Broker(
            broker.node_id, broker.host, broker.port, getattr(broker, "rack", None)
        )
        for broker in answer.brokers
    }
    topics = {}
    for topic in answer.topics:
        partitions = {
            partition.partition_index: Partition(
                partition.partition_index,
                partition.leader_id,
                getattr(partition, "leader_epoch", -1),
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(getattr(partition, "offline_replicas", ())),
            )
            for partition in sorted(topic.partitions, key=lambda each: each.partition_index)
        }
        topics[topic.name] = Topic(
            topic.name,
            getattr(topic, "topic_id", bytes(16)),
            getattr(topic, "is_internal", False),
            topic.error_code,
            partitions,
        )
    return Metadata(
        getattr(answer, "cluster_id", None), getattr(answer, "controller_id", -1), brokers, topics
    )


class ClusterView:
    """Brokers, the wanted topics and their leaders; and when to look again.

    `moment` counts the answers taken in: whoever failed under moment n waits for a later one.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.brokers: dict[int, Broker] = {}
        self.controller = -1
        self.cluster_id: str | None = None
        self.topics: dict[str, Topic] = {}
        self.moment = 0
        self._wanted: dict[str, int] = {}  # and the highest partition that somebody asked for
        self._looked_for: set[str] = set()  # of these: an answer has said something, or nothing
        self._stale = False
        self._refreshed_ms = 0.0
        self._fruitless = 0

    def want(self, topic: str, partition: int = -1) -> None:
        """Keep the topic in view; if `partition` isn't there (yet), keep looking for it."""
        if self._wanted.get(topic, -2) < partition:
            self._wanted[topic] = partition
            self._stale = self._stale or not self._is_complete(topic)

    def forget(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self._looked_for.discard(topic)
        self.topics.pop(topic, None)

    @property
    def wanted(self) -> list[str]:
        return list(self._wanted)

    def invalidate(self) -> None:
        self._stale = True

    def refresh_at_ms(self) -> float:
        if not self._stale:
            return self._refreshed_ms + self._config.metadata_max_age_ms if self._wanted else _NEVER
        # Fruitless looks are spaced out; the first look after good news is immediate.
        if not self._fruitless:
            return -_NEVER
        return self._refreshed_ms + self._config.pause_ms(self._fruitless - 1)

    def failed(self, now_ms: float) -> None:
        self._fruitless += 1
        self._refreshed_ms = now_ms

    def apply(self, metadata: Metadata, now_ms: float, asked: Sequence[str] | None) -> None:
        """`asked`: what the request named; None if it asked for all topics."""
        if not metadata.brokers:
            self.failed(now_ms)  # a broker that is just starting knows nobody, not even itself
            return
        self.moment += 1
        self.brokers = metadata.brokers
        self.controller = metadata.controller
        self.cluster_id = metadata.cluster_id or self.cluster_id
        asked = self.wanted if asked is None else asked
        for name in asked:
            if name not in self._wanted:
                continue
            self._looked_for.add(name)
            topic = metadata.topics.get(name)
            if topic is None:
                self.topics.pop(name, None)
            else:
                self.topics[name] = self._newest(self.topics.get(name), topic)
        self._refreshed_ms = now_ms
        # During an election partitions have no leader for a while: look again, ever slower.
        is_complete = all(self._is_complete(name) for name in self._wanted)
        self._fruitless = 0 if is_complete else self._fruitless + 1
        if not is_complete:
            self._stale = True
        elif self._wanted.keys() <= set(asked):
            self._stale = False

    def leader(self, topic: str, partition: int) -> Partition | None:
        known = self.topics.get(topic)
        found = known.partitions.get(partition) if known else None
        return found if found is not None and found.leader in self.brokers else None

    def trouble(self, topic: str, partition: int | None = None) -> KafkaError | None:
        """Why the topic (or the partition) can't be used now, if it is known not to be."""
        known = self.topics.get(topic)
        if known is None:
            return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        if known.error_code:
            return error_for(known.error_code, f"topic {topic}")
        if not known.partitions:
            return error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic}")
        if partition is not None and partition not in known.partitions:
            return KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic} has no partition {partition}: its partitions are "
                f"0 to {max(known.partitions)}",
            )
        return None

    def hopeless(
        self, topic: str, partition: int | None, since_ms: float, now_ms: float
    ) -> KafkaError | None:
        """The trouble, once waiting won't mend it or has been tried for long enough."""
        is_told = self.moment if topic not in self._wanted else topic in self._looked_for
        trouble = self.trouble(topic, partition) if is_told else None
        if trouble is None:
            return None
        if trouble.code.retriable and now_ms - since_ms < self._config.topic_wait_ms:
            return None
        self.forget(topic)  # or we would look for it for ever; whoever still wants it says so
        return trouble

    def _is_complete(self, name: str) -> bool:
        topic = self.topics.get(name)
        if topic is None:
            return False
        if topic.error_code and not error_for(topic.error_code, name).code.retriable:
            return True  # asking again won't help
        has_all = len(topic.partitions) > max(0, self._wanted[name])
        return has_all and all(
            partition.leader in self.brokers for partition in topic.partitions.values()
        )

    def _newest(self, old: Topic | None, new: Topic) -> Topic:
        """A broker that lags behind must not send us back to a deposed leader."""
        if old is None or old.topic_id != new.topic_id or new.error_code:
            return new
        partitions = dict(new.partitions)
        for number, partition in old.partitions.items():
            fresh = partitions.get(number)
            if fresh is not None and 0 <= fresh.leader_epoch < partition.leader_epoch:
                partitions[number] = partition
        return new._replace(partitions=partitions)
