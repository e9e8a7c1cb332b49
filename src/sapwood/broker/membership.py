"""Joining, draining and removing nodes, and the last resort for a partition."""

from __future__ import annotations

import logging

from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.metadata import records as r
from sapwood.metadata.controller import find_topic
from sapwood.metadata.registry import change_node, register_node, remove_node
from sapwood.replica import Partition
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

DRAIN, UNDRAIN, REMOVE = 1, 2, 3


async def register(
    state: BrokerState,
    node_id: int,
    incarnation: int,
    listeners: dict[str, tuple[str, int]],
    rack: str | None,
    version: str,
) -> int:
    """Take a node in, or note its new address; the id that it has from now on."""
    loop_now = state.loop_now()

    def is_alive(node: int) -> bool:
        return (
            node == state.config.node_id
            or state.replicas.exchange.heard_of(node) > loop_now - state.silence_s
        )

    async with state.store.changing() as image:
        node_id, records = register_node(
            image, node_id, incarnation, listeners, rack, version, is_alive=is_alive
        )
        await state.store.commit(records)
    return node_id


async def join(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, error_message=None, cluster_id="", node_id=-1)
    answer.metadata_voters = answer.members = []
    try:
        image = state.image
        if image.cluster_id is None or state.config.node_id not in image.nodes:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster is only just being founded")
        if message.cluster_id not in (None, image.cluster_id):
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"This is the cluster {image.cluster_id}, not {message.cluster_id}",
            )
        answer.node_id = await register(
            state,
            message.node_id,
            message.incarnation,
            {it.name: (it.host, it.port) for it in message.listeners},
            message.rack,
            message.version,
        )
        answer.cluster_id = image.cluster_id
        answer.metadata_voters = [
            Struct(node=voter.node, incarnation=voter.incarnation)
            for voter in state.config.metadata_voters
        ]
        answer.members = [
            Struct(node_id=node.node_id, host=host, port=port)
            for node in state.image.nodes.values()
            for host, port in [next(iter(node.listeners.values()))]
            if node.node_id != answer.node_id
        ]
    except KafkaError as error:
        refuse(answer, error)
    return answer


async def change(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, error_message=None)
    try:
        async with state.store.changing() as image:
            records: list[r.Record]
            if message.action == DRAIN:
                records = change_node(image, message.node_id, draining=True)
            elif message.action == UNDRAIN:
                records = change_node(image, message.node_id, draining=False)
            elif message.action == REMOVE:
                records = remove_node(image, message.node_id, votes=state.votes_of(message.node_id))
            else:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown action {message.action}")
            await state.store.commit(records)
    except KafkaError as error:
        refuse(answer, error)
    return answer


def recover(state: BrokerState, request: Request, message: Struct) -> Struct:
    """Go on with this node's copy alone. What only others had acknowledged is lost."""
    answer = Struct(error_code=0, error_message=None)
    try:
        partition = _without_leader(state, message.topic, message.partition)
        logger.warning("%s: going on alone, by an operator's order", partition)
        partition.recover()
        partition.check_online()
    except KafkaError as error:
        refuse(answer, error)
    return answer


def _without_leader(state: BrokerState, topic: str, index: int) -> Partition:
    if topic == state.store.partition.topic:
        partition = state.store.partition
    else:
        partition = state.replicas.get(find_topic(state.image, topic).topic_id, index)
    partition.check_online()
    if partition.group.leader != -1 and partition.has_leader:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{partition} is led by node {partition.group.leader}: nothing is to be recovered",
        )
    return partition
