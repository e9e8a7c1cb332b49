"""A machine lives where its partition is led, and nothing that it says can be lost."""

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sapwood.broker.coordinating import Kind, Shard
from sapwood.coordinator.effects import Answer, Append, Effect
from sapwood.raft import Elected
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.broker.asking import Asking, on_a_loop, started
from tests.helpers import eventually_on_loop
from tests.replica.held import HeldDisk

TOPIC = "__transaction_state"


class Noted(NamedTuple):
    """An effect of a kind that only this machine has."""

    total: int


class Sum:
    """Adds up; the log has the sums."""

    def __init__(self) -> None:
        self.total = 0
        self.ticks = 0
        self.told: list[object] = []
        self.alarm_ms = float("inf")

    def replay(self, key: bytes | None, value: bytes | None, producer: object) -> None:
        self.total = int(value or b"0")

    def settle(
        self, producer_id: int, producer_epoch: int, committed: bool, now_ms: int
    ) -> list[Effect]:
        self.told.append((producer_id, committed))
        return []

    def loaded(self, now_ms: int) -> list[Effect]:
        return []

    def topics_changed(self, now_ms: int) -> list[Effect]:
        self.told.append("topics")
        return []

    def tick(self, now_ms: int) -> list[Effect]:
        if now_ms >= self.alarm_ms:
            self.alarm_ms = float("inf")
            self.ticks += 1
        return []

    @property
    def wake_at_ms(self) -> float:
        return self.alarm_ms

    def add(self, token: object, number: int) -> list[Effect]:
        if number < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "only upwards")
        self.total += number
        return [
            Append([(b"sum", str(self.total).encode())]),
            Answer(token, Struct(total=self.total)),
            Noted(self.total),
        ]

    def read(self, token: object) -> list[Effect]:
        return [Answer(token, Struct(total=self.total))]

    def news(self) -> Struct:
        return Struct(told=self.told)

    def remind(self, token: object, at_ms: int) -> list[Effect]:
        self.alarm_ms = at_ms
        return self.read(token)


class Sums:
    """The broker's coordinators of sums."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.noted: list[int] = []

    async def begin(self) -> None:
        coordinators = self.asking.broker.state.coordinators

        def note(shard: Shard[Any], effect: Effect) -> None:
            if isinstance(effect, Noted):
                self.noted.append(effect.total)

        for shard in coordinators.shards(TOPIC):
            shard.end()  # what the broker itself makes of this topic
        coordinators.add(Kind(TOPIC, lambda index: Sum(), note))
        await self.asking.answer(Api.FIND_COORDINATOR, 1, Struct(key="k", key_type=1))
        await eventually_on_loop(lambda: self.is_ready)

    @property
    def is_ready(self) -> bool:
        state = self.asking.broker.state
        ready = [it for it in state.coordinators.shards(TOPIC) if it.is_ready]
        return len(ready) == state.partition_count(TOPIC)

    @property
    def shard(self) -> Shard[Any]:
        return self.asking.broker.state.coordinators.shard(TOPIC, "k")

    async def add(self, number: int) -> int:
        answer = await self.shard.ask(lambda machine, token, now: machine.add(token, number))
        return int(answer.total)

    async def read(self) -> int:
        return int((await self.shard.ask(lambda machine, token, now: machine.read(token))).total)


@on_a_loop
async def test_a_machine_is_made_again_from_its_log(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        sums = Sums(asking)
        await sums.begin()
        assert [await sums.add(number) for number in (1, 2, 3)] == [1, 3, 6]
        assert sums.noted == [1, 3, 6]
    async with started(tmp_path) as asking:
        sums = Sums(asking)
        await sums.begin()
        assert await sums.read() == 6
        assert await sums.add(4) == 10


@on_a_loop
async def test_nobody_hears_of_a_change_before_it_is_committed(tmp_path: Path) -> None:
    disk = HeldDisk()
    disk.hold = False
    async with started(tmp_path, disk) as asking:
        sums = Sums(asking)
        await sums.begin()
        disk.hold = True
        added = asyncio.ensure_future(sums.add(5))
        read = asyncio.ensure_future(sums.read())
        refused = asyncio.ensure_future(sums.add(-1))
        await asyncio.wait([added, read, refused], timeout=0.05)
        assert [it.done() for it in (added, read, refused)] == [False, False, False]
        assert sums.noted == []
        await disk.releasing(added)
        assert await added == await read == 5
        assert sums.noted == [5]
        with pytest.raises(KafkaError, match="only upwards"):
            await refused


@on_a_loop
async def test_a_failed_sync_sends_all_who_wait_away(tmp_path: Path) -> None:
    disk = HeldDisk()
    disk.hold = False
    async with started(tmp_path, disk) as asking:
        sums = Sums(asking)
        await sums.begin()
        disk.hold = True
        added = asyncio.ensure_future(sums.add(5))
        await eventually_on_loop(lambda: disk.held)
        await disk.fail()
        with pytest.raises(KafkaError) as caught:
            await added
        assert caught.value.code == ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError) as caught:
            await sums.read()
        assert caught.value.code == ErrorCode.NOT_COORDINATOR


@on_a_loop
async def test_a_machine_follows_its_log_while_its_leader_hears_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a leader keeps its office for a while: what it missed it would never learn."""
    async with started(tmp_path) as asking:
        sums = Sums(asking)
        await sums.begin()
        shard = sums.shard
        marker = Struct(
            producer_id=7,
            producer_epoch=0,
            transaction_result=True,
            topics=[Struct(name=TOPIC, partition_indexes=[shard.partition.index])],
            coordinator_epoch=0,
            transaction_version=0,
        )
        with monkeypatch.context() as patched:
            patched.setattr(shard.partition.group, "has_quorum", lambda now: False)
            asking.peer.node = 1
            answer = await asking.answer(Api.WRITE_TXN_MARKERS, 1, Struct(markers=[marker]))
            assert answer.markers[0].topics[0].partitions[0].error_code == 0
            asking.broker.state.coordinators.topics_changed()
            with pytest.raises(KafkaError, match="not the coordinator"):
                await shard.ask(lambda machine, token, now: machine.read(token))
        answer = await shard.ask(lambda machine, token, now: [Answer(token, machine.news())])
        assert answer.told == [(7, True), "topics"]


@on_a_loop
async def test_who_hands_its_lead_over_says_nothing_of_what_is_newest(tmp_path: Path) -> None:
    """The successor may have committed more, and this node been asleep meanwhile."""
    async with started(tmp_path) as asking:
        sums = Sums(asking)
        await sums.begin()
        shard = sums.shard
        wanted = Struct(
            partition_index=shard.partition.index, current_leader_epoch=-1, timestamp=-1
        )
        message = Struct(replica_id=-1, topics=[Struct(name=TOPIC, partitions=[wanted])])

        async def latest() -> int:
            answer = await asking.answer(Api.LIST_OFFSETS, 1, message)
            return int(answer.topics[0].partitions[0].error_code)

        role = shard.partition.group.role
        assert isinstance(role, Elected)
        assert await latest() == 0
        role.successor = 2
        assert await latest() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(KafkaError, match="not the coordinator"):
            await shard.ask(lambda machine, token, now: machine.read(token))
        # It may come to nothing, and then nothing was lost by it.
        role.successor = None
        assert await latest() == 0
        assert await sums.read() == 0


@on_a_loop
async def test_a_machine_that_fails_is_loaded_anew_from_what_really_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sapwood.broker.coordinating.RELOAD_S", 0.01)
    async with started(tmp_path) as asking:
        sums = Sums(asking)
        await sums.begin()
        await sums.add(5)

        def fail(machine: Sum, token: object, now_ms: int) -> list[Effect]:
            machine.total = 77
            raise ZeroDivisionError

        with pytest.raises(KafkaError) as caught:
            await sums.shard.ask(fail)
        assert caught.value.code == ErrorCode.NOT_COORDINATOR
        await eventually_on_loop(lambda: sums.is_ready)
        assert await sums.read() == 5


@on_a_loop
async def test_a_machine_is_woken_when_it_wanted_to_be(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        machines: list[Sum] = []

        def make(index: int) -> Sum:
            machines.append(Sum())
            return machines[-1]

        asking.broker.state.coordinators.add(Kind(TOPIC, make))
        await asking.answer(Api.FIND_COORDINATOR, 1, Struct(key="k", key_type=1))
        sums = Sums(asking)
        await eventually_on_loop(lambda: sums.is_ready)
        await sums.shard.ask(lambda machine, token, now: machine.remind(token, now + 10))
        await eventually_on_loop(lambda: [machine.ticks for machine in machines if machine.ticks])
        assert sum(machine.ticks for machine in machines) == 1


@on_a_loop
async def test_a_node_that_holds_no_such_partition_is_not_the_coordinator(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        with pytest.raises(KafkaError) as caught:
            asking.broker.state.coordinators.shard(TOPIC, "k")
        assert caught.value.code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", range(7))
@on_a_loop
async def test_a_coordinator_is_found_in_every_version(tmp_path: Path, version: int) -> None:
    async with started(tmp_path) as asking:
        message = Struct(key="k", key_type=1, coordinator_keys=["k"])
        answer = await asking.answer(Api.FIND_COORDINATOR, version, message)
        found = answer.coordinators[0] if version >= 4 else answer
        assert (found.error_code, found.node_id, found.host, found.port) == (
            0, 0, "localhost", 9092,
        )  # fmt: skip
        topic = asking.broker.state.image.topics[TOPIC if version else "__consumer_offsets"]
        assert len(topic.partitions) == 16


@on_a_loop
async def test_the_logs_of_coordinators_are_out_of_reach_of_clients(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.answer(Api.FIND_COORDINATOR, 1, Struct(key="k", key_type=1))
        produced = await asking.produced(TOPIC)
        deleted = await asking.delete(TOPIC)
        assert produced.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert deleted[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await asking.fetch(TOPIC)).error_code == ErrorCode.NONE
