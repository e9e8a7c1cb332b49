"""FindCoordinator: which node answers for a group, or for a transactional id."""

import asyncio
from contextlib import suppress

from sapwood.broker.leading import ELECTION_S, current_leader, is_between_leaders
from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.broker.topics import create_missing
from sapwood.metadata.controller import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from sapwood.metadata.image import Topic
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

FIRST_VERSION_OF_SEVERAL = 4
LOOK_S = 0.01
_KINDS = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}


async def find_coordinator(state: BrokerState, request: Request, message: Struct) -> Struct:
    several = request.header.api_version >= FIRST_VERSION_OF_SEVERAL
    keys = message.coordinator_keys if several else [message.key]
    kind = _KINDS.get(getattr(message, "key_type", 0))
    if kind is not None:
        with suppress(KafkaError):  # then it isn't there yet, which is what they are told
            await create_missing(state, [kind])
    # One election's time for all of them: somebody may look for a thousand groups at once.
    deadline = asyncio.get_running_loop().time() + ELECTION_S
    found = [await _find(state, request, kind, key, deadline) for key in keys]
    return Struct(coordinators=found) if several else found[0]


async def _find(
    state: BrokerState, request: Request, kind: str | None, key: str, deadline: float
) -> Struct:
    result = Struct(key=key, node_id=-1, host="", port=-1, error_code=0, error_message=None)
    try:
        if kind is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Coordinators of this type don't exist")
        topic, index = state.coordinators.place(kind, key)
        node = state.image.nodes[await _leader(state, topic, index, deadline)]
        result.node_id = node.node_id
        result.host, result.port = state.address(node, request.connection.listener)
    except KafkaError as error:
        refuse(result, error)
    return result


async def _leader(state: BrokerState, topic: Topic, index: int, deadline: float) -> int:
    """Waits for an election that is going on: clients that are told to ask again do so late."""
    loop = asyncio.get_running_loop()
    while True:
        leader, _ = current_leader(state, topic, index)
        if leader in state.image.nodes and not is_between_leaders(state, topic, index):
            return leader
        if loop.time() >= deadline or not _is_about_to_be_led(state, topic, index):
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic.name}-{index} has no leader now"
            )
        await asyncio.sleep(LOOK_S)


def _is_about_to_be_led(state: BrokerState, topic: Topic, index: int) -> bool:
    """Not so where it is offline, or nobody has been elected for long. To wait for that would hold
    up everything that comes behind on the connection, and clients fetch and ask over one."""
    partition = state.replicas.find(topic.topic_id, index)
    if partition is None:
        return state.config.node_id not in topic.partitions[index]
    is_new = not partition.has_leader and partition.leaderless_s() < ELECTION_S
    return is_new or is_between_leaders(state, topic, index)
