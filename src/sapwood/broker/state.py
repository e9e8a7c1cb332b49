"""What every handler sees: this node's config, the metadata, the partitions, the other nodes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

from sapwood.broker.coordinating import Coordinators
from sapwood.broker.ordering import Ordering
from sapwood.broker.producer_ids import ProducerIds
from sapwood.broker.store import MetadataStore
from sapwood.broker.verifying import Verifying
from sapwood.coordinator.transactions import Counters
from sapwood.metadata import configs
from sapwood.metadata.controller import INTERNAL_TOPICS, check_partition, find_topic
from sapwood.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image, Node, Topic
from sapwood.replica import (
    Leadership,
    LogConfig,
    NoPeers,
    Partition,
    Peers,
    Plan,
    Replicas,
    Rules,
    Settings,
    Timing,
    Voter,
)
from sapwood.wire.compression import Compression

if TYPE_CHECKING:
    from sapwood.broker.attaching import Attaching
    from sapwood.broker.supervising import Supervising

LONG_MAX = 2**63 - 1


@dataclass(slots=True, frozen=True)
class BrokerConfig:
    node_id: int = 0
    incarnation: int = 0
    """Of this node's data directory: another one is another voter."""
    cluster_id: str | None = None
    """Of the cluster that this node is in; None founds one with an id that is drawn."""
    metadata_voters: tuple[Voter, ...] = (Voter(0, 0),)
    """Who voted on the metadata log when it was founded."""
    rack: str | None = None
    members: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Where other nodes may be found as long as the metadata doesn't say."""
    routes: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Other ways to other nodes than the metadata says."""
    timing: Timing = field(default_factory=Timing)
    heartbeat_s: float = 0.15
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
    coordinators: Coordinators
    peers: Peers | NoPeers
    entropy: Callable[[int], bytes]
    data_dir: str
    now_ms: Callable[[], int]
    server_metrics: Callable[[], dict[str, float]]
    fetch_waiters: set[FetchWaiter] = field(default_factory=set)
    searching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever looks for a record by its time, so that one turn of the loop sees one."""
    verifying: Verifying = field(default_factory=Verifying)
    ordering: Ordering = field(default_factory=Ordering)
    markers_over: dict[int, float] = field(default_factory=dict)
    """By node: when the newest connection was opened over which it has sent markers."""
    transaction_counters: Counters = field(default_factory=Counters)
    attaching: "Attaching" = field(init=False)
    supervising: "Supervising" = field(init=False)

    @property
    def image(self) -> Image:
        return self.store.image

    def partition(self, topic: str | None, topic_id: bytes, index: int) -> Partition:
        """By name if there is one, else by id; raises what the client is to be told.

        Only what the image lists can be reached: the metadata's own log is a partition, too.
        """
        found = find_topic(self.image, topic, topic_id)
        check_partition(found, index)
        return self.replicas.get(found.topic_id, index)

    def loop_now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def silence_s(self) -> float:
        return self.config.timing.silence_s

    def is_alive(self, node_id: int) -> bool:
        """As far as the cluster has noticed."""
        node = self.image.nodes.get(node_id)
        return node_id == self.config.node_id or (node is not None and node.alive)

    def leadership(self, topic: Topic, index: int) -> Leadership | None:
        return self.replicas.exchange.leaders.get((topic.topic_id, index))

    def voters(self, topic: Topic, index: int) -> list[int]:
        """The nodes that hold a partition now, which may not be those that should."""
        known = self.leadership(topic, index)
        if known is None:
            return topic.partitions[index]
        # In the order of the target, so that the preferred leader comes first.
        nodes = [voter.node for voter in known.voters]
        target = topic.partitions[index]
        if nodes == target:
            return target
        return [it for it in target if it in nodes] + [it for it in nodes if it not in target]

    def each_partition(self) -> Iterator[tuple[Topic, int]]:
        for topic in self.image.topics.values():
            for index in range(len(topic.partitions)):
                yield topic, index

    def moving(self) -> set[tuple[bytes, int]]:
        """The partitions that are not yet, or no longer, only where they should be."""
        return {
            (topic.topic_id, index)
            for topic, index in self.each_partition()
            if (known := self.leadership(topic, index)) is not None
            and {voter.node for voter in known.voters} != set(topic.partitions[index])
        }

    def votes_of(self, node_id: int) -> int:
        """How many partitions have the node among their voters."""
        return sum(
            node_id in {voter.node for voter in known.voters}
            for topic, index in self.each_partition()
            if (known := self.leadership(topic, index)) is not None
        )

    def plan(self, topic: Topic, index: int, settings: Settings) -> Plan:
        voters = tuple(Voter(*voter) for voter in topic.voters[index])
        target = tuple(topic.partitions[index])
        return Plan(topic.name, topic.topic_id, index, settings, voters, target)

    def broker_overrides(self, node_id: int) -> configs.BrokerOverrides:
        static = {**self.config.overrides, **self._identity()}
        return configs.BrokerOverrides(
            node=self.image.overrides(BROKER_RESOURCE, str(node_id)),
            all_nodes=self.image.overrides(BROKER_RESOURCE, ""),
            static=static,
        )

    def broker_config(self, name: str) -> str:
        """The value of a broker config at this node."""
        return configs.broker_config(name, self.broker_overrides(self.config.node_id)).value

    def partition_count(self, topic: str) -> int:
        """Of a topic that is made without one; -1 leaves it to the controller."""
        config = INTERNAL_TOPICS.get(topic)
        return self.config.num_partitions if config is None else int(self.broker_config(config))

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
                retention_acked=value("retention") == "acked",
                hold_bytes=int(value("subscription.hold.bytes")),
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
        edges = self.image.edges
        confirmed = sum(it.confirmed for it in edges.known.values())
        return {
            "kafka_server_replicamanager_leadercount": float(sum(p.leads for p in partitions)),
            "kafka_server_replicamanager_partitioncount": float(len(partitions)),
            "kafka_server_replicamanager_offlinereplicacount": float(len(offline)),
            "kafka_log_log_size": float(sum(p.log.size_bytes for p in partitions)),
            "kafka_controller_kafkacontroller_activecontrollercount": float(
                self.store.is_controller
            ),
            "sapwood_partitions_offline_total": float(self.replicas.offline_total),
            "sapwood_replicas_mended_total": float(self.replicas.mended_total),
            "sapwood_fetch_waiters": float(len(self.fetch_waiters)),
            "sapwood_tree_edges": float(confirmed),
            "sapwood_tree_edges_pending": float(len(edges.known) - confirmed),
            "sapwood_tree_children": float(len(edges.children(self.config.node_id))),
            **{
                f"sapwood_transactions_{name}": float(value)
                for name, value in asdict(self.transaction_counters).items()
            },
            **self.coordinators.metrics(),
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
