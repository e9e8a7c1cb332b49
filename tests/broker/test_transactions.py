"""Transactions at one node: what producers are answered, and what readers see of it."""

from pathlib import Path
from typing import Any

import pytest

from sapwood.wire.apis import Api
from sapwood.wire.batch import iterate
from sapwood.wire.codec import Struct
from sapwood.wire.control import decode_transaction_marker
from sapwood.wire.errors import ErrorCode
from sapwood.wire.records import decode_batch
from tests.broker.asking import Asking, on_a_loop, started
from tests.broker.transacting import Producer
from tests.helpers import eventually_on_loop

QUERY = "spark/sales"


async def committed(asking: Asking, topic: str = "t") -> list[bytes]:
    """What a reader of committed transactions gives to its user."""
    answer = await asking.fetch(topic, isolation_level=1)
    assert answer.error_code == 0
    coming = [(it.first_offset, it.producer_id) for it in answer.aborted_transactions]
    aborted: set[int] = set()
    values: list[bytes] = []
    for position, header in iterate(answer.records):
        records = decode_batch(answer.records, position)
        aborted |= {it for first, it in coming if first == header.base_offset}
        if header.is_control:
            marker = decode_transaction_marker(records[0].key, records[0].value)
            if marker is not None and not marker.committed:
                aborted.discard(header.producer_id)
        elif header.producer_id not in aborted:
            values += [it.value or b"" for it in records]
    return values


async def written(asking: Asking, topic: str = "t") -> list[bytes]:
    answer = await asking.fetch(topic)
    return [
        it.value or b""
        for position, header in iterate(answer.records)
        if not header.is_control
        for it in decode_batch(answer.records, position)
    ]


@on_a_loop
async def test_a_transaction_is_read_when_it_is_committed_and_never_if_aborted(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t", "u")
        app = await Producer(asking).begin()
        for value, commits in ((b"one", True), (b"two", False), (b"three", True)):
            await app.added("t")
            await app.added("u")
            assert (await app.send("t", value)).error_code == 0
            assert (await app.send("u", value)).error_code == 0
            assert value not in await committed(asking)
            assert await app.end(commits) == 0
            await app.settled("CompleteCommit" if commits else "CompleteAbort")
        for topic in ("t", "u"):
            assert await committed(asking, topic) == [b"one", b"three"]
            assert await written(asking, topic) == [b"one", b"two", b"three"]


@on_a_loop
async def test_what_was_not_added_to_the_transaction_is_not_written(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t", "u")
        app = await Producer(asking).begin()
        assert (await app.send("t", b"early")).error_code == ErrorCode.INVALID_TXN_STATE
        await app.added("u")
        assert (await app.send("t", b"elsewhere")).error_code == ErrorCode.INVALID_TXN_STATE
        await app.added("t")
        app.sequences = {}
        assert (await app.send("t", b"right")).error_code == 0
        assert await app.end(True) == 0
        await app.settled("CompleteCommit")
        assert (await app.send("t", b"late")).error_code == ErrorCode.INVALID_TXN_STATE
        assert await written(asking) == [b"right"]


@on_a_loop
async def test_a_second_producer_with_the_id_fences_the_first(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        first = await Producer(asking).begin()
        await first.added("t")
        await first.send("t", b"of the first")
        second = Producer(asking)
        while (answer := await second.init()).error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            pass
        assert (answer.producer_id, answer.producer_epoch) == (first.producer_id, first.epoch + 2)
        late = await first.send("t", b"late")
        assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await first.end(True) == ErrorCode.PRODUCER_FENCED
        await second.added("t")
        await second.send("t", b"of the second")
        assert await second.end(True) == 0
        await second.settled("CompleteCommit")
        assert await committed(asking) == [b"of the second"]


@on_a_loop
async def test_a_transaction_that_is_open_for_too_long_is_aborted(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        app = await Producer(asking).begin(timeout_ms=300)
        await app.added("t")
        await app.send("t", b"slow")
        await app.settled("CompleteAbort")
        assert await app.end(True) == ErrorCode.PRODUCER_FENCED
        assert await committed(asking) == []
        metrics = asking.broker.metrics()
        assert metrics["sapwood_transactions_timed_out_total"] == 1


@on_a_loop
async def test_versions_decide_what_a_fenced_producer_is_told(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        app = await Producer(asking).begin()
        before = app.producer_id, app.epoch
        app.epoch -= 1
        old, new = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
        for version in range(5):
            assert await app.end(True, version=version) == (old if version < 2 else new)
        for version in range(4):
            assert await app.add("t", version=version) == [old if version < 2 else new]
        for version in range(5):
            message = _identity(app, group_id="g")
            answer = await asking.answer(Api.ADD_OFFSETS_TO_TXN, version, message)
            assert answer.error_code == (old if version < 2 else new)
        await app.init(keep=False)
        for version in (3, 4, 5):
            answer = await app.init(before, version=version)
            assert answer.error_code == (old if version < 4 else new)


def _identity(app: Producer, **more: Any) -> Struct:
    return Struct(
        transactional_id=app.name, producer_id=app.producer_id, producer_epoch=app.epoch, **more
    )


@on_a_loop
async def test_a_partition_that_does_not_exist_keeps_the_others_out_as_well(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        app = await Producer(asking).begin()
        assert await app.add("t", 0, 7) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await app.add("nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await app.add("__transaction_state") == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert (await app.describe()).transaction_state == "Empty"


@on_a_loop
async def test_offsets_of_a_group_are_a_partition_of_the_transaction(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        app = await Producer(asking).begin()
        for version in range(5):
            message = _identity(app, group_id="g")
            answer = await asking.answer(Api.ADD_OFFSETS_TO_TXN, version, message)
            assert answer.error_code == 0
        described = await app.describe()
        assert described.transaction_state == "Ongoing"
        assert [it.topic for it in described.topics] == ["__consumer_offsets"]
        assert await app.end(True) == 0
        await app.settled("CompleteCommit")


@on_a_loop
async def test_only_nodes_may_ask_about_transactions_of_others(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        app = await Producer(asking).begin()
        await app.added("t")
        topics = [Struct(name="t", partitions=[0]), Struct(name="u", partitions=[1])]

        async def ask(version: int, verify_only: bool) -> Struct:
            transaction = _identity(app, verify_only=verify_only, topics=topics)
            message = Struct(transactions=[transaction])
            return await asking.answer(Api.ADD_PARTITIONS_TO_TXN, version, message)

        assert (await ask(4, True)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        asking.peer.node = 1
        for version, absent in (
            (4, ErrorCode.INVALID_TXN_STATE),
            (5, ErrorCode.TRANSACTION_ABORTABLE),
        ):
            [result] = (await ask(version, True)).results_by_transaction
            assert _codes(result) == [0, absent]
        [result] = (await ask(5, False)).results_by_transaction
        assert _codes(result) == [ErrorCode.INVALID_REQUEST] * 2


def _codes(result: Struct) -> list[int]:
    return [
        it.partition_error_code
        for topic in result.topic_results
        for it in topic.results_by_partition
    ]


@on_a_loop
async def test_transactions_are_listed_by_state_producer_and_age(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        idle = await Producer(asking, "idle").begin()
        busy = await Producer(asking, "busy").begin()
        await busy.added("t")

        async def found(
            states: tuple[str, ...] = (), producers: tuple[int, ...] = (), longer_ms: int = -1
        ) -> list[str]:
            message = Struct(
                state_filters=list(states),
                producer_id_filters=list(producers),
                duration_filter=longer_ms,
            )
            answer = await asking.answer(Api.LIST_TRANSACTIONS, 1, message)
            assert answer.error_code == 0
            assert answer.unknown_state_filters == [it for it in states if it == "Whatever"]
            return sorted(it.transactional_id for it in answer.transaction_states)

        assert await found() == ["busy", "idle"]
        assert await found(("Ongoing", "Whatever")) == ["busy"]
        assert await found(("Whatever",)) == []
        assert await found(("Empty", "Ongoing")) == ["busy", "idle"]
        assert await found(producers=(idle.producer_id,)) == ["idle"]
        assert await found(("Ongoing",), longer_ms=3_600_000) == []
        described = await Producer(asking, "nobody").describe()
        assert described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@on_a_loop
async def test_what_comes_over_an_older_connection_is_sent_to_a_new_one(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        app = await Producer(asking).begin()
        await app.added("t")
        asking.peer.opened_at = 0.0
        assert await app.end(True) == ErrorCode.NOT_COORDINATOR
        assert asking.peer.finished
        assert (await app.describe()).transaction_state == "Ongoing"


@on_a_loop
async def test_a_deleted_topic_does_not_keep_a_transaction_from_its_end(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t", "u")
        app = await Producer(asking).begin()
        await app.added("t")
        await app.added("u")
        await app.send("u", b"stays")
        await asking.delete("t")
        assert await app.end(True) == 0
        await app.settled("CompleteCommit")
        assert await committed(asking, "u") == [b"stays"]


@pytest.mark.parametrize("outcome", [True, False, None])
@on_a_loop
async def test_transactions_go_on_after_a_restart(tmp_path: Path, outcome: bool | None) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t")
        app = await Producer(asking).begin()
        await app.added("t")
        await app.send("t", b"before")
        if outcome is not None:
            # Decided, and stopped before anybody could have written the marker.
            assert asking.broker._settling is not None
            await asking.broker._settling.close()
            assert await app.end(outcome) == 0
            await asking.broker._settling.close()
            assert await committed(asking) == []
    async with started(tmp_path) as asking:
        app.asking = asking
        await app.find()
        if outcome is None:
            await app.send("t", b"after")
            assert await app.end(True) == 0
        await app.settled("CompleteAbort" if outcome is False else "CompleteCommit")
        expected = {True: [b"before"], False: [], None: [b"before", b"after"]}
        assert await committed(asking) == expected[outcome]


@on_a_loop
async def test_children_of_a_query_end_together(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await asking.create("t", "u")
        children = []
        for task, topic in enumerate(("t", "u")):
            child = await Producer(asking, f"{QUERY}␟0/{task}/0").begin()
            await child.added(topic)
            await child.send(topic, b"row")
            children.append(child)

        async def end_group(query: str, batch_id: int, *chosen: Producer) -> Struct:
            message = Struct(
                query=query,
                batch_id=batch_id,
                children=[_identity(it) for it in chosen],
                committed=True,
            )
            return await asking.answer(Api.END_TXN_GROUP, 0, message)

        children[1].epoch += 1
        answer = await end_group(QUERY, 0, *children)
        assert answer.error_code == ErrorCode.PRODUCER_FENCED
        assert await committed(asking, "t") == []
        children[1].epoch -= 1
        answer = await end_group(QUERY, 0, *children)
        assert (answer.error_code, answer.already_done, answer.last_batch_id) == (0, False, 0)
        answer = await end_group(QUERY, 0, *children)
        assert (answer.error_code, answer.already_done, answer.last_batch_id) == (0, True, 0)
        for child, topic in zip(children, ("t", "u"), strict=True):
            while (await child.describe()).error_code == 0:
                pass
            assert await committed(asking, topic) == [b"row"]
        for query in ("", QUERY + "␟0"):
            answer = await end_group(query, 1)
            assert answer.error_code == ErrorCode.INVALID_REQUEST


@on_a_loop
async def test_the_log_of_transactions_is_not_for_clients_to_write(tmp_path: Path) -> None:
    async with started(tmp_path) as asking:
        await Producer(asking).begin()
        refused = await asking.produced("__transaction_state")
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        coordinators = asking.broker.state.coordinators
        await eventually_on_loop(lambda: len(coordinators.shards("__transaction_state")) == 16)
