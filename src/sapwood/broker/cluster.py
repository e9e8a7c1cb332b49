"""Metadata, DescribeCluster, DescribeTopicPartitions, DescribeLogDirs: who and what is there."""

import asyncio
import shutil

from sapwood.broker.leading import (
    ELECTION_S,
    current_leader,
    is_between_leaders,
    is_led_elsewhere,
)
from sapwood.broker.state import BrokerState
from sapwood.broker.topics import NO_TOPIC_ID, create_missing
from sapwood.metadata.controller import check_topic_name
from sapwood.metadata.image import Topic
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

BROKER_ENDPOINTS = 1
FIRST_VERSION_BY_ID = 12
"""Of Metadata. Two versions before it have an id in the request and can't answer by it."""
MAX_PARTITIONS_PER_PAGE = 2000
PARTITIONS_AT_ONCE = 500
"""Between two turns for others."""
ELECTION_LOOK_S = 0.01
NEWS_S = 0.005
"""The end of a process is heard of by its clients and by other nodes not much further apart."""
# Bits by Kafka's numbers of operations; without ACLs everybody may do whatever there is to do.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


async def metadata(state: BrokerState, request: Request, message: Struct) -> Struct:
    wanted = message.topics
    if wanted is None or (not wanted and request.header.api_version == 0):
        topics = [await _topic_metadata(state, topic) for topic in _sorted_topics(state)]
    else:
        may_create = getattr(message, "allow_auto_topic_creation", True)
        if may_create and state.config.auto_create_topics:
            names = [topic.name for topic in wanted if getattr(topic, "name", None)]
            await create_missing(state, names)
        await _elections(state, wanted)
        topics = [await _metadata_of(state, topic) for topic in wanted]
        if request.header.api_version < FIRST_VERSION_BY_ID:
            for topic in topics:
                topic.name = topic.name or ""
    if getattr(message, "include_topic_authorized_operations", False):
        _authorize(topics)
    answer = Struct(
        brokers=_brokers(state, request, "node_id"),
        cluster_id=state.image.cluster_id,
        controller_id=state.store.controller_id,
        topics=topics,
        error_code=0,
    )
    if getattr(message, "include_cluster_authorized_operations", False):
        answer.cluster_authorized_operations = CLUSTER_OPERATIONS
    return answer


async def _elections(state: BrokerState, wanted: list[Struct]) -> None:
    """Wait for the outcome of those that are going on.

    Clients look for a new leader as soon as they lose the old one, which is before anybody can be
    elected, and even before this node has heard of it. Told about the old one, librdkafka asks
    again only after a second.
    """
    loop = asyncio.get_running_loop()
    found = [topic for it in wanted if (topic := _find(state, it)[0]) is not None]
    places = [(topic, index) for topic in found for index in range(len(topic.partitions))]
    if any(is_led_elsewhere(state, *place) for place in places):
        await asyncio.sleep(NEWS_S)
    deadline = loop.time() + ELECTION_S
    # Only the undecided are looked at again, and not all the time if that takes long: a client may
    # ask about thousands at once.
    began = loop.time()
    while places := [place for place in places if is_between_leaders(state, *place)]:
        if loop.time() >= deadline:
            return
        await asyncio.sleep(max(ELECTION_LOOK_S, 10 * (loop.time() - began)))
        began = loop.time()


def _authorize(topics: list[Struct]) -> None:
    for topic in topics:
        if not topic.error_code:
            topic.topic_authorized_operations = TOPIC_OPERATIONS


async def _metadata_of(state: BrokerState, wanted: Struct) -> Struct:
    topic, name = _find(state, wanted)
    if topic is not None:
        return await _topic_metadata(state, topic)
    code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else _why_missing(name)
    topic_id = getattr(wanted, "topic_id", NO_TOPIC_ID)
    return Struct(error_code=int(code), name=name, topic_id=topic_id, partitions=[])


def _find(state: BrokerState, wanted: Struct) -> tuple[Topic | None, str | None]:
    """The topic, and the name by which it was asked for; no name if it was by its id."""
    topic_id = getattr(wanted, "topic_id", NO_TOPIC_ID)
    if wanted.name is None or topic_id != NO_TOPIC_ID:  # with an id, Java sends an empty name
        return state.image.topics_by_id.get(topic_id), None
    return state.image.topics.get(wanted.name), wanted.name


def _why_missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _topic_metadata(state: BrokerState, topic: Topic) -> Struct:
    partitions = []
    for index in range(len(topic.partitions)):
        if index % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
            await asyncio.sleep(0)
        partitions.append(_partition_metadata(state, topic, index))
    return Struct(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name.startswith("__"),
        partitions=partitions,
    )


def _partition_metadata(state: BrokerState, topic: Topic, index: int) -> Struct:
    replicas = state.voters(topic, index)
    known = state.leadership(topic, index)
    leader, epoch = current_leader(state, topic, index)
    offline = [node for node in replicas if not state.is_alive(node)]
    in_sync = [] if known is None else [node for node in replicas if node in known.in_sync]
    partition = state.replicas.find(topic.topic_id, index)
    if leader == state.config.node_id and (
        partition is None or partition.offline_reason is not None
    ):
        leader, offline = -1, [*offline, state.config.node_id]
    return Struct(
        error_code=int(ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else ErrorCode.NONE),
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=replicas,
        isr_nodes=[node for node in in_sync if node not in offline],
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=offline,
    )


def _sorted_topics(state: BrokerState) -> list[Topic]:
    return [topic for _, topic in sorted(state.image.topics.items())]


def _brokers(state: BrokerState, request: Request, id_field: str) -> list[Struct]:
    brokers = []
    for node in state.image.nodes.values():
        if not state.is_alive(node.node_id):
            continue
        host, port = state.address(node, request.connection.listener)
        brokers.append(
            Struct(
                **{id_field: node.node_id}, host=host, port=port, rack=node.rack, is_fenced=False
            )
        )
    return brokers


def describe_cluster(state: BrokerState, request: Request, message: Struct) -> Struct:
    endpoint_type = getattr(message, "endpoint_type", BROKER_ENDPOINTS)
    answer = Struct(
        error_code=0,
        error_message=None,
        endpoint_type=endpoint_type,
        cluster_id=state.image.cluster_id,
        controller_id=state.store.controller_id,
        brokers=_brokers(state, request, "broker_id"),
    )
    if endpoint_type != BROKER_ENDPOINTS:
        answer.error_code = int(ErrorCode.MISMATCHED_ENDPOINT_TYPE)
        answer.error_message = "Every node is a broker: ask for brokers"
        answer.brokers = []
    if message.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = CLUSTER_OPERATIONS
    return answer


async def describe_topic_partitions(
    state: BrokerState, request: Request, message: Struct
) -> Struct:
    """Topics in the order of their names, cut into pages by number of partitions."""
    names = sorted({topic.name for topic in message.topics} or state.image.topics)
    first_topic, first_partition = "", 0
    if message.cursor is not None:
        first_topic = message.cursor.topic_name
        first_partition = max(0, message.cursor.partition_index)
    room = max(1, min(message.response_partition_limit, MAX_PARTITIONS_PER_PAGE))
    topics: list[Struct] = []
    next_cursor = None
    for name in names:
        if name < first_topic:
            continue
        if room <= 0:
            next_cursor = Struct(topic_name=name, partition_index=0)
            break
        found = await _metadata_of(state, Struct(name=name))
        start = first_partition if name == first_topic else 0
        rest = found.partitions[start:]
        found.partitions = rest[:room]
        topics.append(found)
        if len(rest) > room:
            next_cursor = Struct(topic_name=name, partition_index=start + room)
            break
        room -= len(rest)
    _authorize(topics)
    return Struct(topics=topics, next_cursor=next_cursor)


def describe_log_dirs(state: BrokerState, request: Request, message: Struct) -> Struct:
    wanted = (
        None
        if message.topics is None
        else {(topic.topic, index) for topic in message.topics for index in topic.partitions}
    )
    topics: dict[str, list[Struct]] = {}
    for topic in _sorted_topics(state):
        for index in range(len(topic.partitions)):
            if wanted is not None and (topic.name, index) not in wanted:
                continue
            partition = state.replicas.find(topic.topic_id, index)
            if partition is None:
                continue  # it is not here, or could not be opened: nothing can be said of it
            size = partition.log.size_bytes
            topics.setdefault(topic.name, []).append(
                Struct(
                    partition_index=index, partition_size=size, offset_lag=0, is_future_key=False
                )
            )
    usage = shutil.disk_usage(state.data_dir)
    return Struct(
        error_code=0,
        results=[
            Struct(
                error_code=0,
                log_dir=state.data_dir,
                topics=[Struct(name=name, partitions=rows) for name, rows in topics.items()],
                total_bytes=usage.total,
                usable_bytes=usage.free,
            )
        ],
    )
