"""The metadata log: out of everybody's reach, and no reason to drop a connection."""

import errno
import os
from pathlib import Path

import pytest

from sapwood.broker import Broker, BrokerConfig
from sapwood.broker.broker import MetadataLost
from sapwood.disk import OsDisk
from sapwood.metadata import records as r
from sapwood.metadata.image import TOPIC_RESOURCE
from sapwood.raft import START
from sapwood.replica import Voter
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.broker.asking import ADVERTISED, batch, on_a_loop, started
from tests.helpers import eventually_on_loop

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


@on_a_loop
async def test_a_node_that_got_the_metadata_as_a_snapshot_still_has_them_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sapwood.broker.store.SNAPSHOT_RECORDS", 4)
    async with started(tmp_path / "0") as it:
        await it.create("orders", "parcels", "bills", "returns")
        metadata = it.broker.state.store.partition
        await eventually_on_loop(lambda: metadata.log.start_offset > 0)
        snapshot = metadata.snapshot()

    config = BrokerConfig(node_id=1, advertised=ADVERTISED, metadata_voters=(Voter(0, 0),))
    for is_told in (True, False):
        broker = Broker(config, OsDisk(), str(tmp_path / "1"))
        await broker.start()
        if is_told:
            broker.state.store.partition.restore(snapshot, 0)
        assert set(broker.state.image.topics) == {"orders", "parcels", "bills", "returns"}
        await broker.stop()


@on_a_loop
async def test_a_running_node_follows_moves_and_settings_that_it_learns_of_by_a_snapshot(
    tmp_path: Path,
) -> None:
    """Only the newest state is in it: not that a replica moved, nor that a default is back."""
    topic_id = bytes(15) + b"\7"
    created: r.Record = r.TopicCreated(
        name="orders",
        topic_id=topic_id,
        replication_factor=1,
        partitions=[[1], [0]],
        voters=[[(1, 0)], [(0, 0)]],
        configs={"retention.bytes": "4096"},
    )
    changes: list[r.Record] = [
        r.PartitionReassigned(topic_id=topic_id, partition=0, replicas=[2, 1]),
        r.PartitionReassigned(topic_id=topic_id, partition=1, replicas=[0, 1]),
        r.ConfigChanged(
            resource_type=TOPIC_RESOURCE, resource_name="orders", values={"retention.bytes": None}
        ),
    ]
    snapshots = []
    async with started(tmp_path / "0") as it:
        store = it.broker.state.store
        for records in ([created], changes):
            async with store.changing():
                await store.commit(records)
            snapshots.append(store.save())

    config = BrokerConfig(node_id=1, advertised=ADVERTISED, metadata_voters=(Voter(0, 0),))
    broker = Broker(config, OsDisk(), str(tmp_path / "1"))
    await broker.start()
    store, replicas = broker.state.store, broker.state.replicas
    store.load(snapshots[0])
    await store.settled()
    partition = replicas.get(topic_id, 0)
    assert (partition.target, partition.log.config.retention_bytes) == ((1,), 4096)
    store.load(snapshots[1])
    await store.settled()
    assert (partition.target, partition.log.config.retention_bytes) == ((2, 1), -1)
    assert replicas.get(topic_id, 1).target == (0, 1)
    await broker.stop()


@on_a_loop
async def test_the_metadata_go_on_when_their_log_is_opened_anew(tmp_path: Path) -> None:
    """A full disk takes it offline for a while; what was opened again is another object."""
    async with started(tmp_path) as it:
        await it.create("before")
        state = it.broker.state
        before = state.store.partition
        before.lacks_room = True
        before.take_offline("no room")
        await eventually_on_loop(lambda: state.store.partition is not before)
        await eventually_on_loop(lambda: state.store.is_controller)
        (created,) = await it.create("after")
        assert created.error_code == 0
        assert set(state.image.topics) == {"before", "after"}


@on_a_loop
@pytest.mark.parametrize("has_others", [False, True])
async def test_a_damaged_image_is_set_aside_only_where_others_have_the_metadata_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_others: bool
) -> None:
    monkeypatch.setattr("sapwood.broker.store.SNAPSHOT_RECORDS", 4)
    async with started(tmp_path) as it:
        await it.create("orders", "parcels", "bills", "returns")
        metadata = it.broker.state.store.partition
        await eventually_on_loop(lambda: metadata.log.start_offset > 0)
    path = tmp_path / "metadata.snapshot"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    voters = (Voter(0, 0), Voter(1, 0)) if has_others else (Voter(0, 0),)
    broker = Broker(
        BrokerConfig(advertised=ADVERTISED, metadata_voters=voters), OsDisk(), str(tmp_path)
    )
    before = set(os.listdir(tmp_path / "logs"))
    if has_others:
        await broker.start()
        assert broker.state.store.partition.log.position == START
        await broker.stop()
        (aside,) = (it for it in os.listdir(tmp_path) if it.startswith(f"{path.name}.damaged-"))
        assert (tmp_path / aside).read_bytes() == data
    else:
        with pytest.raises(MetadataLost, match="damaged"):
            await broker.start()
        assert path.read_bytes() == data
        assert set(os.listdir(tmp_path / "logs")) == before
