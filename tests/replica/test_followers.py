"""The leader's end of a link, asked by hand: whom it serves, and whom it sends away for good."""

import asyncio
from pathlib import Path

from sapwood.raft import Group, Position, Voter
from sapwood.replica import Partition
from sapwood.replica.followers import FollowerSession
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode
from tests.replica.held import HeldDisk
from tests.replica.test_partition import on_a_loop, opened

A_HEARTBEAT_S = 20.0


class Follower:
    """Node 1, which has what it was sent at once, and for good."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.sequence = 0
        self.session = FollowerSession(
            1,
            7,
            lambda key: partition,
            lambda: 1,
            lambda: False,
            A_HEARTBEAT_S,
            lambda session: None,
            lambda partition: None,
        )

    async def fetch(self) -> list[ErrorCode]:
        """What it is told about the group: nothing, or an error that there may be."""
        position = Position(*self.partition.log.position)
        group = Struct(
            topic_id=self.partition.topic_id,
            partition=0,
            epoch=self.partition.group.term,
            incarnation=0,
            last_epoch=position.epoch,
            fetch_offset=position.offset,
            durable_epoch=position.epoch,
            durable_offset=position.offset,
            high_watermark=0,
        )
        message = Struct(
            sequence=self.sequence,
            seen=self.sequence - 1,
            groups=[group],
            forgotten=[],
            max_bytes=1 << 20,
            max_wait_ms=10_000,
            promised=-1,
        )
        self.sequence += 1
        answer = self.session.request(message)
        self.session.hurry()
        return [ErrorCode(it.error_code) for it in (await answer).groups]


@on_a_loop
async def test_a_replica_is_sent_away_when_its_removal_is_committed_and_not_before(
    tmp_path: Path,
) -> None:
    """A power cut may take the record of the removal. Then the voters are those before, and had
    the replica gone, there would never be enough of them again."""
    disk = HeldDisk()
    partition = await opened(disk, tmp_path)
    follower = Follower(partition)

    def aim(*target: int) -> None:
        partition.target = target
        partition.tell(Group.step_towards, target, asyncio.get_running_loop().time())

    partition.target = (0, 1)
    await follower.fetch()
    await follower.fetch()
    aim(0, 1)
    await disk.release()
    await follower.fetch()
    aim(0)
    assert partition.voters == (Voter(0, 0),)
    assert ErrorCode.REPLICA_NOT_AVAILABLE not in await follower.fetch()
    await disk.release()
    assert await follower.fetch() == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert not partition.followers
