"""The partitions of a node: what goes offline, what comes back, what counts as a clean stop."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from sapwood.disk import File, Journal, OsDisk, SyncFailed
from sapwood.replica import JournalFailed, LogConfig, Plan, Replicas, Settings, Voter
from sapwood.replica.leaders import Leadership
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
async def test_a_partition_that_a_full_disk_kept_from_leading_leads_as_who_it_was_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refilled under another name it would be a voter less, though it has forgotten nothing."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    replicas = opened(OsDisk(), tmp_path)
    before = replicas.open(plan("t", TOPIC_ID, 0, settings()))
    assert before is not None
    before.produce(batch(b"a"), NOW_MS, None)
    await replicas.close()
    replicas = opened(OsDisk(), tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("sapwood.disk.os_disk.OsFile.pwrite", full)
        partition = replicas.open(plan("t", TOPIC_ID, 0, settings()))
        assert partition is not None
        assert partition.offline_reason is not None
    await replicas.upkeep()
    assert replicas.offline() == []
    again = replicas.get(TOPIC_ID, 0)
    assert again.group.me == before.group.me
    done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    again.produce(batch(b"b"), NOW_MS, done.set_result)
    assert await done is None
    assert values(again.read(0, 1 << 20, at_least_one=True)) == [b"a", b"b"]
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


@on_a_loop
async def test_a_compaction_that_fails_in_whatever_way_keeps_no_other_log_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> int | None:
        raise ValueError("something that nobody has thought of")

    replicas = opened(OsDisk(), tmp_path)
    compacted = settings(flush="os", segment_bytes=1024, cleanup_policy=frozenset({"compact"}))
    first = replicas.open(plan("first", TOPIC_ID, 0, compacted))
    second = replicas.open(plan("second", bytes(15) + b"\x08", 0, compacted))
    assert first is not None
    assert second is not None
    monkeypatch.setattr(first.log, "compact", failing)
    for number in range(30):
        value = (NOW_MS, b"key", b"%03d" % number * 30, ())
        second.produce(memoryview(encode_batch([value])), NOW_MS, None)
    await second.log.sync()
    before = second.log.size_bytes
    await replicas.upkeep()
    await eventually_on_loop(lambda: second.log.size_bytes < before)
    await replicas.close()


class Machine(OsDisk):
    def __init__(self, boot: str) -> None:
        super().__init__()
        self._boot = boot

    def boot_id(self) -> str:
        return self._boot


@on_a_loop
async def test_a_replica_that_may_have_forgotten_what_was_not_synced_is_another_one(
    tmp_path: Path,
) -> None:
    voters = (Voter(0, 0), Voter(1, 0), Voter(2, 0))

    def plan_of(index: int) -> Plan:
        return Plan("t", TOPIC_ID, index, settings(flush="os"), voters, (0, 1, 2))

    async def identities(boot: str, *indexes: int) -> list[Voter]:
        """Of replicas that are opened, and whose node is killed when they are known on disk."""
        replicas = opened(Machine(boot), tmp_path)
        await replicas.begin()
        found = [replicas.open(plan_of(index)) for index in indexes]
        partitions = [partition for partition in found if partition is not None]
        await eventually_on_loop(lambda: all(it.identity_is_durable for it in partitions))
        return [partition.group.me for partition in partitions]

    assert await identities("first", 0) == [Voter(0, 0)]
    assert await identities("first", 0, 1) == [Voter(0, 0), Voter(0, 0)]
    renamed, *new = await identities("second", 0, 2)
    assert renamed not in voters
    assert new == [Voter(0, 0)]
    assert await identities("second", 0) == [renamed]


@on_a_loop
async def test_a_new_replica_that_does_not_sync_promises_nothing_before_its_identity_is_on_disk(
    tmp_path: Path,
) -> None:
    voters = (Voter(0, 0), Voter(1, 0), Voter(2, 0))
    replicas = opened(OsDisk(), tmp_path)
    partition = replicas.open(Plan("t", TOPIC_ID, 0, settings(flush="os"), voters, (0, 1, 2)))
    assert partition is not None
    partition.log.append_marker(1, 0, NOW_MS)
    assert partition.durable == (-1, 0)
    await eventually_on_loop(lambda: partition.durable == (1, 0))


THREE = (Voter(0, 0), Voter(1, 0), Voter(2, 0))


def notes_of(place: Path, topic_id: bytes) -> list[bytes]:
    journal = Journal.open(OsDisk(), str(place / "journal"))
    names = [key for key, _ in journal.items() if topic_id.hex().encode() in key]
    journal.close()
    return names


@on_a_loop
async def test_a_replica_that_was_moved_away_comes_back_as_another_voter(tmp_path: Path) -> None:
    """Those who didn't hear of its removal still count the one it was, whose log it has no more."""
    moved = Plan("t", TOPIC_ID, 0, settings(), THREE, (0, 1, 2))
    replicas = opened(OsDisk(), tmp_path)
    first = replicas.open(moved)
    assert first is not None
    assert first.group.me == THREE[0]
    first.log.append_marker(1, 0, NOW_MS)
    replicas.remove_replica(first.key)
    await eventually_on_loop(lambda: os.listdir(tmp_path / "logs") == [])
    await replicas.close()
    replicas = opened(OsDisk(), tmp_path)
    again = replicas.open(moved)
    assert again is not None
    assert again.group.me not in THREE
    assert again.log.position == (-1, 0)
    await replicas.close()


@on_a_loop
async def test_a_replica_that_is_wanted_back_at_once_is_opened_when_its_files_are_gone(
    tmp_path: Path,
) -> None:
    moved = Plan("t", TOPIC_ID, 0, settings(), THREE, (0, 1, 2))
    replicas = opened(OsDisk(), tmp_path)
    first = replicas.open(moved)
    assert first is not None
    first.log.append_marker(1, 0, NOW_MS)
    replicas.remove_replica(first.key)
    assert replicas.open(moved) is None
    await eventually_on_loop(lambda: replicas.find(TOPIC_ID, 0) is not None)
    again = replicas.get(TOPIC_ID, 0)
    assert again.group.me not in THREE
    assert again.log.position == (-1, 0)
    assert os.listdir(tmp_path / "logs") != []
    await replicas.close()


@on_a_loop
async def test_no_files_of_a_replica_go_before_it_is_on_disk_that_it_is_another_one(
    tmp_path: Path,
) -> None:
    disk = JournalsEnd()
    replicas = opened(disk, tmp_path)
    moved = Plan("t", TOPIC_ID, 0, settings(), THREE, (0, 1, 2))
    partition = replicas.open(moved)
    assert partition is not None
    disk.fails = True
    replicas.remove_replica(partition.key)
    replicas.open(moved)
    await eventually_on_loop(lambda: replicas.find(TOPIC_ID, 0) is not None)
    assert os.listdir(tmp_path / "logs") != []
    with pytest.raises(JournalFailed):
        await replicas.upkeep()


@on_a_loop
async def test_nothing_is_noted_of_a_topic_that_is_deleted_after_its_replica_was_moved_away(
    tmp_path: Path,
) -> None:
    replicas = opened(OsDisk(), tmp_path)
    other = bytes(15) + b"\x08"
    for topic_id in (TOPIC_ID, other):
        partition = replicas.open(Plan("t", topic_id, 0, settings(), THREE, (0, 1, 2)))
        assert partition is not None
        replicas.remove_replica(partition.key)
    await eventually_on_loop(lambda: os.listdir(tmp_path / "logs") == [])
    await replicas.close()
    replicas = opened(OsDisk(), tmp_path)  # deleted while this node was away
    replicas.remove(TOPIC_ID)
    await replicas.close()
    assert notes_of(tmp_path, TOPIC_ID) == []
    assert notes_of(tmp_path, other) != []


class JournalsEnd(OsDisk):
    """A disk whose journal can't be synced any more."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def sync(self, file: File) -> asyncio.Future[None]:
        if not self.fails or not file.path.endswith("journal"):
            return super().sync(file)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(SyncFailed(errno.EIO, "sync failed"))
        return future


@on_a_loop
async def test_upkeep_tells_the_end_of_the_journal_from_a_passing_trouble_always(
    tmp_path: Path,
) -> None:
    disk = JournalsEnd()
    replicas = opened(disk, tmp_path)
    await replicas.begin()
    partition = replicas.open(plan("t", TOPIC_ID, 0, settings()))
    assert partition is not None
    partition.take_offline("a test says so")
    replicas.exchange.leaders.note(partition.key, Leadership(1, 1, (Voter(1, 0),), (1,)))
    disk.fails = True
    with pytest.raises(JournalFailed):
        await replicas.upkeep()
    with pytest.raises(JournalFailed):
        await replicas.upkeep()
