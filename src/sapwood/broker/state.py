"""What every handler sees: this node's config, the metadata, the partitions."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sapwood.broker.store import MetadataStore, ProducerIds
from sapwood.metadata import configs
from sapwood.metadata.controller import find_topic
from sapwood.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image, Node
from sapwood.replica import LogConfig, Partition, Replicas, Rules, Settings
from sapwood.wire.compression import Compression

LONG_MAX = 2**63 - 1


@dataclass(slots=True, frozen=True)
class BrokerConfig:
    node_id: int = 0
    advertised: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Listener name → the address that its clients are told."""
    auto_create_topics: bool = True
    num_partitions: int = -1
    overrides: dict[str, str] = field(default_factory=dict)
    """Kafka's broker configs, as the operator set them in the node's file or flags."""
    max_fetch_waiters: int = 10_000
    max_fetch_bytes: int = 8 << 20
    """Of one response. Clients ask for up to 50 MiB at once; giving less bounds memory."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class FetchWaiter(Protocol):
    """A fetch that waits for more to be committed."""

    def answer(self) -> None:
        """Answer with what there is."""


@dataclass(slots=True)
class BrokerState:
    config: BrokerConfig
    replicas: Replicas
    store: MetadataStore
    producer_ids: ProducerIds
    data_dir: str
    now_ms: Callable[[], int]
    server_metrics: Callable[[], dict[str, float]]
    fetch_waiters: set[FetchWaiter] = field(default_factory=set)

    @property
    def image(self) -> Image:
        return self.store.image

    def partition(self, topic: str | None, topic_id: bytes, index: int) -> Partition:
        """By name if there is one, else by id; raises what the client is to be told.

        Only what the image lists can be reached: the metadata's own log is a partition, too.
        """
        found = find_topic(self.image, topic, topic_id)
        return self.replicas.get(found.topic_id, index)

    def broker_overrides(self, node_id: int) -> configs.BrokerOverrides:
        static = {**self.config.overrides, **self._identity()}
        return configs.BrokerOverrides(
            node=self.image.overrides(BROKER_RESOURCE, str(node_id)),
            all_nodes=self.image.overrides(BROKER_RESOURCE, ""),
            static=static,
        )

    def topic_config(self, name: str, overrides: dict[str, str]) -> configs.Effective:
        return configs.topic_config(name, overrides, self.broker_overrides(self.config.node_id))

    def settings(self, topic: str) -> Settings:
        """A topic's configs, parsed; they were checked when they were set."""
        overrides = self.image.overrides(TOPIC_RESOURCE, topic)
        brokers = self.broker_overrides(self.config.node_id)

        def value(name: str) -> str:
            return configs.topic_config(name, overrides, brokers).value

        policies = frozenset(item.strip() for item in value("cleanup.policy").split(","))
        stored = value("compression.type")
        return Settings(
            LogConfig(
                segment_bytes=int(value("segment.bytes")),
                segment_ms=int(value("segment.ms")),
                retention_bytes=int(value("retention.bytes")),
                retention_ms=int(value("retention.ms")),
                cleanup_policy=policies,
                delete_retention_ms=int(value("delete.retention.ms")),
                min_compaction_lag_ms=int(value("min.compaction.lag.ms")),
                max_compaction_lag_ms=int(value("max.compaction.lag.ms")),
                min_cleanable_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
                index_interval_bytes=int(value("index.interval.bytes")),
                preallocate=value("preallocate").lower() == "true",
                flush=value("flush"),
            ),
            Rules(
                max_message_bytes=int(value("max.message.bytes")),
                append_time=value("message.timestamp.type") == "LogAppendTime",
                timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
                timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
                compression=_STORED_COMPRESSION[stored],
                compacted="compact" in policies,
                min_insync_replicas=int(value("min.insync.replicas")),
            ),
        )

    def metrics(self) -> dict[str, float]:
        """What this node counts, by the names that Kafka's exporters use where they have one."""
        partitions = list(self.replicas)
        offline = self.replicas.offline()
        return {
            "kafka_server_replicamanager_leadercount": float(len(partitions)),
            "kafka_server_replicamanager_partitioncount": float(len(partitions)),
            "kafka_server_replicamanager_offlinereplicacount": float(len(offline)),
            "kafka_log_log_size": float(sum(p.log.size_bytes for p in partitions)),
            "sapwood_partitions_offline_total": float(self.replicas.offline_total),
            "sapwood_fetch_waiters": float(len(self.fetch_waiters)),
            **self.server_metrics(),
        }

    def address(self, node: Node, listener: str) -> tuple[str, int]:
        """Where a client that came in through `listener` finds the node."""
        if listener in node.listeners:
            return node.listeners[listener]
        return next(iter(node.listeners.values()))

    def _identity(self) -> dict[str, str]:
        return {
            "advertised.listeners": ",".join(
                f"{name}://{host}:{port}" for name, (host, port) in self.config.advertised.items()
            ),
            "auto.create.topics.enable": str(self.config.auto_create_topics).lower(),
            "broker.id": str(self.config.node_id),
            "log.dirs": self.data_dir,
            "node.id": str(self.config.node_id),
            "num.partitions": str(self.config.num_partitions),
        }


_STORED_COMPRESSION = {
    "producer": None,
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
