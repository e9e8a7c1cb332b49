"""NodeStatus and DescribeReplicas: how the cluster is, as this node sees it."""

from __future__ import annotations

import functools
import os

from sapwood.broker.state import BrokerState
from sapwood.metadata.placement import metadata_voters
from sapwood.replica import Partition
from sapwood.server import Request
from sapwood.wire.codec import Struct


@functools.cache  # it is read from a file, and gateways ask all the time
def _version() -> str:
    from importlib.metadata import version  # it takes 14 ms to load

    return version("sapwood")


def node_status(state: BrokerState, request: Request, message: Struct) -> Struct:
    health = _health(state)
    return Struct(
        node_id=state.config.node_id,
        kind="core",
        pid=os.getpid(),
        version=_version(),
        listeners=[
            Struct(name=name, host=host, port=port)
            for name, (host, port) in state.config.advertised.items()
        ],
        metrics=[Struct(name=name, value=value) for name, value in state.metrics().items()],
        offline_partitions=[
            Struct(topic=topic, partition=index, reason=reason)
            for topic, index, reason in state.replicas.offline()
        ],
        cluster_id=state.image.cluster_id,
        controller=state.store.controller_id,
        controller_epoch=state.store.partition.leader_epoch,
        nodes=_nodes(state),
        **health,
    )


def _health(state: BrokerState) -> dict[str, int | bool]:
    """Of the whole cluster, as this node has heard of it."""
    under_replicated = leaderless = 0
    metadata = state.replicas.exchange.leaders.get(state.store.partition.key)
    groups = [state.leadership(topic, index) for topic, index in state.each_partition()]
    for known in [metadata, *groups]:
        if known is None or not state.is_alive(known.leader):
            leaderless += 1
        elif len(known.in_sync) < len(known.voters):
            under_replicated += 1
    reassigning, offline = len(state.moving() | _short(state)), len(state.replicas.offline())
    if metadata is not None:
        voters = sorted(it.node for it in metadata.voters)
        reassigning += voters != metadata_voters(state.image, voters)
    nodes = state.image.nodes.values()
    return {
        "under_replicated": under_replicated,
        "offline": offline,
        "leaderless": leaderless,
        "reassigning": reassigning,
        "healthy": not (under_replicated or offline or leaderless or reassigning)
        and state.store.controller_id >= 0
        and state.config.node_id in state.image.nodes
        and all(node.alive for node in nodes),
    }


def _short(state: BrokerState) -> set[tuple[bytes, int]]:
    """The partitions that the controller has yet to give all the replicas that it can.

    It moves a few at a time: between two steps none is on its way anywhere.
    """
    fit = len(state.image.eligible())
    return {
        (topic.topic_id, index)
        for topic, index in state.each_partition()
        if len(topic.partitions[index]) < min(topic.replication_factor, fit)
        and index not in topic.pinned
    }


def _nodes(state: BrokerState) -> list[Struct]:
    replicas = dict.fromkeys(state.image.nodes, 0)
    leaders = dict.fromkeys(state.image.nodes, 0)
    for topic, index in state.each_partition():
        for node_id in state.voters(topic, index):
            replicas[node_id] = replicas.get(node_id, 0) + 1
        known = state.leadership(topic, index)
        if known is not None:
            leaders[known.leader] = leaders.get(known.leader, 0) + 1
    nodes = []
    for node in state.image.nodes.values():
        host, port = next(iter(node.listeners.values()))
        nodes.append(
            Struct(
                node_id=node.node_id,
                alive=state.is_alive(node.node_id),
                draining=node.draining,
                host=host,
                port=port,
                rack=node.rack,
                replicas=replicas[node.node_id],
                leaders=leaders[node.node_id],
            )
        )
    return nodes


def describe_replicas(state: BrokerState, request: Request, message: Struct) -> Struct:
    wanted = message.topics
    return Struct(
        groups=[
            _replica(state, partition)
            for partition in state.replicas
            if wanted is None or partition.topic in wanted
        ]
    )


def _replica(state: BrokerState, partition: Partition) -> Struct:
    group, now = partition.group, state.loop_now()
    progress = partition.followers
    voters = partition.voters
    return Struct(
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.index,
        role=partition.role,
        term=group.term,
        leader=group.leader,
        epoch=partition.log.last_epoch,
        log_start=partition.log.start_offset,
        log_end=partition.log.end_offset,
        high_watermark=partition.high_watermark,
        voters=[Struct(node=it.node, incarnation=it.incarnation) for it in voters],
        learners=[it.node for it in progress if it not in voters],
        in_sync=group.in_sync(now),
        target=list(partition.target),
        offline_reason=partition.offline_reason,
        followers=[
            Struct(
                node=replica.node,
                incarnation=replica.incarnation,
                log_end=it.position.offset,
                durable_end=it.durable.offset,
                heard_ms=it.silent_ms(now),
            )
            for replica, it in progress.items()
        ],
    )
