"""How many groups together ask for votes, and how long a node that is slow is waited for."""

import asyncio
from functools import partial
from pathlib import Path

from sapwood.disk import OsDisk
from sapwood.replica import Plan, Replicas, Voter
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
