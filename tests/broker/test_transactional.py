"""Transactions as clients meet them at partitions: produce, markers, isolation levels."""

import asyncio
from pathlib import Path

from sapwood.broker import verifying
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode, KafkaError
from tests.broker.asking import Asking, batch, on_a_loop, started
from tests.helpers import eventually_on_loop

READ_COMMITTED = 1


class Coordinator:
    """Says what the test wants it to say, when the test wants it to."""

    def __init__(self, it: Asking) -> None:
        self.asked: list[tuple[str, int, int, str, int]] = []
        self.answer: ErrorCode = ErrorCode.NONE
        self.open = asyncio.Event()
        self.open.set()
        it.broker.state.verifying.verify = self.verify

    async def verify(self, *question: object) -> None:
        self.asked.append(question)  # type: ignore[arg-type]
        await self.open.wait()
        if self.answer:
            raise KafkaError(self.answer)


def transactional(*values: bytes, sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    return batch(
        *values,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


async def write(it: Asking, *values: bytes, sequence: int, producer_id: int = 7) -> Struct:
    data = transactional(*values, sequence=sequence, producer_id=producer_id)
    return await it.produced("t", data, transactional_id="mine")


async def end(
    it: Asking,
    producer_id: int = 7,
    epoch: int = 0,
    *,
    committed: bool = True,
    node: int | None = 1,
    topic: str = "t",
) -> int:
    marker = Struct(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=[Struct(name=topic, partition_indexes=[0])],
        coordinator_epoch=0,
        transaction_version=0,
    )
    it.peer.node = node
    answer = await it.answer(Api.WRITE_TXN_MARKERS, 2, Struct(markers=[marker]))
    it.peer.node = None
    (result,) = answer.markers
    assert result.producer_id == producer_id
    code: int = result.topics[0].partitions[0].error_code
    return code


async def latest(it: Asking, isolation_level: int) -> int:
    wanted = Struct(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    message = Struct(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[Struct(name="t", partitions=[wanted])],
    )
    answer = await it.answer(Api.LIST_OFFSETS, 5, message)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


# -- readers ---------------------------------------------------------------------------------


@on_a_loop
async def test_readers_of_committed_records_stop_at_what_is_undecided(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        Coordinator(it)
        await it.create("t")
        await it.produced("t")
        await write(it, b"a", b"b", sequence=0)
        await it.produced("t")
        committed = await it.fetch("t", isolation_level=READ_COMMITTED)
        everything = await it.fetch("t")
        assert (committed.high_watermark, committed.last_stable_offset) == (4, 1)
        assert (everything.high_watermark, everything.last_stable_offset) == (4, 1)
        assert len(committed.records) < len(everything.records)
        assert everything.aborted_transactions is None
        assert (await latest(it, 0), await latest(it, READ_COMMITTED)) == (4, 1)
        assert await end(it, committed=False) == ErrorCode.NONE
        decided = await it.fetch("t", isolation_level=READ_COMMITTED)
        assert decided.last_stable_offset == decided.high_watermark == 5
        (aborted,) = decided.aborted_transactions
        assert (aborted.producer_id, aborted.first_offset) == (7, 1)
        assert await latest(it, READ_COMMITTED) == 5
        # Of a range that has none of it, it isn't told.
        behind = await it.fetch("t", 5, isolation_level=READ_COMMITTED)
        assert behind.aborted_transactions == []


@on_a_loop
async def test_a_reader_of_committed_records_wakes_when_they_are_stable(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        Coordinator(it)
        await it.create("t")
        await write(it, b"a", sequence=0)
        fetch = asyncio.ensure_future(
            it.fetch("t", isolation_level=READ_COMMITTED, max_wait_ms=60_000)
        )
        await asyncio.sleep(0)
        waiting = it.broker.state.fetch_waiters
        await write(it, b"b", sequence=1)
        await it.produced("t")
        assert len(waiting) == 1, "what isn't stable wakes nobody"
        await end(it)
        found = await fetch
        assert found.last_stable_offset == 4
        assert len(found.records) > 0


# -- markers ---------------------------------------------------------------------------------


@on_a_loop
async def test_only_nodes_may_end_transactions(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        Coordinator(it)
        await it.create("t")
        await write(it, b"a", sequence=0)
        assert await end(it, node=None) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (await it.fetch("t")).last_stable_offset == 0
        versions = await it.answer(Api.API_VERSIONS, 0, Struct())
        assert Api.WRITE_TXN_MARKERS not in {key.api_key for key in versions.api_keys}


@on_a_loop
async def test_each_marker_is_answered_for_itself(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        Coordinator(it)
        await it.create("t")
        await write(it, b"a", sequence=0)
        assert await end(it, epoch=2) == ErrorCode.NONE
        assert await end(it, epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await end(it, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_a_loop
async def test_a_marker_that_was_held_up_on_an_older_connection_ends_no_later_transaction(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        Coordinator(it)
        await it.create("t")
        await write(it, b"a", sequence=0)
        it.peer.opened_at = 2.0
        assert await end(it) == ErrorCode.NONE
        await write(it, b"b", sequence=1)
        it.peer.opened_at = 1.0
        assert await end(it) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await latest(it, READ_COMMITTED) == 2
        # Another node's connections have nothing to do with that.
        assert await end(it, committed=False, node=2) == ErrorCode.NONE
        assert await latest(it, READ_COMMITTED) == 4


@on_a_loop
async def test_producers_are_described(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        Coordinator(it)
        await it.create("t")
        await it.produced("t")
        await write(it, b"a", b"b", sequence=0)
        await end(it, producer_id=8, epoch=3)
        topics = [Struct(name=name, partition_indexes=[0]) for name in ("t", "none")]
        answer = await it.answer(Api.DESCRIBE_PRODUCERS, 0, Struct(topics=topics))
        known, unknown = (topic.partitions[0] for topic in answer.topics)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (
                producer.producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
            )
            for producer in known.active_producers
        ] == [(7, 0, 1, -1, 1), (8, 3, -1, 0, -1)]


# -- verification ----------------------------------------------------------------------------


@on_a_loop
async def test_the_coordinator_is_asked_about_the_first_batch_of_a_transaction(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        coordinator = Coordinator(it)
        await it.create("t")
        for sequence in range(3):
            assert (await write(it, b"a", sequence=sequence)).base_offset == sequence
        assert coordinator.asked == [("mine", 7, 0, "t", 0)]
        # A repeat is one, whatever has become of the transaction.
        await end(it)
        assert (await write(it, b"a", sequence=2)).base_offset == 2
        assert len(coordinator.asked) == 1
        assert (await write(it, b"a", sequence=3)).base_offset == 4
        assert len(coordinator.asked) == 2


@on_a_loop
async def test_a_transaction_goes_on_after_its_producer_was_forgotten(tmp_path: Path) -> None:
    """As when too many others came after it, or the clock was put forward by a day."""
    async with started(tmp_path) as it:
        coordinator = Coordinator(it)
        await it.create("t")
        await write(it, b"a", sequence=0)
        state = it.broker.state
        state.partition("t", b"", 0).log.producers.expire(state.now_ms() + 2 * 24 * 3_600_000)
        assert (await write(it, b"b", sequence=1)).error_code == ErrorCode.NONE
        assert len(coordinator.asked) == 2
        assert await end(it) == ErrorCode.NONE
        assert await latest(it, READ_COMMITTED) == 3


@on_a_loop
async def test_what_is_no_transaction_is_refused(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        coordinator = Coordinator(it)
        await it.create("t")
        for said, told in (
            (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
            (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
            # Clients would take these for the end, but shall send again.
            (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
            (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        ):
            coordinator.answer = said
            assert (await write(it, b"a", sequence=0)).error_code == told
        # Without a transactional id nobody could even be asked.
        data = transactional(b"a", sequence=0)
        assert (await it.produced("t", data)).error_code == ErrorCode.INVALID_TXN_STATE
        assert (await it.produced("t")).base_offset == 0


@on_a_loop
async def test_without_a_coordinator_transactional_batches_wait(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        await it.create("t")
        assert (await write(it, b"a", sequence=0)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS


@on_a_loop
async def test_batches_wait_in_their_order_for_the_coordinator(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        coordinator = Coordinator(it)
        coordinator.open.clear()
        await it.create("t")
        writes = [asyncio.ensure_future(write(it, b"a", sequence=n)) for n in range(5)]
        others = write(it, b"b", sequence=0, producer_id=8)
        other = asyncio.ensure_future(others)
        await it.produced("t")  # who has no transaction waits for none
        await eventually_on_loop(lambda: len(it.broker.state.verifying) == 6)
        assert not any(it.done() for it in [*writes, other])
        coordinator.open.set()
        assert [(await it).base_offset for it in writes] in (
            [1, 2, 3, 4, 5],
            [2, 3, 4, 5, 6],
        )
        assert (await other).error_code == ErrorCode.NONE
        assert len(coordinator.asked) == 2
        assert len(it.broker.state.verifying) == 0


@on_a_loop
async def test_a_batch_behind_one_that_was_refused_has_to_wait_for_it(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        coordinator = Coordinator(it)
        coordinator.open.clear()
        coordinator.answer = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await it.create("t")
        writes = [asyncio.ensure_future(write(it, b"a", sequence=n)) for n in range(2)]
        await eventually_on_loop(lambda: len(it.broker.state.verifying) == 2)
        coordinator.open.set()
        assert {(await it).error_code for it in writes} == {ErrorCode.NOT_ENOUGH_REPLICAS}
        coordinator.answer = ErrorCode.NONE
        # The third was on its way before its sender heard of the first.
        late = await write(it, b"a", sequence=2)
        assert late.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [(await write(it, b"a", sequence=n)).base_offset for n in range(3)] == [0, 1, 2]


@on_a_loop
async def test_an_abort_that_comes_during_the_question_wins(tmp_path: Path) -> None:
    async with started(tmp_path) as it:
        coordinator = Coordinator(it)
        coordinator.open.clear()
        await it.create("t")
        late = asyncio.ensure_future(write(it, b"a", sequence=0))
        await eventually_on_loop(lambda: len(coordinator.asked) == 1)
        assert await end(it, committed=False) == ErrorCode.NONE
        coordinator.open.set()
        assert (await late).error_code == ErrorCode.INVALID_TXN_STATE
        found = await it.fetch("t")
        assert found.last_stable_offset == found.high_watermark == 1


@on_a_loop
async def test_what_waits_for_a_coordinator_is_bounded_and_ends_with_the_node(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as it:
        coordinator = Coordinator(it)
        coordinator.open.clear()
        await it.create("t")
        most = verifying.MAX_WAITING
        writes = [asyncio.ensure_future(write(it, b"a", sequence=n)) for n in range(most)]
        await eventually_on_loop(lambda: len(it.broker.state.verifying) == most)
        beyond = await write(it, b"a", sequence=most)
        assert beyond.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        it.broker.release_waiters()
        assert {(await it).error_code for it in writes} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
