"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where a partition's records lie."""

import asyncio
from operator import methodcaller

from sapwood.broker.fetch import READ_COMMITTED, check_leader_epoch
from sapwood.broker.state import BrokerState
from sapwood.replica import Partition
from sapwood.server import Request
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


async def list_offsets(state: BrokerState, request: Request, message: Struct) -> Struct:
    stable = getattr(message, "isolation_level", 0) == READ_COMMITTED

    async def one(topic: Struct, wanted: Struct) -> Struct:
        result = Struct(
            partition_index=wanted.partition_index,
            error_code=0,
            timestamp=-1,
            offset=-1,
            leader_epoch=-1,
        )
        try:
            partition = state.partition(topic.name, b"", wanted.partition_index)
            check_leader_epoch(partition, getattr(wanted, "current_leader_epoch", -1))
            partition.check_newest()
            limit = partition.last_stable_offset if stable else partition.high_watermark
            epoch = partition.leader_epoch
            found = await _offset_at(state, partition, wanted.timestamp, limit)
            result.timestamp, result.offset = found
        except KafkaError as error:
            result.error_code = int(error.code)
        else:
            if result.offset >= 0:
                result.leader_epoch = epoch
        return result

    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[await one(topic, wanted) for wanted in topic.partitions],
            )
            for topic in message.topics
        ]
    )


async def _offset_at(
    state: BrokerState, partition: Partition, timestamp: int, limit: int
) -> tuple[int, int]:
    """(timestamp, offset); -1 where there is none below the limit."""
    if timestamp == LATEST:
        return -1, limit
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, partition.log.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1  # nothing is ever tiered
    if timestamp == MAX_TIMESTAMP:
        timestamp = partition.look_up(lambda log: log.largest_timestamp(limit))
        if timestamp < 0:
            return -1, -1
    elif timestamp < 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Timestamp {timestamp} means nothing here")
    found: tuple[int, int] | int | None = 0
    while isinstance(found, int):
        search = methodcaller("offset_for_timestamp", timestamp, limit, found)
        async with state.searching:
            found = partition.look_up(search)
            if isinstance(found, int):
                await asyncio.sleep(0)
    return (-1, -1) if found is None else (found[1], found[0])


def offset_for_leader_epoch(state: BrokerState, request: Request, message: Struct) -> Struct:
    def one(topic: Struct, wanted: Struct) -> Struct:
        result = Struct(partition=wanted.partition, error_code=0, leader_epoch=-1, end_offset=-1)
        try:
            partition = state.partition(topic.topic, b"", wanted.partition)
            check_leader_epoch(partition, wanted.current_leader_epoch)
            partition.check_confirmed()
            epoch, end = _epoch_end(partition, wanted.leader_epoch)
            result.leader_epoch, result.end_offset = epoch, end
        except KafkaError as error:
            result.error_code = int(error.code)
        return result

    return Struct(
        topics=[
            Struct(
                topic=topic.topic, partitions=[one(topic, wanted) for wanted in topic.partitions]
            )
            for topic in message.topics
        ]
    )


def _epoch_end(partition: Partition, epoch: int) -> tuple[int, int]:
    if epoch == partition.leader_epoch:
        return epoch, partition.high_watermark
    if epoch > partition.leader_epoch or epoch < 0:
        return -1, -1
    known, end = partition.look_up(lambda log: log.end_offset_for_epoch(epoch))
    if known < 0 and epoch < partition.log.last_epoch:
        # All of that epoch was deleted. It ended no later than the log now starts; were it
        # called unknown, consumers that stand there would think the log was cut and start anew.
        return epoch, partition.log.start_offset
    return known, end


async def delete_records(state: BrokerState, request: Request, message: Struct) -> Struct:
    async def one(topic: Struct, wanted: Struct) -> Struct:
        result = Struct(partition_index=wanted.partition_index, error_code=0, low_watermark=-1)
        try:
            partition = state.partition(topic.name, b"", wanted.partition_index)
            result.low_watermark = await _delete_before(partition, wanted.offset)
        except KafkaError as error:
            result.error_code = int(error.code)
        return result

    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[await one(topic, wanted) for wanted in topic.partitions],
            )
            for topic in message.topics
        ]
    )


async def _delete_before(partition: Partition, offset: int) -> int:
    partition.check_confirmed()
    if "delete" not in partition.log.config.cleanup_policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{partition} is only compacted: nothing can be deleted"
        )
    if offset == -1:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition} ends at {partition.high_watermark}"
        )
    if offset > partition.log.start_offset:
        await partition.advance_start(offset)
    return partition.log.start_offset
