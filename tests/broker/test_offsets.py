"""Where records lie, and what becomes of offsets when the records are gone."""

import errno
from pathlib import Path

import pytest

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
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
