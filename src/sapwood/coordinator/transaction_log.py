"""The records of `__transaction_state`: Kafka's formats, and one of our own for groups of them."""

from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from sapwood.coordinator.stored import Format, version_of
from sapwood.coordinator.transaction import State, Transaction
from sapwood.wire.codec import Struct
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.private.words import Message, int8, int16, int32, int64, string

StoredRecord: TypeAlias = tuple[bytes, bytes | None]


class GroupKey(NamedTuple):
    """Whose last batch the value tells."""

    query: str


def _tagged_int64(tag: int) -> Any:
    return field(metadata={"kafka_type": "int64", "tag": tag}, default=-1)


class KeyBody(Message):
    __flexible__ = False
    name: str = string()


class PartitionsBefore1(Message):
    __flexible__ = False
    topic: str = string()
    partition_ids: tuple[int, ...] = int32()


class ValueBefore1(Message):
    __flexible__ = False
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: tuple[PartitionsBefore1, ...] | None
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()


class Partitions(Message):
    topic: str = string()
    partition_ids: tuple[int, ...] = int32()


class Value(Message):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: tuple[Partitions, ...] | None
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    previous_producer_id: int = _tagged_int64(0)
    next_producer_id: int = _tagged_int64(1)
    client_transaction_version: int = field(metadata={"kafka_type": "int16", "tag": 2}, default=0)


class GroupValue(Message):
    batch_id: int = int64()
    updated_ms: int = int64()


TRANSACTION_KEY = Format(KeyBody, 0)
GROUP_KEY = Format(KeyBody, 20_000)  # Kafka's tools skip keys of versions that they don't know
VALUES = {0: Format(ValueBefore1, 0), 1: Format(Value, 1)}
WRITTEN = VALUES[1]  # version 0 has no room for the previous producer id
GROUP_VALUE = Format(GroupValue, 0)


def encode_transaction(transaction: Transaction) -> StoredRecord:
    by_topic: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        by_topic.setdefault(topic, []).append(index)
    value = WRITTEN.encode(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=[
            Struct(topic=topic, partition_ids=indexes) for topic, indexes in by_topic.items()
        ],
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=-1,
        client_transaction_version=0,
    )
    return transaction_key(transaction.transactional_id), value


def transaction_key(transactional_id: str) -> bytes:
    return TRANSACTION_KEY.encode(name=transactional_id)


def encode_group(query: str, batch_id: int, now_ms: int) -> StoredRecord:
    value = GROUP_VALUE.encode(batch_id=batch_id, updated_ms=now_ms)
    return group_key(query), value


def group_key(query: str) -> bytes:
    return GROUP_KEY.encode(name=query)


def decode_key(key: bytes) -> str | GroupKey | None:
    """A transactional id, or whose group; None is somebody else's kind of record."""
    version = version_of(key)
    if version == TRANSACTION_KEY.version:
        name: str = TRANSACTION_KEY.decode(key).name
        return name
    return GroupKey(GROUP_KEY.decode(key).name) if version == GROUP_KEY.version else None


def decode_transaction(transactional_id: str, value: bytes) -> Transaction:
    form = VALUES.get(version_of(value))
    if form is None:
        raise MalformedMessage(f"the state of {transactional_id} has an unknown version")
    stored = form.decode(value)
    return Transaction(
        transactional_id,
        stored.producer_id,
        stored.producer_epoch,
        stored.transaction_timeout_ms,
        State(stored.transaction_status),
        {
            (topic.topic, index): None
            for topic in stored.transaction_partitions or ()
            for index in topic.partition_ids
        },
        stored.transaction_last_update_timestamp_ms,
        stored.transaction_start_timestamp_ms,
        getattr(stored, "previous_producer_id", -1),
    )


def decode_group(value: bytes) -> int:
    """The last batch that was committed."""
    batch_id: int = GROUP_VALUE.decode(value).batch_id
    return batch_id
