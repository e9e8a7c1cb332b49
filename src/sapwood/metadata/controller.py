"""Commands in, records out: what the active controller decides about topics and configs.

Every function reads the image, changes nothing, and raises `KafkaError` with the code that the
asker is to see. Ids and choices that need chance come in as arguments.
"""

import re
from collections.abc import Mapping, Sequence

from sapwood.metadata import configs
from sapwood.metadata import records as r
from sapwood.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image, Topic
from sapwood.metadata.placement import place
from sapwood.wire.errors import ErrorCode, KafkaError

MAX_PARTITIONS = 10_000
"""Of one topic: each costs files and memory, and one request must not exhaust a node."""
DEFAULT_REPLICATION_FACTOR = 3
METADATA_TOPIC = "__cluster_metadata"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
PRODUCER_ID_BLOCK = 1000

INTERNAL_TOPICS = {
    OFFSETS_TOPIC: "offsets.topic.num.partitions",
    TRANSACTIONS_TOPIC: "transaction.state.log.num.partitions",
}
"""The logs of coordinators, and what says how many partitions they have."""
_INTERNAL_CONFIGS = {"cleanup.policy": "compact", "flush": "sync", "segment.bytes": str(100 << 20)}
"""Whoever makes such a topic: with other ones positions would be lost."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def check_topic_name(name: str) -> None:
    if not _LEGAL_NAME.match(name) or name in (".", ".."):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name {name[:300]!r} is illegal: use 1 to 249 ASCII letters, digits, '.', '_' "
            "and '-', and neither '.' nor '..'",
        )


def find_topic(image: Image, name: str | None, topic_id: bytes = b"") -> Topic:
    """By name if there is one, else by id."""
    topic = image.topics_by_id.get(topic_id) if name is None else image.topics.get(name)
    if topic is not None:
        return topic
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id")
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist")


def check_not_internal(name: str) -> None:
    """Only coordinators write to their logs; everybody may read them."""
    if name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} belongs to the cluster's coordinators"
        )


def check_partition(topic: Topic, partition: int) -> None:
    if not 0 <= partition < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic.name}-{partition}"
        )


def create_topic(
    image: Image,
    name: str,
    topic_id: bytes,
    *,
    partition_count: int = -1,
    default_partition_count: int = -1,
    replication_factor: int = -1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    overrides: Mapping[str, str | None] | None = None,
) -> r.TopicCreated:
    """-1 leaves a choice to the cluster: a partition for every node, replicas on up to three."""
    check_topic_name(name)
    if name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is the cluster's own log")
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists")
    if name in INTERNAL_TOPICS:
        overrides = {**(overrides or {}), **_INTERNAL_CONFIGS}
    if assignments:
        if partition_count != -1 or replication_factor != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Give either assignments or a number of partitions and replicas, not both",
            )
        partitions = _assigned(image, assignments, first=0)
        target = len(partitions[0])
    else:
        if partition_count == -1:
            partition_count = default_partition_count
        if partition_count == -1:
            partition_count = max(1, len(image.nodes))
        _check_partition_count(partition_count)
        replicas = target = replication_factor
        if replication_factor == -1:
            target = DEFAULT_REPLICATION_FACTOR
            replicas = max(1, min(target, len(image.eligible())))
        partitions = place(image, partition_count, replicas, start=len(image.topics))
    return r.TopicCreated(
        name=name,
        topic_id=topic_id,
        replication_factor=target,
        partitions=partitions,
        configs=_consistent(_checked(TOPIC_RESOURCE, overrides or {})),
        voters=[image.incarnations(replicas) for replicas in partitions],
        pinned=list(range(len(partitions))) if assignments else [],
    )


def add_partitions(
    image: Image, name: str, count: int, assignments: Sequence[Sequence[int]] | None
) -> r.PartitionsAdded:
    check_not_internal(name)  # keys would go to other shards than the ones that know them
    topic = find_topic(image, name)
    _check_partition_count(count)
    existing = len(topic.partitions)
    if count <= existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {name!r} has {existing} partitions already; their number can only grow",
        )
    if assignments is None:
        possible = min(topic.replication_factor, len(image.eligible()))
        replicas = max(possible, len(topic.partitions[0]))
        added = place(image, count - existing, replicas, start=existing, topic_id=topic.topic_id)
    else:
        if len(assignments) != count - existing:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - existing} partitions are new, {len(assignments)} are assigned",
            )
        added = _assigned(image, dict(enumerate(assignments, existing)), first=existing)
    return r.PartitionsAdded(
        topic_id=topic.topic_id,
        partitions=added,
        voters=[image.incarnations(replicas) for replicas in added],
        pinned=[] if assignments is None else list(range(existing, count)),
    )


def reassign(
    image: Image,
    name: str,
    partition: int,
    replicas: Sequence[int] | None,
    *,
    current: Sequence[int] = (),
) -> r.PartitionReassigned:
    """An operator's wish. None calls a move off: back to `current`, the voters, oldest first."""
    topic = find_topic(image, name)
    check_partition(topic, partition)
    target = topic.partitions[partition]
    if replicas is not None:
        checked = _assigned(image, {partition: replicas}, first=partition)[0]
        return r.PartitionReassigned(
            topic_id=topic.topic_id, partition=partition, replicas=checked, pinned=True
        )
    if not current or set(current) == set(target):
        raise KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name}-{partition} is not being moved"
        )
    # A voter may have been added already whose predecessor is still there.
    back = list(current)[: max(len(target), topic.replication_factor)]
    return r.PartitionReassigned(topic_id=topic.topic_id, partition=partition, replicas=back)


def change_configs(
    image: Image, resource_type: int, resource_name: str, values: Mapping[str, str | None]
) -> r.ConfigChanged:
    check_resource(image, resource_type, resource_name)
    checked = _checked(resource_type, values)
    removed = {name: None for name, value in values.items() if value is None}
    if resource_type == TOPIC_RESOURCE and resource_name in INTERNAL_TOPICS:
        for name in ("cleanup.policy", "flush"):
            if name in values and checked.get(name) != _INTERNAL_CONFIGS[name]:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"With another {name} than {_INTERNAL_CONFIGS[name]} coordinators would "
                    "forget what they know",
                )
    if resource_type == TOPIC_RESOURCE:
        present = image.overrides(resource_type, resource_name)
        kept = {name: value for name, value in present.items() if name not in removed}
        _consistent({**kept, **checked})
    return r.ConfigChanged(
        resource_type=resource_type, resource_name=resource_name, values={**removed, **checked}
    )


def check_resource(image: Image, resource_type: int, resource_name: str) -> None:
    """Whether configs of this resource may be read and changed."""
    if resource_type == TOPIC_RESOURCE:
        check_topic_name(resource_name)
        find_topic(image, resource_name)
    elif resource_type == BROKER_RESOURCE:
        known = resource_name == "" or (
            resource_name.isdecimal() and int(resource_name) in image.nodes
        )
        if not known:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"No broker {resource_name!r}: give a node id, or nothing for all brokers",
            )
    else:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Configs of resource type {resource_type} don't exist: use topic (2) or broker (4)",
        )


def reserve_producer_ids(image: Image) -> r.ProducerIdsReserved:
    return r.ProducerIdsReserved(next_id=image.next_producer_id + PRODUCER_ID_BLOCK)


def _assigned(
    image: Image, assignments: Mapping[int, Sequence[int]], first: int
) -> list[list[int]]:
    problem = None
    widths = {len(replicas) for replicas in assignments.values()}
    if sorted(assignments) != list(range(first, first + len(assignments))):
        problem = "partitions must be numbered without a gap"
    elif len(widths) != 1 or 0 in widths:
        problem = "every partition needs the same number of replicas"
    elif any(len(set(replicas)) != len(replicas) for replicas in assignments.values()):
        problem = "a node can hold only one replica of a partition"
    elif any(node not in image.nodes for replicas in assignments.values() for node in replicas):
        problem = f"unknown node; there are {sorted(image.nodes)}"
    if problem:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Replica assignment refused: {problem}"
        )
    return [list(assignments[partition]) for partition in sorted(assignments)]


def _check_partition_count(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} partitions: a topic has from 1 to {MAX_PARTITIONS}",
        )


def _consistent(overrides: dict[str, str]) -> dict[str, str]:
    """A topic's own configs, unless they contradict each other."""
    low, high = (
        int(overrides.get(name, configs.TOPIC_CONFIGS[name].default))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if low > high:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms, {low}, is above max.compaction.lag.ms, {high}",
        )
    return overrides


def _checked(resource_type: int, values: Mapping[str, str | None]) -> dict[str, str]:
    known = configs.TOPIC_CONFIGS if resource_type == TOPIC_RESOURCE else configs.BROKER_CONFIGS
    checked = {}
    for name, value in values.items():
        config = known.get(name)
        if config is None:
            if value is None:
                continue
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config {name[:200]!r}")
        if config.read_only:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{name} is set when the node starts and can't be changed",
            )
        if value is not None:
            checked[name] = config.check(value)
    return checked
