"""The newer group protocol at a broker: ids, descriptions, topics that change, a restart."""

from pathlib import Path

from sapwood.metadata.controller import OFFSETS_TOPIC
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.broker.asking import Asking, on_a_loop, started
from tests.coordinator.consumers import request
from tests.helpers import eventually_on_loop

SHARDS = 16


async def coordinated(asking: Asking) -> None:
    """Wait until all groups have a coordinator."""
    message = Struct(key_type=0, coordinator_keys=["readers"])
    answer = await asking.answer(Api.FIND_COORDINATOR, 4, message)
    assert answer.coordinators[0].error_code == 0
    coordinators = asking.broker.state.coordinators
    await eventually_on_loop(
        lambda: sum(it.is_ready for it in coordinators.shards(OFFSETS_TOPIC)) == SHARDS
    )


async def beat(
    asking: Asking, member_id: str, epoch: int, *, version: int = 1, **said: object
) -> Struct:
    message = request(member_id, epoch, **said)
    message.group_id = "readers"
    if epoch == 0:
        message.rebalance_timeout, message.topic_partitions = 1000, []
        message.subscribed_topic_names = ["orders"]
    return await asking.answer(Api.CONSUMER_GROUP_HEARTBEAT, version, message)


async def described(asking: Asking, group_id: str = "readers") -> Struct:
    message = Struct(group_ids=[group_id], include_authorized_operations=True)
    answer = await asking.answer(Api.CONSUMER_GROUP_DESCRIBE, 1, message)
    group: Struct = answer.groups[0]
    return group


@on_a_loop
async def test_a_member_gets_an_id_if_its_version_has_none_of_its_own(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("orders", partitions=3)
        await coordinated(asking)
        first = await beat(asking, "", 0, version=0)
        assert (first.error_code, first.member_epoch) == (0, 1)
        assert first.member_id
        refused = await beat(asking, "", 0, version=1)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "MemberId" in refused.error_message


@on_a_loop
async def test_a_member_is_told_of_partitions_that_are_added(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await coordinated(asking)
        first = await beat(asking, "alice", 0)
        assert first.assignment.topic_partitions == []
        await asking.create("orders", partitions=3)
        second = await beat(asking, "alice", first.member_epoch)
        assert [it.partitions for it in second.assignment.topic_partitions] == [[0, 1, 2]]
        third = await beat(asking, "alice", second.member_epoch)
        assert third.assignment is None


@on_a_loop
async def test_a_group_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("orders", partitions=3)
        await coordinated(asking)
        joined = await beat(asking, "alice", 0)
        before = await described(asking)
        assert before.group_state == "Stable"
        assert before.members[0].assignment.topic_partitions[0].topic_name == "orders"
        assert before.authorized_operations > 0
    async with started(tmp_path) as asking:
        await coordinated(asking)
        assert await described(asking) == before
        assert (await beat(asking, "alice", joined.member_epoch)).error_code == 0
        assert (await beat(asking, "alice", -1)).member_epoch == -1
        assert (await described(asking)).group_state == "Empty"


@on_a_loop
async def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        elsewhere = await beat(asking, "alice", 0)
        assert elsewhere.error_code == ErrorCode.NOT_COORDINATOR
        await coordinated(asking)
        unknown = await described(asking)
        assert (unknown.error_code, unknown.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        assert (await described(asking, "")).error_code == ErrorCode.INVALID_GROUP_ID
        stray = await beat(asking, "alice", 4)
        assert stray.error_code == ErrorCode.UNKNOWN_MEMBER_ID
