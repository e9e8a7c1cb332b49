"""Groups and positions through a broker, in every version of every request."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sapwood.wire.apis import Api, codec_versions
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.broker.asking import Asking, on_a_loop, started
from tests.coordinator.driving import subscription
from tests.helpers import eventually_on_loop

TOPIC = "orders"


def versions(api: Api) -> range:
    first, last = codec_versions(api)
    return range(first, last + 1)


class Grouping:
    """One client of a broker that coordinates everything."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking

    @property
    def topic_id(self) -> bytes:
        return self.asking.broker.state.image.topics[TOPIC].topic_id

    async def join(self, version: int = 9, **changes: Any) -> Struct:
        """The answer to the last of as many requests as it takes."""
        fields: dict[str, Any] = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [Struct(name="range", metadata=subscription(TOPIC))],
            "reason": None,
        }
        message = Struct(**{**fields, **changes})
        answer = await self.asking.answer(Api.JOIN_GROUP, version, message)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join(version, **{**changes, "member_id": answer.member_id})
        return answer

    async def sync(self, joined: Struct, assignment: bytes, version: int = 5) -> Struct:
        message = Struct(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[Struct(member_id=joined.member_id, assignment=assignment)],
        )
        return await self.asking.answer(Api.SYNC_GROUP, version, message)

    async def commit(self, version: int = 9, **changes: Any) -> int:
        """The one error code."""
        wanted = Struct(
            partition_index=changes.pop("partition", 0),
            committed_offset=changes.pop("offset", 7),
            committed_leader_epoch=3,
            committed_metadata=changes.pop("metadata", "a note"),
        )
        name = changes.pop("name", TOPIC)
        topic_id = changes.pop("topic_id", self.topic_id)
        fields: dict[str, Any] = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "retention_time": -1,
            "group_instance_id": None,
            "topics": [Struct(name=name, topic_id=topic_id, partitions=[wanted])],
        }
        answer = await self.asking.answer(
            Api.OFFSET_COMMIT, version, Struct(**{**fields, **changes})
        )
        return int(answer.topics[0].partitions[0].error_code)

    async def fetch(
        self, version: int = 9, *, every: bool = False, stable: bool = False, group_id: str = "g"
    ) -> Struct:
        topics = [Struct(name=TOPIC, topic_id=self.topic_id, partition_indexes=[0, 1])]
        group = Struct(group_id=group_id, topics=None if every else topics, member_epoch=-1)
        message = Struct(**vars(group), groups=[group], require_stable=stable)
        answer = await self.asking.answer(Api.OFFSET_FETCH, version, message)
        return answer.groups[0] if version >= 8 else answer


async def all_ready(asking: Asking) -> None:
    shards = asking.broker.state.coordinators.shards
    await eventually_on_loop(lambda: sum(it.is_ready for it in shards("__consumer_offsets")) == 16)


@asynccontextmanager
async def grouping(place: Path) -> AsyncIterator[Grouping]:
    async with started(place) as asking:
        await asking.create(TOPIC, partitions=2)
        await asking.answer(Api.FIND_COORDINATOR, 0, Struct(key="g"))
        coordinators = asking.broker.state.coordinators
        await eventually_on_loop(
            lambda: (
                len([it for it in coordinators.shards("__consumer_offsets") if it.is_ready]) == 16
            )
        )
        yield Grouping(asking)


@pytest.mark.parametrize("version", versions(Api.JOIN_GROUP))
@on_a_loop
async def test_a_group_of_one_lives_and_dies_in_every_version(tmp_path: Path, version: int) -> None:
    async with grouping(tmp_path) as client:
        joined = await client.join(version)
        assert (joined.error_code, joined.generation_id, joined.leader) == (
            0, 1, joined.member_id,
        )  # fmt: skip
        assert [it.metadata for it in joined.members] == [subscription(TOPIC)]
        for sync_version in versions(Api.SYNC_GROUP):
            synced = await client.sync(joined, b"all", sync_version)
            assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
        beat = Struct(group_id="g", generation_id=1, member_id=joined.member_id)
        beat.group_instance_id = None
        for beat_version in versions(Api.HEARTBEAT):
            answer = await client.asking.answer(Api.HEARTBEAT, beat_version, beat)
            assert answer.error_code == 0
        leave_version = min(version, 5)
        member = Struct(member_id=joined.member_id, group_instance_id=None, reason=None)
        leave = Struct(group_id="g", member_id=joined.member_id, members=[member])
        left = await client.asking.answer(Api.LEAVE_GROUP, leave_version, leave)
        assert left.error_code == 0
        beaten = await client.asking.answer(Api.HEARTBEAT, 4, beat)
        assert beaten.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(Api.OFFSET_COMMIT))
@on_a_loop
async def test_a_position_is_committed_and_fetched_in_every_version(
    tmp_path: Path, version: int
) -> None:
    async with grouping(tmp_path) as client:
        assert await client.commit(version) == 0
        for fetch_version in versions(Api.OFFSET_FETCH):
            found = await client.fetch(fetch_version)
            assert getattr(found, "error_code", 0) == 0
            first, second = found.topics[0].partitions
            assert (first.committed_offset, first.metadata) == (7, "a note")
            assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", 0)
            if fetch_version >= 2:
                (topic,) = (await client.fetch(fetch_version, every=True)).topics
                assert [it.committed_offset for it in topic.partitions] == [7]


@on_a_loop
async def test_a_fetch_of_positions_that_fails_says_so_of_every_partition(tmp_path: Path) -> None:
    """aiokafka doesn't look at the error of the whole: it would begin with the first record."""
    async with grouping(tmp_path) as client:
        for version in versions(Api.OFFSET_FETCH):
            found = await client.fetch(version, group_id="x" * 2000)
            if version >= 2:
                assert found.error_code == ErrorCode.INVALID_GROUP_ID
            if version < 8:
                codes = [it.error_code for topic in found.topics for it in topic.partitions]
                assert codes == [ErrorCode.INVALID_GROUP_ID] * 2
            if 2 <= version < 8:
                assert (await client.fetch(version, every=True, group_id="x" * 2000)).topics == []


@on_a_loop
async def test_what_is_wrong_with_one_partition_of_a_commit_fails_that_one(tmp_path: Path) -> None:
    async with grouping(tmp_path) as client:
        unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert await client.commit(partition=2) == unknown
        assert await client.commit(name="nothing") == unknown
        assert await client.commit(10, topic_id=b"?" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
        too_large = await client.commit(metadata="x" * 4097)
        assert too_large == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await client.commit(metadata="x" * 4096) == 0
        assert await client.commit(metadata=None) == 0
        illegal = await client.commit(group_id="h", generation_id_or_member_epoch=3)
        assert illegal == ErrorCode.ILLEGAL_GENERATION


@on_a_loop
async def test_ids_that_no_group_can_have_are_refused(tmp_path: Path) -> None:
    async with grouping(tmp_path) as client:
        assert (await client.join(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
        assert (await client.join(group_id="x" * 2000)).error_code == ErrorCode.INVALID_GROUP_ID
        assert await client.commit(group_id="x" * 40_000) == ErrorCode.INVALID_GROUP_ID
        long = await client.join(group_instance_id="x" * 2000)
        assert long.error_code == ErrorCode.INVALID_REQUEST
        names = [Struct(name="x" * 2000, metadata=b"")]
        assert (await client.join(protocols=names)).error_code == ErrorCode.INVALID_REQUEST
        # And nobody else is harmed.
        assert (await client.join()).error_code == 0


@on_a_loop
async def test_groups_are_described_listed_and_deleted_in_every_version(tmp_path: Path) -> None:
    async with grouping(tmp_path) as client:
        ask = client.asking.answer
        joined = await client.join()
        await client.sync(joined, b"all")
        await client.commit(group_id="idle")
        for version in versions(Api.DESCRIBE_GROUPS):
            message = Struct(groups=["g", "none"], include_authorized_operations=True)
            group, none = (await ask(Api.DESCRIBE_GROUPS, version, message)).groups
            assert (group.group_state, group.protocol_data) == ("Stable", "range")
            assert bytes(group.members[0].member_assignment) == b"all"
            assert group.members[0].client_host == "/127.0.0.1"
            assert none.group_state == "Dead"
            expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
            assert none.error_code == expected
        for version in versions(Api.LIST_GROUPS):
            message = Struct(states_filter=["Stable"], types_filter=["classic"])
            groups = (await ask(Api.LIST_GROUPS, version, message)).groups
            assert {it.group_id for it in groups} == ({"g"} if version >= 4 else {"g", "idle"})
        for version in versions(Api.DELETE_GROUPS):
            message = Struct(groups_names=["g", "idle", "none"])
            results = (await ask(Api.DELETE_GROUPS, version, message)).results
            gone = ErrorCode.GROUP_ID_NOT_FOUND
            idle = gone if version else ErrorCode.NONE
            assert [it.error_code for it in results] == [ErrorCode.NON_EMPTY_GROUP, idle, gone]


@on_a_loop
async def test_positions_are_deleted_one_by_one_and_with_their_topic(tmp_path: Path) -> None:
    async with grouping(tmp_path) as client:
        for partition in (0, 1):
            await client.commit(partition=partition)
        places = [Struct(partition_index=0), Struct(partition_index=5)]
        message = Struct(group_id="g", topics=[Struct(name=TOPIC, partitions=places)])
        deleted = await client.asking.answer(Api.OFFSET_DELETE, 0, message)
        codes = [it.error_code for it in deleted.topics[0].partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        message.group_id = "none"
        none = await client.asking.answer(Api.OFFSET_DELETE, 0, message)
        assert none.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        found = (await client.fetch()).topics[0].partitions
        assert [it.committed_offset for it in found] == [-1, 7]
        await client.asking.delete(TOPIC)
        await client.asking.create(TOPIC, partitions=2)
        found = (await client.fetch()).topics[0].partitions
        assert [it.committed_offset for it in found] == [-1, -1]


@pytest.mark.parametrize("version", versions(Api.TXN_OFFSET_COMMIT))
@on_a_loop
async def test_a_position_in_a_transaction_waits_for_its_marker(
    tmp_path: Path, version: int
) -> None:
    async with grouping(tmp_path) as client:
        state = client.asking.broker.state
        asked: list[tuple[object, ...]] = []

        async def verify(*about: object) -> None:
            asked.append(about)
            if about[2] != 5:
                raise KafkaError(ErrorCode.PRODUCER_FENCED)

        state.verifying.verify = verify

        async def commit(epoch: int, offset: int) -> int:
            wanted = Struct(
                partition_index=0,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=None,
            )
            message = Struct(
                transactional_id="t",
                group_id="g",
                producer_id=9,
                producer_epoch=epoch,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[Struct(name=TOPIC, partitions=[wanted])],
            )
            answer = await client.asking.answer(Api.TXN_OFFSET_COMMIT, version, message)
            return int(answer.topics[0].partitions[0].error_code)

        assert await commit(4, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await commit(5, 8) == 0
        assert await commit(5, 9) == 0
        # Of the three only what the partition didn't know was asked, and a late one is refused
        # without harm to anybody.
        assert len(asked) == 2
        assert await commit(4, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
        found = (await client.fetch(stable=True)).topics[0].partitions[0]
        assert found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert (await client.fetch()).topics[0].partitions[0].committed_offset == -1
        shard = state.coordinators.shard("__consumer_offsets", "g")
        shard.partition.end_transaction(
            9, 5, committed=True, coordinator_epoch=1, now_ms=state.now_ms(), on_committed=None
        )
        state.coordinators.marked(shard.partition, 9, 5, committed=True)
        found = (await client.fetch(stable=True)).topics[0].partitions[0]
        assert (found.error_code, found.committed_offset) == (0, 9)
    async with started(tmp_path) as asking:
        await all_ready(asking)
        found = (await Grouping(asking).fetch(stable=True)).topics[0].partitions[0]
        assert (found.error_code, found.committed_offset) == (0, 9)
