"""The metadata log: out of everybody's reach, and no reason to drop a connection."""

import errno
from pathlib import Path

import pytest

from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.broker.asking import batch, on_a_loop, started

METADATA = "__cluster_metadata"


@on_a_loop
async def test_nobody_writes_reads_or_creates_the_metadata_log_by_its_name(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        written = await it.produced(METADATA, batch(b"junk"))
        read = await it.fetch(METADATA)
        (created,) = await it.create(METADATA)
        await it.create("kept")
    assert written.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert read.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert created.error_code == ErrorCode.INVALID_REQUEST
    async with started(tmp_path) as it:
        assert (await it.produced("kept")).error_code == 0


@on_a_loop
async def test_a_topic_that_can_not_be_made_on_demand_is_told_and_costs_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    wanted = Struct(topics=[Struct(name="wanted")], allow_auto_topic_creation=True)
    async with started(tmp_path) as it:
        with monkeypatch.context() as broken:
            broken.setattr("sapwood.disk.os_disk.OsFile.pwrite", full)
            refused = await it.answer(Api.METADATA, 7, wanted)
        made = await it.answer(Api.METADATA, 7, wanted)
    assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert made.topics[0].error_code == 0
