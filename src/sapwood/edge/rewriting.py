"""Answers that name nodes, rewritten: clients of an edge know it and its siblings, and nobody else.

One function per API that names any, on the decoded answer. A test fills every field of every
answer that could name a node, and looks for what comes through.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sapwood.edge.siblings import Sibling
from sapwood.wire.apis import Api
from sapwood.wire.codec import Buffer, Struct, decode_response
from sapwood.wire.frames import RequestHeader, decode_response_header, encode_response_frame

BROKER_RESOURCE = 4
NOBODY = -1


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as one client is to see it."""

    living: list[Sibling]
    """The edges, this one first."""
    leader: Sibling
    """Which of them leads everything, as far as this client is concerned."""
    metrics: Callable[[], Mapping[str, float]] = dict
    """What this edge counts."""


Rewriting = Callable[[Struct, View], None]


def rewritten(header: RequestHeader, frame: memoryview, view: View) -> list[Buffer] | None:
    """The whole answer anew; None if nothing in it can name a node."""
    rewrite = REWRITINGS.get(header.api_key)
    if rewrite is None:
        return None
    api, version = header.api_key, header.api_version
    if api == Api.PRODUCE and version < FIRST_PRODUCE_WITH_LEADERS:
        return None
    _, body = decode_response_header(api, version, frame)
    answer = decode_response(api, version, frame, body)
    rewrite(answer, view)
    return encode_response_frame(api, version, header.correlation_id, answer)


FIRST_PRODUCE_WITH_LEADERS = 10


def _produce(answer: Struct, view: View) -> None:
    _no_hints(answer, (it for topic in answer.responses for it in topic.partition_responses))


def _fetch(answer: Struct, view: View) -> None:
    partitions = [it for topic in answer.responses for it in topic.partitions]
    _no_hints(answer, partitions)
    for it in partitions:
        it.preferred_read_replica = NOBODY


def _no_hints(answer: Struct, partitions: Iterable[Struct]) -> None:
    """Who leads instead: the edge finds that out itself."""
    answer.node_endpoints = []
    for it in partitions:
        if hasattr(it, "current_leader"):
            del it.current_leader


def _metadata(answer: Struct, view: View) -> None:
    answer.brokers = _brokers(view, "node_id")
    answer.controller_id = view.leader.node_id
    _partitions(answer, view)


def _describe_cluster(answer: Struct, view: View) -> None:
    answer.controller_id = view.leader.node_id
    if answer.brokers:
        answer.brokers = _brokers(view, "broker_id")


def _brokers(view: View, id_field: str) -> list[Struct]:
    return [
        Struct(**{id_field: it.node_id}, host=it.host, port=it.port, rack=None, is_fenced=False)
        for it in view.living
    ]


def _partitions(answer: Struct, view: View) -> None:
    me = view.leader.node_id
    for topic in answer.topics:
        for it in topic.partitions:
            has_leader = it.leader_id >= 0
            it.leader_id = me if has_leader else NOBODY
            it.replica_nodes = [me]
            it.isr_nodes = [me] if has_leader else []
            it.offline_replicas = [] if has_leader else [me]
            it.eligible_leader_replicas = []
            it.last_known_elr = []


def _find_coordinator(answer: Struct, view: View) -> None:
    for it in getattr(answer, "coordinators", None) or [answer]:
        if not it.error_code:
            it.node_id, it.host, it.port = view.leader
        else:
            it.node_id, it.host, it.port = NOBODY, "", -1


def _reassignments(answer: Struct, view: View) -> None:
    for topic in answer.topics:
        for it in topic.partitions:
            it.replicas, it.adding_replicas, it.removing_replicas = [view.leader.node_id], [], []


def _quorum(answer: Struct, view: View) -> None:
    me = view.leader
    for topic in answer.topics:
        for it in topic.partitions:
            it.leader_id = me.node_id if it.leader_id >= 0 else NOBODY
            it.current_voters = it.current_voters[:1]
            it.observers = []
            for voter in it.current_voters:
                voter.replica_id, voter.replica_directory_id = me.node_id, bytes(16)
    answer.nodes = [
        Struct(node_id=it.node_id, listeners=[Struct(name="kafka", host=it.host, port=it.port)])
        for it in view.living
    ]


def _configs(answer: Struct, view: View) -> None:
    for result in answer.results:
        if result.resource_type != BROKER_RESOURCE:
            continue
        known = {
            "advertised.listeners": f"kafka://{view.leader.host}:{view.leader.port}",
            "broker.id": str(view.leader.node_id),
            "node.id": str(view.leader.node_id),
        }
        for it in result.configs:
            if it.name in known:
                it.value = known[it.name]
                it.synonyms = []


def _resources(answer: Struct, view: View) -> None:
    if any(getattr(it, "resource_type", None) == BROKER_RESOURCE for it in answer.config_resources):
        others = [it for it in answer.config_resources if it.resource_type != BROKER_RESOURCE]
        answer.config_resources = others + [
            Struct(resource_name=str(it.node_id), resource_type=BROKER_RESOURCE)
            for it in view.living
        ]


def _status(answer: Struct, view: View) -> None:
    """How this edge is; and the cluster, as the core sees it."""
    me = view.living[0]
    answer.node_id, answer.kind, answer.pid = me.node_id, "edge", os.getpid()
    answer.listeners = [Struct(name="kafka", host=me.host, port=me.port)]
    answer.metrics = [Struct(name=name, value=value) for name, value in view.metrics().items()]
    answer.offline_partitions = []


REWRITINGS: dict[int, Rewriting] = {
    Api.PRODUCE: _produce,
    Api.FETCH: _fetch,
    Api.METADATA: _metadata,
    Api.FIND_COORDINATOR: _find_coordinator,
    Api.LIST_PARTITION_REASSIGNMENTS: _reassignments,
    Api.DESCRIBE_CLUSTER: _describe_cluster,
    Api.DESCRIBE_CONFIGS: _configs,
    Api.DESCRIBE_QUORUM: _quorum,
    Api.DESCRIBE_TOPIC_PARTITIONS: _partitions,
    Api.LIST_CONFIG_RESOURCES: _resources,
    Api.NODE_STATUS: _status,
}
