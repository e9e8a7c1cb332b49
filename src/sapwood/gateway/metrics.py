"""`/metrics` for Prometheus: the node's own counts, topics as Kafka's exporters name them, and what
this gateway did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.responses import Response

from sapwood.client import KafkaError
from sapwood.client.cluster import Metadata, TopicPartition
from sapwood.gateway.cluster import Cluster, Ends

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)

registry = CollectorRegistry()
answered = Counter(
    "sapwood_gateway_requests", "Answers given.", ["method", "path", "status"], registry=registry
)
seconds = Histogram(
    "sapwood_gateway_request_seconds",
    "How long answers took.",
    ["path"],
    registry=registry,
    buckets=BUCKETS_S,
)
under_way = Gauge("sapwood_gateway_requests_under_way", "Not answered yet.", registry=registry)


class Value(NamedTuple):
    name: str
    value: float


class _Once:
    """What was collected for one answer, in the form in which the library wants it."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def metrics(cluster: Cluster) -> Response:
    """Of the node beside this gateway, or of any; one that doesn't answer is said to be down."""
    up = GaugeMetricFamily("sapwood_up", "Whether the node answers.")
    families: list[Metric] = [up]
    with contextlib.suppress(KafkaError):  # first: an edge that is cut off knows nothing else
        families += await _of_outbox(cluster)
    try:
        families += _of_node((await cluster.status(cluster.node_id)).metrics)
    except KafkaError:
        up.add_metric([], 0)
    else:
        up.add_metric([], 1)
        with contextlib.suppress(KafkaError):  # a partition lost its leader just now
            families += await _of_topics(cluster)
    told = CollectorRegistry()
    told.register(_Once(families))
    return Response(generate_latest(told) + generate_latest(registry), media_type=MEDIA_TYPE)


def _of_node(metrics: Iterable[object]) -> Iterable[Metric]:
    for each in metrics:
        name, value = each.name, each.value  # type: ignore[attr-defined]
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        yield kind(name, "As the node counts it.", value=value)


async def _of_outbox(cluster: Cluster) -> Iterable[Metric]:
    found = await cluster.outbox()
    if found is None:
        return []
    values = {
        "sapwood_edge_cut_off": float(found.is_cut_off),
        "sapwood_edge_outbox_records": float(sum(it.records for it in found.partitions)),
        "sapwood_edge_outbox_bytes": float(found.size_bytes),
        "sapwood_edge_outbox_limit_bytes": float(found.limit_bytes),
        "sapwood_edge_outbox_delivered_total": float(found.delivered_total),
        "sapwood_edge_outbox_refused_total": float(found.refused_total),
        "sapwood_edge_outbox_aside_total": float(found.aside_total),
    }
    return _of_node(Value(name, value) for name, value in values.items())


async def _of_topics(cluster: Cluster) -> Iterable[Metric]:
    async with cluster.at_the_core() as kafka:
        metadata = await kafka.metadata()
    led = [
        (topic.name, each) for topic in metadata.topics.values() for each in topic.led_partitions
    ]
    return _topic_families(metadata, await cluster.ends(led))


def _topic_families(metadata: Metadata, ends: dict[TopicPartition, Ends]) -> Iterable[Metric]:
    yield GaugeMetricFamily("kafka_brokers", "Brokers.", value=len(metadata.brokers))
    partitions = GaugeMetricFamily("kafka_topic_partitions", "Partitions.", labels=["topic"])
    by_name = {
        name: GaugeMetricFamily(
            f"kafka_topic_partition_{name}", what, labels=["topic", "partition"]
        )
        for name, what in (
            ("leader", "The leader's id; -1: none."),
            ("replicas", "Replicas."),
            ("in_sync_replica", "Replicas in sync."),
            ("under_replicated_partition", "1 if a replica is not in sync."),
            ("oldest_offset", "The first offset."),
            ("current_offset", "The offset behind the last committed one."),
        )
    }
    for topic in metadata.topics.values():
        partitions.add_metric([topic.name], len(topic.partitions))
        for each in topic.partitions.values():
            labels = [topic.name, str(each.partition)]
            lacks = len(each.in_sync) < len(each.replicas)
            values = {
                "leader": each.leader,
                "replicas": len(each.replicas),
                "in_sync_replica": len(each.in_sync),
                "under_replicated_partition": int(lacks),
            }
            if (end := ends.get((topic.name, each.partition))) is not None:
                values |= {"oldest_offset": end.start, "current_offset": end.end}
            for name, value in values.items():
                by_name[name].add_metric(labels, value)
    yield partitions
    yield from by_name.values()
