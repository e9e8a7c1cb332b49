"""CreateTopics, DeleteTopics, CreatePartitions, and creation on demand."""

import logging
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from sapwood.broker.configs import describe_entries
from sapwood.broker.forwarding import ask_controller
from sapwood.broker.refusal import refuse
from sapwood.broker.state import BrokerState
from sapwood.metadata import controller
from sapwood.metadata.image import Image
from sapwood.metadata.records import TopicCreated, TopicDeleted
from sapwood.server import Request
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Hashable)
NO_TOPIC_ID = bytes(16)


async def create_missing(state: BrokerState, names: Iterable[str]) -> None:
    """Create what doesn't exist and can be; the asker is told what still doesn't exist."""
    missing = [name for name in names if name not in state.image.topics]
    if not missing:
        return
    if not state.store.is_controller:
        await ask_controller(state, Api.CREATE_TOPICS, _creation(missing))
        return
    async with state.store.changing() as image:
        for name in names:
            try:
                record = controller.create_topic(
                    image,
                    name,
                    state.entropy(16),
                    default_partition_count=state.partition_count(name),
                )
                await state.store.commit([record])
            except KafkaError as error:
                logger.debug("topic %s was not created on demand: %s", name[:300], error)


def _creation(names: list[str]) -> Struct:
    return Struct(
        topics=[
            Struct(name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[])
            for name in dict.fromkeys(names)
        ],
        timeout=0,
        validate_only=False,
    )


async def create_topics(state: BrokerState, request: Request, message: Struct) -> Struct:
    repeated = _repeated(topic.name for topic in message.topics)
    results = []
    async with state.store.changing() as image:
        for topic in message.topics:
            result = Struct(
                name=topic.name,
                topic_id=NO_TOPIC_ID,
                error_code=0,
                error_message=None,
                configs=None,
            )
            try:
                if topic.name in repeated:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, f"Topic {topic.name!r} is named more than once"
                    )
                record = _new_topic(state, image, topic)
                if not message.validate_only:
                    await state.store.commit([record])
                    result.topic_id = record.topic_id
                result.num_partitions = len(record.partitions)
                result.replication_factor = len(record.partitions[0])
                result.configs = describe_entries(state, dict(record.configs))
            except KafkaError as error:
                refuse(result, error)
            results.append(result)
    return Struct(topics=_once_each(results))


def _new_topic(state: BrokerState, image: Image, topic: Struct) -> TopicCreated:
    overrides = {}
    for config in topic.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Config {config.name} has no value")
        overrides[config.name] = config.value
    assignments = {entry.partition_index: entry.broker_ids for entry in topic.assignments}
    if len(assignments) != len(topic.assignments):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned more than once"
        )
    return controller.create_topic(
        image,
        topic.name,
        state.entropy(16),
        partition_count=topic.num_partitions,
        default_partition_count=state.partition_count(topic.name),
        replication_factor=topic.replication_factor,
        assignments=assignments,
        overrides=overrides,
    )


async def delete_topics(state: BrokerState, request: Request, message: Struct) -> Struct:
    if request.header.api_version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in message.topics]
    else:
        wanted = [(name, NO_TOPIC_ID) for name in message.topic_names]
    repeated = _repeated(wanted)
    results = []
    async with state.store.changing() as image:
        for name, topic_id in dict.fromkeys(wanted):
            result = Struct(name=name, topic_id=topic_id, error_code=0, error_message=None)
            try:
                if (name, topic_id) in repeated:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic is named more than once")
                if (name is None) == (topic_id == NO_TOPIC_ID):
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "Give either a topic's name or its id"
                    )
                topic = controller.find_topic(image, name, topic_id)
                controller.check_not_internal(topic.name)
                result.name, result.topic_id = topic.name, topic.topic_id
                await state.store.commit([TopicDeleted(topic_id=topic.topic_id)])
            except KafkaError as error:
                refuse(result, error)
            results.append(result)
    return Struct(responses=results)


async def create_partitions(state: BrokerState, request: Request, message: Struct) -> Struct:
    repeated = _repeated(topic.name for topic in message.topics)
    results = []
    async with state.store.changing() as image:
        for topic in message.topics:
            result = Struct(name=topic.name, error_code=0, error_message=None)
            try:
                if topic.name in repeated:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, f"Topic {topic.name!r} is named more than once"
                    )
                assignments = (
                    None
                    if topic.assignments is None
                    else [entry.broker_ids for entry in topic.assignments]
                )
                record = controller.add_partitions(image, topic.name, topic.count, assignments)
                if not message.validate_only:
                    await state.store.commit([record])
            except KafkaError as error:
                refuse(result, error)
            results.append(result)
    return Struct(results=_once_each(results))


def _repeated(named: Iterable[T]) -> set[T]:
    return {it for it, times in Counter(named).items() if times > 1}


def _once_each(results: list[Struct]) -> list[Struct]:
    """A response names each topic once, however often the request did."""
    return list({result.name: result for result in results}.values())
