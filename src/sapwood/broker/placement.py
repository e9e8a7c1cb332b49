"""ElectLeaders, reassignments, AlterReplicaLogDirs, DescribeQuorum: who holds and leads what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sapwood.broker.leading import current_leader
from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.metadata.controller import METADATA_TOPIC, check_partition, find_topic, reassign
from sapwood.metadata.image import Topic
from sapwood.replica import Partition, PeerUnreachable
from sapwood.server import Request
from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Struct, decode_response
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.frames import decode_response_header, encode_request_frame

PREFERRED, UNCLEAN = 0, 1
ELECTION_S = 5.0
_LENGTH_BYTES = 4


def _check_exists(state: BrokerState, topic: str, index: int) -> Topic:
    found = find_topic(state.image, topic)
    check_partition(found, index)
    return found


# -- elections ---------------------------------------------------------------------------------


async def elect_leaders(state: BrokerState, request: Request, message: Struct) -> Struct:
    """The preferred leader is to lead. Leaders are never made of replicas that lack records."""
    wanted: Iterable[tuple[str, Iterable[int]]]
    if message.topic_partitions is None:
        wanted = [(it.name, range(len(it.partitions))) for it in state.image.topics.values()]
    else:
        wanted = [(it.topic, it.partitions) for it in message.topic_partitions]
    answer = Struct(error_code=0, replica_election_results=[])
    if getattr(message, "election_type", PREFERRED) not in (PREFERRED, UNCLEAN):
        answer.error_code = int(ErrorCode.INVALID_REQUEST)
        return answer
    results = {topic: [_election(state, topic, it) for it in indexes] for topic, indexes in wanted}
    answer.replica_election_results = [
        Struct(topic=topic, partition_result=await asyncio.gather(*elections))
        for topic, elections in results.items()
    ]
    return answer


async def _election(state: BrokerState, name: str, index: int) -> Struct:
    result = Struct(partition_id=index, error_code=0, error_message=None)
    try:
        topic = _check_exists(state, name, index)
        leader, _ = current_leader(state, topic, index)
        preferred = topic.partitions[index][0]
        if leader == state.config.node_id:
            state.replicas.get(topic.topic_id, index).check_online()
        if leader == preferred:
            raise KafkaError(
                ErrorCode.ELECTION_NOT_NEEDED, f"{name}-{index} is led by its preferred leader"
            )
        if leader < 0:
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"{name}-{index} has no leader now: too few of its replicas are alive",
            )
        if leader == state.config.node_id:
            await _hand_over(state, state.replicas.get(topic.topic_id, index), preferred)
        else:
            await _have_elected(state, leader, name, index)
    except KafkaError as error:
        refuse(result, error)
    return result


async def _hand_over(state: BrokerState, partition: Partition, node: int) -> None:
    if not partition.hand_over(node):
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"{partition} can't be led by node {node} now"
        )
    deadline = state.loop_now() + ELECTION_S
    while partition.leads:
        if state.loop_now() > deadline:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"node {node} did not take {partition}")
        await asyncio.sleep(0.01)


async def _have_elected(state: BrokerState, leader: int, name: str, index: int) -> None:
    """Only the present leader can hand over."""
    api = Api.ELECT_LEADERS
    version = codec_versions(api)[1]
    wanted = [Struct(topic=name, partitions=[index])]
    body = Struct(election_type=PREFERRED, topic_partitions=wanted, timeout=int(ELECTION_S * 1000))
    frame = b"".join(encode_request_frame(api, version, 0, None, body))[_LENGTH_BYTES:]
    message = Struct(listener="", address="", principal=None, frame=frame)
    try:
        answer = await state.peers.request(leader, Api.FORWARD, message, timeout_s=2 * ELECTION_S)
    except PeerUnreachable as error:
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, str(error)) from error
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
    _, start = decode_response_header(api, version, memoryview(answer.frame))
    told = decode_response(api, version, answer.frame, start)
    for it in told.replica_election_results:
        for result in it.partition_result:
            if result.error_code:
                raise KafkaError(ErrorCode(result.error_code), result.error_message or "")


# -- reassignments -----------------------------------------------------------------------------


async def alter_partition_reassignments(
    state: BrokerState, request: Request, message: Struct
) -> Struct:
    may_change_factor = getattr(message, "allow_replication_factor_change", True)

    async def one(name: str, wanted: Struct) -> Struct:
        index = wanted.partition_index
        result = Struct(partition_index=index, error_code=0, error_message=None)
        try:
            topic = _check_exists(state, name, index)
            present = topic.partitions[index]
            edges = state.image.edges.known
            if wanted.replicas and all(it in edges for it in wanted.replicas):
                return result  # to their clients edges have everything already
            if wanted.replicas is not None:
                if not may_change_factor and len(wanted.replicas) != len(present):
                    raise KafkaError(
                        ErrorCode.INVALID_REPLICATION_FACTOR,
                        f"{name}-{index} has {len(present)} replicas, not {len(wanted.replicas)}",
                    )
                if wanted.replicas == present:
                    return result
            record = reassign(
                state.image, name, index, wanted.replicas, current=state.voters(topic, index)
            )
            await state.store.commit([record])
        except KafkaError as error:
            refuse(result, error)
        return result

    responses = []
    async with state.store.changing():
        for topic in message.topics:
            results = [await one(topic.name, it) for it in topic.partitions]
            responses.append(Struct(name=topic.name, partitions=results))
    return Struct(
        error_code=0,
        error_message=None,
        allow_replication_factor_change=may_change_factor,
        responses=responses,
    )


def list_partition_reassignments(state: BrokerState, request: Request, message: Struct) -> Struct:
    wanted = (
        None
        if message.topics is None
        else {(it.name, index) for it in message.topics for index in it.partition_indexes}
    )
    topics: dict[str, list[Struct]] = {}
    moving = state.moving()
    for topic, index in state.each_partition():
        if (topic.topic_id, index) not in moving:
            continue
        if wanted is not None and (topic.name, index) not in wanted:
            continue
        voters, target = state.voters(topic, index), topic.partitions[index]
        adding = [it for it in target if it not in voters]
        topics.setdefault(topic.name, []).append(
            Struct(
                partition_index=index,
                replicas=[*voters, *adding],
                adding_replicas=adding,
                removing_replicas=[it for it in voters if it not in target],
            )
        )
    return Struct(
        error_code=0,
        error_message=None,
        topics=[Struct(name=name, partitions=rows) for name, rows in topics.items()],
    )


def alter_replica_log_dirs(state: BrokerState, request: Request, message: Struct) -> Struct:
    def one(path: str, topic: str, index: int) -> Struct:
        code = ErrorCode.NONE
        try:
            _check_exists(state, topic, index)
            if path != state.data_dir:
                code = ErrorCode.LOG_DIR_NOT_FOUND
        except KafkaError as error:
            code = error.code
        return Struct(partition_index=index, error_code=int(code))

    return Struct(
        results=[
            Struct(
                topic_name=topic.name,
                partitions=[one(directory.path, topic.name, index) for index in topic.partitions],
            )
            for directory in message.dirs
            for topic in directory.topics
        ]
    )


# -- the metadata log's own quorum -------------------------------------------------------------


def describe_quorum(state: BrokerState, request: Request, message: Struct) -> Struct:
    return Struct(
        error_code=0,
        error_message=None,
        topics=[
            Struct(
                topic_name=topic.topic_name,
                partitions=[_quorum(state, topic, it) for it in topic.partitions],
            )
            for topic in message.topics
        ],
        nodes=[
            Struct(
                node_id=node.node_id,
                # Kafka's own names are in capitals, and its Java client takes no others.
                listeners=[
                    Struct(name=name.upper(), host=host, port=port)
                    for name, (host, port) in node.listeners.items()
                ],
            )
            for node in state.image.nodes.values()
        ],
    )


def _quorum(state: BrokerState, topic: Struct, wanted: Struct) -> Struct:
    partition = state.store.partition
    result = Struct(
        partition_index=wanted.partition_index,
        error_code=0,
        error_message=None,
        leader_id=partition.group.leader,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        current_voters=[],
        observers=[],
    )
    if topic.topic_name != METADATA_TOPIC or wanted.partition_index != 0:
        error = KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Only {METADATA_TOPIC}-0 is described"
        )
        refuse(result, error)
    elif not partition.leads:
        refuse(
            result, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The active controller knows this")
        )
    else:
        now = state.loop_now()
        for voter in dict.fromkeys([*partition.voters, *partition.followers]):
            known = partition.followers.get(voter)
            mine = voter == partition.group.me
            end = partition.log.end_offset if mine else known.durable.offset if known else -1
            at_ms = -1
            if mine or known:
                at_ms = max(-1, state.now_ms() - (known.silent_ms(now) if known else 0))
            described = Struct(
                replica_id=voter.node,
                replica_directory_id=bytes(8) + voter.incarnation.to_bytes(8, "big"),
                log_end_offset=end,
                last_fetch_timestamp=at_ms,
                last_caught_up_timestamp=at_ms if end >= partition.high_watermark else -1,
            )
            side = result.current_voters if voter in partition.voters else result.observers
            side.append(described)
    return result
