"""Topics made and deleted while others are at work."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from sapwood.log import Log
from sapwood.replica import Replicas
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.broker.asking import Asking, on_a_loop, started
from tests.replica.held import HeldDisk

PARTITIONS = 30


async def watched(count: Callable[[], int], work: asyncio.Task[list[Struct]]) -> list[int]:
    """What was counted at each turn of the loop until the work was done and all was counted."""
    seen = [count()]
    while not work.done() or seen[-1] < PARTITIONS:
        await asyncio.sleep(0)
        seen.append(count())
    return seen


def steps(seen: list[int]) -> set[int]:
    return {after - before for before, after in itertools.pairwise(seen)}


@on_a_loop
async def test_others_get_their_turn_while_a_topic_of_many_partitions_is_made_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded: list[str] = []
    async with started(tmp_path) as it:
        replicas: Replicas = it.broker.state.replicas
        first = sum(1 for _ in replicas)
        making = asyncio.create_task(it.create("many", partitions=PARTITIONS))
        assert steps(await watched(lambda: sum(1 for _ in replicas) - first, making)) == {0, 1}

        discard = Log.discard

        def counted(log: Log) -> None:
            discarded.append(log.directory)
            discard(log)

        monkeypatch.setattr(Log, "discard", counted)
        deleting = asyncio.create_task(it.delete("many"))
        assert steps(await watched(lambda: len(discarded), deleting)) == {0, 1}


@on_a_loop
async def test_who_waits_for_a_deleted_topic_is_told_that_it_is_unknown(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with started(tmp_path, disk) as it:
        await disk.releasing(it.create("short-lived"))
        writing = asyncio.create_task(it.produced("short-lived"))
        reading = asyncio.create_task(it.fetch("short-lived", max_wait_ms=50_000))
        await asyncio.sleep(0)
        (deleted,) = await disk.releasing(it.delete("short-lived"), only="__cluster_metadata")
        assert deleted.error_code == 0
        assert (await writing).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await reading).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_a_loop
async def test_a_topic_can_be_deleted_and_made_again_at_once(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        for _ in range(3):
            await it.create("again", partitions=2)
            assert (await it.produced("again")).base_offset == 0
            await it.delete("again")
        assert (await it.produced("again")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_a_loop
async def test_a_deletion_that_is_asked_for_twice_or_without_a_name_is_refused(
    tmp_path: Path,
) -> None:
    async def deleted(it: Asking, *wanted: tuple[str | None, bytes]) -> list[Struct]:
        topics = [Struct(name=name, topic_id=topic_id) for name, topic_id in wanted]
        message = Struct(topics=topics, timeout=1000)
        answers: list[Struct] = (await it.answer(Api.DELETE_TOPICS, 6, message)).responses
        return answers

    async with started(tmp_path) as it:
        (created,) = await it.create("kept")
        topic_id = it.broker.state.image.topics["kept"].topic_id
        for refused in (
            await deleted(it, ("kept", bytes(16)), ("kept", bytes(16))),
            await deleted(it, ("kept", topic_id)),
            await deleted(it, (None, bytes(16))),
        ):
            assert [answer.error_code for answer in refused] == [ErrorCode.INVALID_REQUEST]
        assert (await it.produced("kept")).error_code == 0
        assert [it.error_code for it in await deleted(it, (None, topic_id))] == [0]
    assert created.error_code == 0
