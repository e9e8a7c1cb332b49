"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit: where groups have come to."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from sapwood.broker.coordinating import Shard
from sapwood.broker.groups import shard_of_group
from sapwood.broker.state import BrokerState
from sapwood.broker.verifying import VERIFY_S
from sapwood.coordinator.groups import Groups
from sapwood.coordinator.offsets import Place, Position
from sapwood.metadata.controller import check_partition, find_topic
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

_FIRST_FETCH_OF_SEVERAL = 8
NO_TOPIC_ID = bytes(16)
# What a transaction's coordinator calls fenced has another name in this answer.
_TOLD_TO_PRODUCERS = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}


async def _shard(state: BrokerState, message: Struct) -> Shard[Groups]:
    return shard_of_group(state, message.group_id)


async def offset_commit(state: BrokerState, request: Request, message: Struct) -> Struct:
    return await _commit(state, message, _shard)


async def txn_offset_commit(state: BrokerState, request: Request, message: Struct) -> Struct:
    """What a transaction has read: it counts when the transaction's marker is written here, too."""
    return await _commit(state, message, _shard_in_transaction)


async def _shard_in_transaction(state: BrokerState, message: Struct) -> Shard[Groups]:
    """The group's shard, once the transaction is known to be in progress there."""
    shard = await _shard(state, message)
    partition, producer_id = shard.partition, message.producer_id
    if producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "A transaction has a producer id")
    try:
        async with asyncio.timeout(VERIFY_S):
            await state.verifying.confirm(
                partition, message.transactional_id, producer_id, message.producer_epoch
            )
    except TimeoutError:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "The transaction's coordinator doesn't answer"
        ) from None
    known = partition.log.producers.find(producer_id)
    if known is not None and message.producer_epoch < known.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Producer {producer_id} has epoch {message.producer_epoch}, a newer one with epoch "
            f"{known.epoch} has taken over",
        )
    return shard


async def _commit(
    state: BrokerState,
    message: Struct,
    find_shard: Callable[[BrokerState, Struct], Awaitable[Shard[Groups]]],
) -> Struct:
    """What is wrong with one partition fails that one; what is wrong with the group, all."""
    limit_bytes = int(state.broker_config("offset.metadata.max.bytes"))
    accepted: list[tuple[Struct, Place, Position]] = []
    topics = []
    for topic in message.topics:
        results = []
        for wanted in topic.partitions:
            result = Struct(partition_index=wanted.partition_index, error_code=0)
            results.append(result)
            try:
                accepted.append((result, *_position(state, topic, wanted, limit_bytes)))
            except KafkaError as error:
                result.error_code = int(error.code)
        topics.append(
            Struct(
                name=getattr(topic, "name", ""),
                topic_id=getattr(topic, "topic_id", NO_TOPIC_ID),
                partitions=results,
            )
        )
    if accepted:
        positions = [(place, position) for _, place, position in accepted]
        try:
            shard = await find_shard(state, message)
            await shard.ask(
                lambda groups, token, now_ms: groups.commit(token, message, positions, now_ms)
            )
        except KafkaError as error:
            code = _TOLD_TO_PRODUCERS.get(error.code, error.code)
            for result, _, _ in accepted:
                result.error_code = int(code)
    return Struct(topics=topics)


def _position(
    state: BrokerState, topic: Struct, wanted: Struct, limit_bytes: int
) -> tuple[Place, Position]:
    found = find_topic(
        state.image, getattr(topic, "name", None), getattr(topic, "topic_id", NO_TOPIC_ID)
    )
    check_partition(found, wanted.partition_index)
    metadata = wanted.committed_metadata or ""
    if len(metadata.encode()) > limit_bytes:
        raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE, f"More than {limit_bytes} bytes")
    return (found.name, wanted.partition_index), Position(
        wanted.committed_offset,
        getattr(wanted, "committed_leader_epoch", -1),
        metadata,
        state.now_ms(),
        found.topic_id,
    )


# -- fetching --------------------------------------------------------------------------------


async def offset_fetch(state: BrokerState, request: Request, message: Struct) -> Struct:
    version = request.header.api_version
    require_stable = getattr(message, "require_stable", False)
    if version >= _FIRST_FETCH_OF_SEVERAL:
        wanted = [_fetch(state, group, require_stable=require_stable) for group in message.groups]
        return Struct(groups=await asyncio.gather(*wanted))
    answer = await _fetch(state, message, require_stable=require_stable)
    if answer.error_code:
        # Beside the error of the whole, which some clients don't look at (aiokafka): they take
        # silence about a partition for a group that has no position there, and begin anew.
        answer.topics = [
            _topic_answer(topic, [(index, None, answer.error_code) for index in indexes])
            for topic in message.topics or ()
            if (indexes := topic.partition_indexes)
        ]
    return answer


async def _fetch(state: BrokerState, wanted: Struct, *, require_stable: bool) -> Struct:
    answer = Struct(group_id=wanted.group_id, topics=[], error_code=0)
    topics = wanted.topics
    names: list[str | None] = []
    if topics is not None:
        names = [_name(state, topic) for topic in topics]
        places = [
            (name, index)
            for topic, name in zip(topics, names, strict=True)
            if name is not None
            for index in topic.partition_indexes
        ]
    try:
        found = await shard_of_group(state, wanted.group_id).ask(
            lambda groups, token, now_ms: groups.fetch(
                token,
                wanted.group_id,
                None if topics is None else places,
                require_stable=require_stable,
                member_id=getattr(wanted, "member_id", None),
                member_epoch=getattr(wanted, "member_epoch", -1),
            )
        )
    except KafkaError as error:
        answer.error_code = int(error.code)
        return answer
    if topics is None:
        answer.topics = _by_topic(found.positions)
        return answer
    positions = iter(found.positions)
    for topic, name in zip(topics, names, strict=True):
        entries: list[tuple[int, Position | None, int]]
        if name is None:
            code = int(ErrorCode.UNKNOWN_TOPIC_ID)
            entries = [(index, None, code) for index in topic.partition_indexes]
        else:
            entries = [
                (index, position, int(error))
                for index, (_, position, error) in zip(
                    topic.partition_indexes, positions, strict=False
                )
            ]
        answer.topics.append(_topic_answer(topic, entries))
    return answer


def _name(state: BrokerState, topic: Struct) -> str | None:
    """None if it is given by an id that nobody has."""
    if hasattr(topic, "name"):
        return str(topic.name)
    found = state.image.topics_by_id.get(topic.topic_id)
    return None if found is None else found.name


def _by_topic(positions: Iterable[tuple[Place, Position, ErrorCode]]) -> list[Struct]:
    entries: dict[str, list[tuple[int, Position | None, int]]] = {}
    ids: dict[str, bytes] = {}
    for (name, index), position, error in positions:
        entries.setdefault(name, []).append((index, position, int(error)))
        ids[name] = position.topic_id or ids.get(name, NO_TOPIC_ID)
    return [_topic_answer(Struct(name=it, topic_id=ids[it]), entries[it]) for it in entries]


def _topic_answer(topic: Struct, entries: list[tuple[int, Position | None, int]]) -> Struct:
    return Struct(
        name=getattr(topic, "name", ""),
        topic_id=getattr(topic, "topic_id", NO_TOPIC_ID),
        partitions=[
            Struct(
                partition_index=index,
                committed_offset=-1 if position is None else position.offset,
                committed_leader_epoch=-1 if position is None else position.leader_epoch,
                metadata="" if position is None else position.metadata,
                error_code=error,
            )
            for index, position, error in entries
        ],
    )


# -- deleting --------------------------------------------------------------------------------


async def offset_delete(state: BrokerState, request: Request, message: Struct) -> Struct:
    answer = Struct(error_code=0, topics=[])
    results: list[Struct] = []
    places: list[Place] = []
    topics = []
    for topic in message.topics:
        partitions = []
        for wanted in topic.partitions:
            result = Struct(partition_index=wanted.partition_index, error_code=0)
            partitions.append(result)
            found = state.image.topics.get(topic.name)
            if found is None or not 0 <= wanted.partition_index < len(found.partitions):
                result.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                results.append(result)
                places.append((topic.name, wanted.partition_index))
        topics.append(Struct(name=topic.name, partitions=partitions))
    try:
        deleted = await shard_of_group(state, message.group_id).ask(
            lambda groups, token, now_ms: groups.delete_offsets(token, message.group_id, places)
        )
    except KafkaError as error:
        answer.error_code = int(error.code)
        return answer
    for result, code in zip(results, deleted.errors, strict=True):
        result.error_code = int(code)
    answer.topics = topics
    return answer
