"""How many groups together ask for votes, and how long a node that is slow is waited for."""

import asyncio
from functools import partial
from pathlib import Path

from sapwood.disk import File, OsDisk
from sapwood.raft import Group, Timing
from sapwood.replica import PeerUnreachable, Plan, Replicas, Voter
from sapwood.replica.asking import MOST_GROUPS
from sapwood.replica.patience import FORGOTTEN_S, LONGEST, Patience
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from tests.helpers import eventually_on_loop
from tests.replica.test_partition import NOW_MS, on_a_loop
from tests.replica.test_replicas import TOPIC_ID, settings

VOTERS = (Voter(0, 0), Voter(1, 0), Voter(2, 0))
GROUPS = 3 * MOST_GROUPS


class Silent:
    """Other nodes that answer only when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[Struct], asyncio.Future[Struct]]] = []

    async def request(
        self, node: int, api: Api, message: Struct, *, timeout_s: float, data: bool = False
    ) -> Struct:
        answer: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()
        if api is Api.REPLICA_VOTE:
            self.asked.append((node, message.groups, answer))
        return await answer

    def were_asked(self, times: int) -> bool:
        return len(self.asked) == times

    def release(self) -> None:
        for _, _, answer in self.asked:
            if not answer.done():
                answer.set_result(Struct(hlc=0, groups=[]))


class SlowJournal(OsDisk):
    """Whose sync of the journal ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: asyncio.Future[None] | None = None

    def sync(self, file: File) -> asyncio.Future[None]:
        if not file.path.endswith("journal"):
            return super().sync(file)
        self.under_way = asyncio.get_running_loop().create_future()
        return self.under_way

    def release(self) -> None:
        if self.under_way is not None and not self.under_way.done():
            self.under_way.set_result(None)


class Told:
    """Other nodes that note which epochs they hear of."""

    def __init__(self) -> None:
        self.messages = 0
        self.epochs: list[int] = []

    async def request(
        self, node: int, api: Api, message: Struct, *, timeout_s: float, data: bool = False
    ) -> Struct:
        assert api is Api.ANNOUNCE
        self.messages += 1
        self.epochs += [it.epoch for it in message.leaders]
        return Struct(hlc=0)


@on_a_loop
async def test_nobody_hears_of_a_leader_whose_term_is_not_on_disk(tmp_path: Path) -> None:
    """A single voter leads without a question to anybody. After a power cut it could lead in the
    same term again, with other records where those who heard of it already have some."""
    peers, disk = Told(), SlowJournal()
    replicas = Replicas(disk, str(tmp_path), lambda: NOW_MS, me=VOTERS[0], peers=peers)
    replicas.exchange.set_members([0, 1])
    await eventually_on_loop(lambda: peers.messages == 1)
    partition = replicas.open(Plan("t", TOPIC_ID, 0, settings(), VOTERS[:1], (0, 1)))
    assert partition is not None
    await eventually_on_loop(lambda: partition.is_confirmed)
    await eventually_on_loop(lambda: disk.under_way is not None or peers.epochs)
    assert peers.epochs == []

    def is_told() -> bool:
        disk.release()
        return set(peers.epochs) == {1}

    await eventually_on_loop(is_told)
    await replicas.exchange.close()


class Refused:
    """No other node can be connected to."""

    def __init__(self, *, gone: bool) -> None:
        self.gone = gone
        self.attempts = 0

    async def request(
        self, node: int, api: Api, message: Struct, *, timeout_s: float, data: bool = False
    ) -> Struct:
        self.attempts += api is Api.REPLICA_FETCH
        raise PeerUnreachable("nobody listens there", refused=True, gone=self.gone)


@on_a_loop
async def test_a_leader_is_lost_at_once_if_it_is_gone_and_not_if_its_host_refuses(
    tmp_path: Path,
) -> None:
    async def follows_on(*, gone: bool) -> bool:
        peers, place = Refused(gone=gone), str(tmp_path / str(gone))
        patient = Timing(silence_s=60.0)
        replicas = Replicas(
            OsDisk(), place, lambda: NOW_MS, me=VOTERS[0], peers=peers, timing=patient
        )
        partition = replicas.open(Plan("t", TOPIC_ID, 0, settings(), VOTERS, (0, 1, 2)))
        assert partition is not None
        partition.tell(Group.announced, asyncio.get_running_loop().time(), 1, 1)
        await eventually_on_loop(lambda: peers.attempts > 2 or not partition.has_leader)
        await replicas.close()
        return partition.has_leader

    assert await follows_on(gone=False)
    assert not await follows_on(gone=True)


@on_a_loop
async def test_each_node_is_asked_about_some_groups_at_a_time_and_not_again_before_it_answers(
    tmp_path: Path,
) -> None:
    peers = Silent()
    replicas = Replicas(OsDisk(), str(tmp_path), lambda: NOW_MS, me=VOTERS[0], peers=peers)
    await replicas.begin()
    for index in range(GROUPS):
        replicas.open(Plan("t", TOPIC_ID, index, settings(), VOTERS, (0, 1, 2)))
    partitions = list(replicas)
    await eventually_on_loop(lambda: len(peers.asked) == 2)
    first = partitions[0].group.deadline
    await eventually_on_loop(lambda: asyncio.get_running_loop().time() > first + 0.2)
    assert [node for node, _, _ in peers.asked] == [1, 2], "its time is up, but not its question"
    heard: dict[int, set[int]] = {1: set(), 2: set()}
    while any(len(indexes) < GROUPS for indexes in heard.values()):
        expected = len(peers.asked) + 2
        for node, groups, _ in peers.asked[-2:]:
            assert 0 < len(groups) <= MOST_GROUPS
            heard[node].update(it.partition for it in groups)
        peers.release()
        await eventually_on_loop(partial(peers.were_asked, expected))
    await replicas.close()


def test_a_node_that_was_slow_lately_is_waited_for_longer_and_one_that_was_away_is_not() -> None:
    patience, now = Patience(silence_s=1.0), 0.0

    def limit_after(silent_s: float, times: int = 1) -> float:
        nonlocal now
        for _ in range(times):
            now += silent_s
            patience.heard(now)
        return patience.limit_s(now)

    assert limit_after(0.15, times=20) == 1.0
    assert limit_after(0.8) > 2.0
    assert limit_after(3.0) == LONGEST
    assert limit_after(0.15, times=int(4 * FORGOTTEN_S / 0.15)) == 1.0
    assert limit_after(60.0) == 1.0, "it was away, not slow"
