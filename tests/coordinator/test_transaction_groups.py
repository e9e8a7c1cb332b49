"""Transactions that end together: one batch of a query, written by many tasks."""

import pytest

from sapwood.coordinator.transaction import State
from sapwood.coordinator.transactions import Limits, Transactions
from sapwood.wire.errors import ErrorCode
from tests.coordinator.transacting import (
    TIMEOUT_MS,
    A,
    B,
    C,
    Producer,
    Stage,
    refusal,
    replayed,
)

QUERY = "spark/sales"


def child(stage: Stage, batch: int, task: int, attempt: int = 0, query: str = QUERY) -> Producer:
    producer = stage.producer(f"{query}␟{batch}/{task}/{attempt}")
    stage.add(producer, (A, B, C)[task % 3])
    return producer


def states(machine: Transactions) -> dict[str, State]:
    return {it.transactional_id.partition("␟")[2]: it.state for it in machine}


def test_all_children_of_a_batch_commit_in_one_batch_of_the_log() -> None:
    stage = Stage()
    children = [child(stage, 0, task) for task in range(3)]
    before = len(stage.batches)
    answer = stage.end_group(QUERY, 0, *children)
    assert (answer.last_batch_id, answer.already_done) == (0, False)
    assert len(stage.batches) == before + 1
    assert set(states(stage.machine).values()) == {State.PREPARE_COMMIT}
    assert [it.committed for it in stage.mark_all()] == [True] * 3


@pytest.mark.parametrize("lost", [False, True])
def test_whether_or_not_the_batch_survives_it_is_all_or_nothing(lost: bool) -> None:
    stage = Stage()
    children = [child(stage, 4, task) for task in range(3)]
    before = len(stage.batches)
    stage.end_group(QUERY, 4, *children)
    stage.reload(batches=before if lost else None)
    expected = State.ONGOING if lost else State.PREPARE_COMMIT
    assert set(states(stage.machine).values()) == {expected}
    answer = stage.end_group(QUERY, -1)
    assert answer.last_batch_id == (-1 if lost else 4)


def test_a_child_that_is_not_open_any_more_refuses_the_whole_group() -> None:
    stage = Stage()
    first, second = child(stage, 0, 0), child(stage, 0, 1)
    stage.end(second, False)
    before = list(stage.log)
    code = refusal(lambda: stage.end_group(QUERY, 0, first, second))
    assert code is ErrorCode.INVALID_TXN_STATE
    third = child(stage, 0, 2)
    stage.pass_time(TIMEOUT_MS)
    code = refusal(lambda: stage.end_group(QUERY, 0, third))
    assert code is ErrorCode.PRODUCER_FENCED
    assert stage.log[: len(before)] == before
    assert stage.end_group(QUERY, -1).last_batch_id == -1


def test_children_of_others_are_refused_and_left_alone() -> None:
    stage = Stage()
    own = child(stage, 1, 0)
    for other in (child(stage, 2, 0), child(stage, 1, 0, query="spark/bills")):
        code = refusal(stage.end_group, QUERY, 1, own, other)
        assert code is ErrorCode.INVALID_REQUEST
    stage.end_group(QUERY, 1, own)
    assert stage.state(f"{QUERY}␟2/0/0") is State.ONGOING
    assert stage.state("spark/bills␟1/0/0") is State.ONGOING


def test_what_the_batch_has_open_beside_the_listed_is_aborted_and_fenced() -> None:
    stage = Stage()
    winner, slow = child(stage, 3, 0, attempt=1), child(stage, 3, 0, attempt=0)
    leftover = child(stage, 2, 5)
    stage.end_group(QUERY, 3, winner)
    assert states(stage.machine) == {
        "3/0/1": State.PREPARE_COMMIT,
        "3/0/0": State.PREPARE_ABORT,
        "2/5/0": State.PREPARE_ABORT,
    }
    for late in (slow, leftover):
        assert refusal(stage.add, late, C) is ErrorCode.PRODUCER_FENCED


def test_a_batch_at_or_below_the_last_one_changes_nothing() -> None:
    stage = Stage()
    done = child(stage, 7, 0)
    stage.end_group(QUERY, 7, done)
    stage.mark_all()
    before = list(stage.log)
    for batch_id, committed in ((7, True), (6, True), (7, False)):
        answer = stage.end_group(QUERY, batch_id, done, committed=committed)
        assert (answer.last_batch_id, answer.already_done) == (7, True)
    assert stage.log == before


def test_no_child_begins_in_a_batch_that_is_committed() -> None:
    stage = Stage()
    late = stage.producer(f"{QUERY}␟7/1/0")
    stage.end_group(QUERY, 7, child(stage, 7, 0))
    assert refusal(lambda: stage.add(late, A)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for batch in (7, 6):
        code = refusal(lambda batch=batch: child(stage, batch, 0, attempt=1))
        assert code is ErrorCode.INVALID_TXN_STATE
    child(stage, 8, 0)


def test_the_batches_of_so_many_queries_are_remembered_and_the_longest_quiet_one_goes() -> None:
    stage = Stage(Limits(max_queries=2))
    for query, batch in (("a", 3), ("b", 0), ("a", 4), ("c", 0)):
        stage.end_group(query, batch)
    for _ in range(2):
        last = [stage.end_group(query, -1).last_batch_id for query in ("a", "b", "c")]
        assert last == [4, -1, 0]
        stage.reload()


def test_children_are_forgotten_when_their_batch_is_over() -> None:
    stage = Stage()
    done, failed = child(stage, 0, 0), child(stage, 0, 1)
    stage.end(failed, False)
    stage.mark_all()
    stage.end_group(QUERY, 0, done)
    stage.mark_all()
    assert list(stage.machine) == []
    assert list(replayed(stage.log, Limits())) == []
    assert refusal(lambda: stage.add(failed, A)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    stage.reload()
    assert stage.end_group(QUERY, -1).last_batch_id == 0


def test_a_group_can_be_aborted_and_then_run_again() -> None:
    stage = Stage()
    children = [child(stage, 0, task) for task in range(2)]
    answer = stage.end_group(QUERY, 0, *children, committed=False)
    assert (answer.last_batch_id, answer.already_done) == (-1, False)
    assert set(states(stage.machine).values()) == {State.PREPARE_ABORT}
    stage.mark_all()
    assert stage.end_group(QUERY, 0, committed=False).already_done is False
    stage.end_group(QUERY, 0, child(stage, 0, 0, attempt=1))
    assert stage.end_group(QUERY, -1).last_batch_id == 0


def test_a_batch_without_children_moves_the_marker() -> None:
    stage = Stage()
    assert stage.end_group(QUERY, 5).already_done is False
    stage.reload()
    assert stage.end_group(QUERY, 5).already_done is True


def test_a_group_that_is_too_large_for_one_batch_is_refused_whole() -> None:
    stage = Stage(Limits(max_group_bytes=300))
    children = [child(stage, 0, task) for task in range(3)]
    code = refusal(lambda: stage.end_group(QUERY, 0, *children))
    assert code is ErrorCode.POLICY_VIOLATION
    assert set(states(stage.machine).values()) == {State.ONGOING}


def test_names_that_only_look_like_children_are_left_alone() -> None:
    stage = Stage()
    for suffix in ("x/1", "", "-1/0", "١/0", "9" * 30 + "/0"):
        stage.add(stage.producer(f"{QUERY}␟{suffix}"), A)
    stage.end_group(QUERY, 5)
    assert {it.state for it in stage.machine} == {State.ONGOING}
