"""The partitions of a node: what goes offline, what comes back, what counts as a clean stop."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from sapwood.disk import Journal, OsDisk
from sapwood.replica import LogConfig, Plan, Replicas, Settings, Voter
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import encode_batch
from tests.helpers import eventually_on_loop
from tests.replica.held import HeldDisk
from tests.replica.test_partition import NOW_MS, RULES, batch, on_a_loop, values

TOPIC_ID = bytes(15) + b"\7"


def settings(**changes: object) -> Settings:
    return Settings(LogConfig(**changes), RULES)  # type: ignore[arg-type]


def plan(topic: str, topic_id: bytes, index: int, settings: Settings) -> Plan:
    return Plan(topic, topic_id, index, settings, (Voter(0, 0),), (0,))


def opened(disk: OsDisk, place: Path) -> Replicas:
    return Replicas(disk, str(place), lambda: NOW_MS)


@on_a_loop
async def test_a_sync_that_fails_unasked_takes_an_os_buffered_partition_offline(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    replicas = opened(disk, tmp_path)
    partition = replicas.open(plan("t", TOPIC_ID, 0, settings(flush="os", segment_bytes=1024)))
    assert partition is not None
    while not disk.held:  # the first segment that is closed is synced
        partition.produce(batch(bytes(500)), NOW_MS, None)
    await disk.fail()
    await replicas.upkeep()
    assert [(topic, index) for topic, index, _ in replicas.offline()] == [("t", 0)]
    assert replicas.offline_total == 1
    with pytest.raises(KafkaError, match="sync failed") as refused:
        partition.read(0, 100, at_least_one=True)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@on_a_loop
async def test_a_stop_with_a_partition_offline_is_not_a_clean_one(tmp_path: Path) -> None:
    """Its log was not closed: a torn tail of it is to be cut then, not taken for damage."""
    disk = HeldDisk()
    for failing in (True, False):
        replicas = opened(disk, tmp_path)
        await replicas.begin()
        partition = replicas.open(plan("t", TOPIC_ID, 0, settings()))
        assert partition is not None
        disk.hold = failing
        partition.produce(batch(b"a"), NOW_MS, None)
        await disk.fail()
        await replicas.close()
        disk.hold = False
        journal = Journal.open(disk, str(tmp_path / "journal"))
        assert (journal.get(b"clean-stop") is None) is failing


@on_a_loop
async def test_a_partition_that_a_full_disk_kept_from_being_made_is_made_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    replicas = opened(OsDisk(), tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("sapwood.disk.os_disk.os.mkdir", full)
        assert replicas.open(plan("t", TOPIC_ID, 0, settings())) is None
        await replicas.upkeep()
    with pytest.raises(KafkaError, match="no space") as refused:
        replicas.get(TOPIC_ID, 0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    await replicas.upkeep()
    assert replicas.offline() == []
    done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    replicas.get(TOPIC_ID, 0).produce(batch(b"a"), NOW_MS, done.set_result)
    assert await done is None
    await replicas.close()


@on_a_loop
async def test_upkeep_compacts_and_a_topic_may_be_deleted_meanwhile(tmp_path: Path) -> None:
    replicas = opened(OsDisk(), tmp_path)
    compacted = settings(flush="os", segment_bytes=1024, cleanup_policy=frozenset({"compact"}))
    kept = replicas.open(plan("kept", TOPIC_ID, 0, compacted))
    gone = replicas.open(plan("gone", bytes(15) + b"\x08", 0, compacted))
    assert kept is not None
    assert gone is not None
    for partition in (kept, gone):
        for number in range(30):
            value = (NOW_MS, b"key", b"%03d" % number * 30, ())
            partition.produce(memoryview(encode_batch([value])), NOW_MS, None)
        await partition.log.sync()
    before = kept.log.size_bytes
    await replicas.upkeep()
    await eventually_on_loop(lambda: kept.log.size_bytes < before)
    replicas.remove(gone.topic_id)
    await eventually_on_loop(lambda: len(os.listdir(tmp_path / "logs")) == 1)
    newest = kept.read(29, 1 << 20, at_least_one=True)
    assert values(newest) == [b"029" * 30]
    await replicas.upkeep()
    await replicas.close()
