"""Produce: who is told what, and what is kept until then."""

import asyncio
import tracemalloc
from pathlib import Path

from sapwood.wire.errors import ErrorCode
from tests.broker.asking import Peer, batch, on_a_loop, started
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


@on_a_loop
async def test_what_follows_a_refused_batch_over_the_same_connection_waits_until_that_one_has_come(
    tmp_path: Path,
) -> None:
    """The topic comes to be between the two: the log must not begin with the second."""
    async with started(tmp_path) as it:
        first, second = numbered(0), numbered(1)
        refused = await it.produced("late", first)
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await it.create("late")
        early = await it.produced("late", second)
        assert early.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        stored = [await it.produced("late", numbered(n)) for n in (0, 1)]
        assert [(result.error_code, result.base_offset) for result in stored] == [(0, 0), (0, 1)]


@on_a_loop
async def test_a_producer_that_nobody_knows_may_begin_anywhere_over_a_new_connection(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        await it.produced("late", numbered(0))
        await it.create("late")
        it.peer = Peer()
        assert (await it.produced("late", numbered(5))).error_code == 0


@on_a_loop
async def test_a_batch_that_was_refused_here_and_stored_over_another_way_holds_nothing_up(
    tmp_path: Path,
) -> None:
    """As when another node led meanwhile: over the first connection it never comes again."""
    async with started(tmp_path) as it:
        await it.produced("late", numbered(0))
        await it.create("late")
        first, it.peer = it.peer, Peer()
        stored = [await it.produced("late", numbered(n)) for n in (0, 1)]
        it.peer = first
        stored.append(await it.produced("late", numbered(2)))
        assert [result.error_code for result in stored] == [0, 0, 0]


def numbered(sequence: int) -> bytes:
    return batch(b"value", producer_id=7, producer_epoch=0, base_sequence=sequence)
