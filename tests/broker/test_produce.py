"""Produce: who is told what, and what is kept until then."""

import asyncio
import tracemalloc
from pathlib import Path

from sapwood.wire.errors import ErrorCode
from tests.broker.asking import batch, on_a_loop, started
from tests.helpers import MIB
from tests.replica.held import HeldDisk


@on_a_loop
async def test_without_acknowledgement_nothing_is_kept_in_memory_until_the_sync(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    async with started(tmp_path, disk) as it:
        await disk.releasing(it.create("fast", configs={"max.message.bytes": str(2 * MIB)}))
        large = batch(bytes(MIB))
        tracemalloc.start()
        try:
            for _ in range(16):
                assert await it.produce("fast", large, acks=0) is None
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < MIB
        assert not it.peer.finished


@on_a_loop
async def test_without_acknowledgement_the_end_of_the_connection_tells_of_an_error(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        assert await it.produce("missing", acks=0) is None
        assert it.peer.finished


@on_a_loop
async def test_only_waiting_for_other_replicas_has_a_timeout(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with started(tmp_path, disk) as it:
        await disk.releasing(it.create("slow"))
        by_one = asyncio.create_task(it.produced("slow", acks=1, timeout_ms=0))
        by_all = asyncio.create_task(it.produced("slow", acks=-1, timeout_ms=0))
        assert (await by_all).error_code == ErrorCode.REQUEST_TIMED_OUT
        await disk.release()
        assert (await by_one).error_code == 0


@on_a_loop
async def test_a_message_that_quotes_a_long_request_still_fits_an_older_version(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        answer = await it.produced("n" * 32_700, version=8)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
