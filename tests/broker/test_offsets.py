"""Where records lie, and what becomes of offsets when the records are gone."""

import asyncio
import errno
from pathlib import Path

import pytest
from crc32c import crc32c

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from sapwood.wire.records import encode_batch
from tests.broker.asking import Asking, on_a_loop, started


async def delete_before(it: Asking, topic: str, offset: int) -> Struct:
    wanted = [Struct(partition_index=0, offset=offset)]
    message = Struct(topics=[Struct(name=topic, partitions=wanted)], timeout=1000)
    answer = await it.answer(Api.DELETE_RECORDS, 1, message)
    result: Struct = answer.topics[0].partitions[0]
    return result


async def end_of_epoch(it: Asking, topic: str, epoch: int) -> tuple[int, int]:
    wanted = [Struct(partition=0, current_leader_epoch=-1, leader_epoch=epoch)]
    message = Struct(replica_id=-1, topics=[Struct(topic=topic, partitions=wanted)])
    answer = await it.answer(Api.OFFSET_FOR_LEADER_EPOCH, 3, message)
    result = answer.topics[0].partitions[0]
    return result.leader_epoch, result.end_offset


@on_a_loop
async def test_others_have_their_turn_while_a_record_is_looked_for_by_its_time(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        await it.create("lies", configs={"message.timestamp.type": "CreateTime"})
        for _ in range(30):
            batch = encode_batch([(5, None, b"value", ())])
            batch[35:43] = (1000).to_bytes(8, "big")  # the largest time, which no record has
            batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
            assert (await it.produced("lies", batch)).error_code == 0
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(others())
        wanted = [Struct(partition_index=0, current_leader_epoch=-1, timestamp=900)]
        topics = [Struct(name="lies", partitions=wanted)]
        message = Struct(replica_id=-1, isolation_level=0, topics=topics)
        answer = await it.answer(Api.LIST_OFFSETS, 5, message)
        running.cancel()
        assert answer.topics[0].partitions[0].offset == -1
        assert turns >= 30


@on_a_loop
async def test_an_epoch_that_was_deleted_ended_where_the_log_starts(tmp_path: Path) -> None:
    """A consumer that has read all of it must not think that the log was cut under its feet."""
    async with started(tmp_path) as it:
        await it.create("aged")
        await it.produced("aged")
    async with started(tmp_path) as it:
        await it.produced("aged")
        assert await end_of_epoch(it, "aged", 1) == (1, 1)
        assert (await delete_before(it, "aged", 1)).low_watermark == 1
        assert await end_of_epoch(it, "aged", 1) == (1, 1)
        assert await end_of_epoch(it, "aged", 2) == (2, 2)
        assert await end_of_epoch(it, "aged", 3) == (-1, -1)


@on_a_loop
async def test_a_disk_too_full_to_delete_records_does_not_cost_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    async with started(tmp_path) as it:
        await it.create("filled")
        await it.produced("filled")
        with monkeypatch.context() as broken:
            broken.setattr("sapwood.disk.os_disk.OsFile.pwrite", full)
            refused = await delete_before(it, "filled", 1)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await it.produced("filled")).error_code == 0
        assert (await delete_before(it, "filled", 2)).low_watermark == 2
