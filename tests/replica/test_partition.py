"""A partition on real files, with a disk whose syncs the test holds back or breaks."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from sapwood.disk import OsDisk
from sapwood.log import FIRST_ID, Log, LogConfig
from sapwood.raft import Group, HardState, Timing, Voter
from sapwood.replica import Partition, Rules
from sapwood.replica.raft_log import GroupLog
from sapwood.wire.batch import iterate
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import decode_batch, encode_batch
from tests.replica.held import HeldDisk

RULES = Rules(
    max_message_bytes=1 << 20,
    append_time=False,
    timestamp_before_max_ms=2**62,
    timestamp_after_max_ms=3_600_000,
    compression=None,
    compacted=False,
    min_insync_replicas=1,
)
NOW_MS = 1_700_000_000_000


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def committed(self, partition: Partition, size_bytes: int) -> None:
        self.told.append((partition.high_watermark, size_bytes))


class Acknowledgements:
    def __init__(self) -> None:
        self.seen: list[tuple[str, ErrorCode]] = []

    def __call__(self, name: str) -> Callable[[KafkaError | None], None]:
        return lambda error: self.seen.append((name, error.code if error else ErrorCode.NONE))


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def batch(*values: bytes, producer_id: int = -1, sequence: int = -1) -> memoryview:
    return memoryview(
        encode_batch(
            [(NOW_MS, None, value, ()) for value in values],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
        )
    )


class Alone:
    """A host without other nodes."""

    def hybrid_now(self) -> int:
        return 1

    def nothing(self, *_: object, **__: object) -> None:
        pass

    save = ask = hand_over = role_changed = progressed = went_offline = grew = nothing


async def opened(disk: OsDisk, path: Path, flush: str = "sync") -> Partition:
    """A partition that has come to lead, as the only one of its group."""
    disk.makedirs(str(path))
    log = Log.open(
        disk,
        str(path / "t-0"),
        LogConfig(flush=flush),
        durable_end=0,
        clean=False,
        now_ms=NOW_MS,
    )
    me = Voter(0, 0)
    group = Group(
        me,
        GroupLog(log, lambda: 1, lambda: NOW_MS),
        (me,),
        HardState(),
        high_watermark=0,
        timing=Timing(),
        now=0.0,
    )
    partition = Partition("t", bytes(16), 0, log, RULES, group, Alone())
    partition.tell(Group.tick, asyncio.get_running_loop().time())
    if isinstance(disk, HeldDisk):
        await disk.release()
    else:
        await log.sync()
        await asyncio.sleep(0)
    assert partition.is_confirmed
    return partition


def values(views: Sequence[memoryview]) -> list[bytes | None]:
    return [
        record.value
        for view in views
        for position, _ in iterate(view)
        for record in decode_batch(view, position)
    ]


@on_a_loop
async def test_nothing_is_acknowledged_or_read_before_its_sync(tmp_path: Path) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    acks = Acknowledgements()
    partition.produce(batch(b"a"), NOW_MS, acks("a"))
    assert acks.seen == []
    assert partition.high_watermark == 0
    assert partition.read(0, 1000, at_least_one=True) == []
    await disk.release()
    assert acks.seen == [("a", ErrorCode.NONE)]
    assert values(partition.read(0, 1000, at_least_one=True)) == [b"a"]


@on_a_loop
async def test_what_comes_during_a_sync_shares_the_next_one(tmp_path: Path) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    acks = Acknowledgements()
    for name in "abcd":
        partition.produce(batch(name.encode()), NOW_MS, acks(name))
    assert len(disk.held) == 2
    await disk.release()
    assert acks.seen == [("a", ErrorCode.NONE)]
    assert len(disk.held) == 1
    await disk.release()
    assert acks.seen == [(name, ErrorCode.NONE) for name in "abcd"]
    assert disk.held == []


@on_a_loop
async def test_a_repeat_is_acknowledged_with_its_original_and_never_before(tmp_path: Path) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    acks = Acknowledgements()
    first = partition.produce(batch(b"a", producer_id=7, sequence=0), NOW_MS, acks("original"))
    again = partition.produce(batch(b"a", producer_id=7, sequence=0), NOW_MS, acks("repeat"))
    assert again.base_offset == first.base_offset == 0
    assert partition.log.end_offset == 1
    assert acks.seen == []
    await disk.release()
    assert acks.seen == [("original", ErrorCode.NONE), ("repeat", ErrorCode.NONE)]
    partition.produce(batch(b"a", producer_id=7, sequence=0), NOW_MS, acks("late repeat"))
    assert acks.seen[-1] == ("late repeat", ErrorCode.NONE)


@on_a_loop
async def test_a_message_that_is_put_again_is_acknowledged_with_its_original(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    acks = Acknowledgements()
    puts = [(1, "original"), (2, "other"), (1, "repeat")]
    offsets = [
        partition.produce(
            batch(b"a", producer_id=FIRST_ID + number, sequence=9), NOW_MS, acks(name)
        ).base_offset
        for number, name in puts
    ]
    assert offsets == [0, 1, 0]
    assert (partition.log.end_offset, acks.seen) == (2, [])
    await disk.release()
    await disk.release()
    assert sorted(name for name, _ in acks.seen) == ["original", "other", "repeat"]


@on_a_loop
async def test_a_repeat_is_told_the_time_at_which_its_original_was_appended(tmp_path: Path) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    partition.rules = replace(RULES, append_time=True)
    times = [
        partition.produce(batch(b"a", producer_id=7, sequence=0), now_ms, None).timestamp_ms
        for now_ms in (NOW_MS, NOW_MS + 5)
    ]
    assert times == [NOW_MS, NOW_MS]


@on_a_loop
async def test_a_topic_that_turns_to_os_buffering_under_load_stops_syncing(tmp_path: Path) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    partition.produce(batch(b"a"), NOW_MS, None)
    partition.log.config = replace(partition.log.config, flush="os")
    partition.produce(batch(b"b"), NOW_MS, None)
    await disk.release()
    assert disk.held == []
    assert partition.high_watermark == 2


@on_a_loop
async def test_a_failed_sync_takes_the_partition_offline_and_is_not_tried_again(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    acks, listener = Acknowledgements(), Listener()
    partition.listen(listener)
    partition.produce(batch(b"a"), NOW_MS, acks("a"))
    partition.produce(batch(b"b"), NOW_MS, acks("b"))
    await disk.fail()
    assert acks.seen == [(name, ErrorCode.KAFKA_STORAGE_ERROR) for name in "ab"]
    assert partition.offline_reason is not None
    assert "sync" in partition.offline_reason
    assert listener.told == [(0, 0)], "whoever waits is told, so that nobody waits for nothing"
    for attempt in (
        lambda: partition.produce(batch(b"c"), NOW_MS, acks("c")),
        lambda: partition.read(0, 1000, at_least_one=True),
    ):
        with pytest.raises(KafkaError, match="offline"):
            attempt()
    assert disk.held == []


@on_a_loop
async def test_os_buffered_topics_commit_at_once(tmp_path: Path) -> None:
    disk = HeldDisk()
    partition = await opened(disk, tmp_path, flush="os")
    acks, listener = Acknowledgements(), Listener()
    partition.listen(listener)
    sent = batch(b"a", b"b")
    partition.produce(sent, NOW_MS, acks("ab"))
    assert acks.seen == [("ab", ErrorCode.NONE)]
    assert listener.told == [(2, len(sent))]
    assert disk.held == []
    partition.unlisten(listener)
    partition.produce(batch(b"c"), NOW_MS, None)
    assert len(listener.told) == 1


@on_a_loop
async def test_a_write_that_fails_costs_only_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    partition = await opened(disk, tmp_path, flush="os")
    acks = Acknowledgements()
    partition.produce(batch(b"a", producer_id=7, sequence=0), NOW_MS, acks("a"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("sapwood.disk.os_disk.OsFile.pwrite", full)
        with pytest.raises(KafkaError, match="no space") as refused:
            partition.produce(batch(b"b", producer_id=7, sequence=1), NOW_MS, acks("b"))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    partition.produce(batch(b"b", producer_id=7, sequence=1), NOW_MS, acks("b again"))
    assert acks.seen == [("a", ErrorCode.NONE), ("b again", ErrorCode.NONE)]
    assert values(partition.read(0, 1000, at_least_one=True)) == [b"a", b"b"]


@on_a_loop
async def test_too_many_open_files_fail_a_read_and_not_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await opened(OsDisk(), tmp_path, flush="os")
    partition.produce(batch(b"a"), NOW_MS, None)

    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as broken:
        broken.setattr("sapwood.disk.os_disk.OsFile.pread", exhausted)
        with pytest.raises(KafkaError, match="too many open files") as refused:
            partition.read(0, 1000, at_least_one=True)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert values(partition.read(0, 1000, at_least_one=True)) == [b"a"]


@on_a_loop
async def test_every_start_leads_in_a_new_epoch(tmp_path: Path) -> None:
    disk = OsDisk()
    for epoch in (1, 2, 3):
        partition = await opened(disk, tmp_path, flush="os")
        assert partition.leader_epoch == epoch
        partition.produce(batch(b"x"), NOW_MS, None)
        await partition.log.sync()
        partition.log.close()
    partition = await opened(disk, tmp_path, flush="os")
    assert [partition.log.end_of_epoch(epoch) for epoch in (1, 2, 3)] == [(1, 1), (2, 2), (3, 3)]
