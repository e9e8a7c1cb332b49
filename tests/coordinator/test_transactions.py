"""What a producer may do with its transactional id, and what becomes of its transactions."""

import itertools

import pytest

from sapwood.coordinator import transaction_log
from sapwood.coordinator.transaction import (
    LAST_EPOCH,
    MAY_FOLLOW,
    IllegalTransition,
    State,
    Transaction,
)
from sapwood.coordinator.transactions import Limits, OutdatedConnection, SendMarkers
from sapwood.wire.errors import ErrorCode, MalformedMessage
from tests.coordinator.transacting import TIMEOUT_MS, A, B, C, Stage, refusal

WEEK_MS = Limits().expiration_ms


# -- states ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_a_transaction_moves_only_along_the_table(before: State, after: State) -> None:
    transaction = Transaction("app", 1, 0, 1000, before)
    if after in MAY_FOLLOW[before]:
        transaction.move(after, 5)
        assert (transaction.state, transaction.updated_ms) == (after, 5)
    else:
        with pytest.raises(IllegalTransition, match="can't follow"):
            transaction.move(after, 5)


def test_states_have_the_names_that_clients_know() -> None:
    assert [it.label for it in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


# -- the life of a transaction -----------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_is_decided_then_marked_then_complete(committed: bool) -> None:
    stage = Stage()
    app = stage.producer()
    assert stage.state() is State.EMPTY
    stage.add(app, A, B)
    stage.add(app, C)
    assert stage.state() is State.ONGOING
    stage.end(app, committed)
    assert stage.state() is (State.PREPARE_COMMIT if committed else State.PREPARE_ABORT)
    assert stage.mark_all() == [SendMarkers(*app, committed, (A, B, C), 1)]
    assert stage.state() is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT)


def test_it_is_complete_only_when_the_last_partition_has_its_marker() -> None:
    stage = Stage()
    app = stage.producer()
    stage.add(app, A, B)
    stage.end(app, True)
    [sent] = stage.markers
    stage.run(stage.machine.marked(sent, [B], stage.now_ms))
    assert stage.state() is State.PREPARE_COMMIT
    described = stage.ask(lambda token: stage.machine.describe(token, "app"))
    assert [(it.topic, it.partitions) for it in described.topics] == [("orders", [0])]
    stage.run(stage.machine.marked(sent, [A], stage.now_ms))
    assert stage.state() is State.COMPLETE_COMMIT


def test_a_partition_that_is_added_twice_is_written_down_once() -> None:
    stage = Stage()
    app = stage.producer()
    stage.add(app, A)
    before = len(stage.log)
    stage.add(app, A)
    assert len(stage.log) == before
    stage.add(app)
    assert len(stage.log) == before


def test_an_end_that_is_repeated_gets_the_same_answer_and_the_other_one_is_refused() -> None:
    stage = Stage()
    app = stage.producer()
    assert refusal(lambda: stage.end(app, True)) is ErrorCode.INVALID_TXN_STATE
    stage.add(app, A)
    stage.end(app, True)
    assert refusal(lambda: stage.end(app, True)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: stage.end(app, False)) is ErrorCode.INVALID_TXN_STATE
    stage.mark_all()
    before = list(stage.log)
    stage.end(app, True)
    assert refusal(lambda: stage.end(app, False)) is ErrorCode.INVALID_TXN_STATE
    assert stage.log == before


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    stage = Stage()
    app = stage.producer()
    stage.add(app, A)
    stage.end(app, True)
    assert refusal(lambda: stage.add(app, B)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: stage.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: stage.missing(app, A)) is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.mark_all()
    stage.add(app, B)
    assert stage.missing(app, A, B) == [A]


def test_markers_of_an_earlier_transaction_complete_nothing_later() -> None:
    stage = Stage()
    app = stage.producer()
    stage.add(app, A)
    stage.end(app, True)
    [sent] = stage.mark_all()
    stage.add(app, A)
    assert stage.machine.marked(sent, [A], stage.now_ms) == []
    stage.end(app, True)
    assert stage.machine.marked(sent, [A], stage.now_ms) == []
    assert stage.state() is State.PREPARE_COMMIT


def test_a_partition_belongs_to_the_open_transaction_only() -> None:
    stage = Stage()
    app = stage.producer()
    assert stage.missing(app, A) == [A]
    stage.commit(app, A)
    assert stage.missing(app, A) == [A]


# -- identities --------------------------------------------------------------------------------


def test_whoever_asks_for_the_identity_fences_the_one_before() -> None:
    stage = Stage()
    first = stage.producer()
    second = stage.producer()
    assert (second[1], second[2]) == (first[1], first[2] + 1)
    for late in (
        lambda: stage.add(first, A),
        lambda: stage.end(first, True),
        lambda: stage.missing(first, A),
    ):
        assert refusal(late) is ErrorCode.PRODUCER_FENCED
    stage.commit(second)


def test_an_open_transaction_of_the_one_before_is_aborted_first() -> None:
    stage = Stage()
    first = stage.producer()
    stage.add(first, A)
    assert stage.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: stage.end(first, True)) is ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: stage.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.mark_all() == [SendMarkers("app", first[1], first[2] + 1, False, (A,), 1)]
    assert stage.producer() == ("app", first[1], first[2] + 2)


def test_an_unknown_transactional_id_or_another_producer_id_is_no_mapping() -> None:
    stage = Stage()
    name, producer_id, epoch = stage.producer()
    for stranger in (("other", producer_id, epoch), (name, producer_id + 1, epoch)):
        assert refusal(stage.add, stranger, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refusal(lambda: stage.add(("", 1, 0), A)) is ErrorCode.INVALID_REQUEST
    assert refusal(lambda: stage.init("")) is ErrorCode.INVALID_REQUEST


def test_when_the_epochs_are_used_up_there_is_a_new_producer_id() -> None:
    stage = Stage()
    name, producer_id, epoch = stage.producer()
    while epoch < LAST_EPOCH:
        stage.machine._transactions[name].producer_epoch = LAST_EPOCH - 1
        name, producer_id, epoch = stage.producer()
    renewed = stage.producer()
    assert renewed[1] != producer_id
    assert renewed[2] == 0
    assert refusal(lambda: stage.add((name, producer_id, epoch), A)) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


def test_the_last_epoch_can_still_be_fenced() -> None:
    stage = Stage()
    name, producer_id, _ = stage.producer()
    stage.machine._transactions[name].producer_epoch = LAST_EPOCH
    last = name, producer_id, LAST_EPOCH
    stage.add(last, A)
    assert stage.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.mark_all()[0].producer_epoch == LAST_EPOCH + 1
    assert stage.producer()[1] != producer_id


def test_a_producer_that_says_who_it_is_gets_its_next_epoch_once() -> None:
    stage = Stage()
    name, producer_id, epoch = stage.producer()
    raised = stage.producer(claim=(producer_id, epoch))
    assert raised == (name, producer_id, epoch + 1)
    # The answer was lost, so it asks as the one that it still is.
    assert stage.producer(claim=(producer_id, epoch)) == raised
    assert stage.producer(claim=(producer_id, epoch + 1)) == (name, producer_id, epoch + 2)
    assert refusal(lambda: stage.init(claim=(producer_id, epoch))) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_was_fenced_does_not_get_back_by_saying_who_it_was() -> None:
    stage = Stage()
    _, producer_id, epoch = stage.producer()
    newer = stage.producer()
    stage.add(newer, A)
    before = list(stage.log)
    assert refusal(lambda: stage.init(claim=(producer_id, epoch))) is ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: stage.init(claim=(999, 0))) is ErrorCode.PRODUCER_FENCED
    assert stage.log == before
    stage.end(newer, True)


def test_a_repeated_claim_finds_the_new_producer_id() -> None:
    stage = Stage()
    name, producer_id, _ = stage.producer()
    stage.machine._transactions[name].producer_epoch = LAST_EPOCH
    renewed = stage.producer(claim=(producer_id, LAST_EPOCH))
    assert renewed[1] != producer_id
    assert stage.producer(claim=(producer_id, LAST_EPOCH)) == renewed


@pytest.mark.parametrize("timeout_ms", [-1, 0, Limits().max_timeout_ms + 1])
def test_a_timeout_beyond_the_limits_is_refused(timeout_ms: int) -> None:
    stage = Stage()
    code = refusal(lambda: stage.init(timeout_ms=timeout_ms))
    assert code is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_there_is_a_limit_to_transactional_ids_and_to_the_partitions_of_one() -> None:
    stage = Stage(Limits(max_transactional_ids=1, max_record_bytes=100))
    app = stage.producer()
    assert refusal(lambda: stage.init("other")) is ErrorCode.POLICY_VIOLATION
    many = [("orders", it) for it in range(10)]
    assert refusal(lambda: stage.add(app, *many)) is ErrorCode.POLICY_VIOLATION
    assert stage.state() is State.EMPTY


# -- late requests -----------------------------------------------------------------------------


def test_an_end_that_was_held_up_does_not_end_a_later_transaction() -> None:
    """KAFKA-17754: the client gave its connection up, came again, and was long past that."""
    stage = Stage()
    app = stage.producer(over=1.0)
    stage.add(app, A, over=1.0)
    stage.end(app, True, over=2.0)  # repeated over a new connection, since no answer came
    stage.mark_all()
    stage.add(app, B, over=2.0)
    with pytest.raises(OutdatedConnection):
        stage.end(app, True, over=1.0)
    with pytest.raises(OutdatedConnection):
        stage.add(app, C, over=1.0)
    with pytest.raises(OutdatedConnection):
        stage.init(over=1.0)
    assert stage.state() is State.ONGOING
    stage.end(app, False, over=2.0)
    assert stage.counters.outdated_total == 3


def test_what_was_held_up_at_an_earlier_coordinator_is_refused_after_it_leads_again() -> None:
    stage = Stage()
    app = stage.producer(over=1.0)
    stage.add(app, A, over=1.0)
    stage.reload(since=5.0)
    with pytest.raises(OutdatedConnection):
        stage.end(app, True, over=1.0)
    stage.end(app, True, over=6.0)


def test_a_fenced_producer_on_a_newer_connection_does_not_shut_out_the_present_one() -> None:
    stage = Stage()
    fenced = stage.producer(over=1.0)
    present = stage.producer(over=2.0)
    assert refusal(lambda: stage.add(fenced, A, over=9.0)) is ErrorCode.PRODUCER_FENCED
    stage.add(present, A, over=2.0)


# -- time --------------------------------------------------------------------------------------


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced() -> None:
    stage = Stage()
    app = stage.producer()
    stage.add(app, A)
    stage.pass_time(TIMEOUT_MS - 1)
    stage.add(app, B)
    assert stage.state() is State.ONGOING
    stage.pass_time(1)
    assert stage.mark_all() == [SendMarkers("app", app[1], app[2] + 1, False, (A, B), 1)]
    assert refusal(lambda: stage.end(app, True)) is ErrorCode.PRODUCER_FENCED
    assert stage.counters.timed_out_total == 1


def test_every_transaction_has_its_own_time() -> None:
    stage = Stage()
    app = stage.producer()
    for _ in range(5):
        stage.commit(app)
        stage.pass_time(TIMEOUT_MS // 2)
    stage.add(app, A)
    stage.pass_time(TIMEOUT_MS - 1)
    assert stage.state() is State.ONGOING
    stage.pass_time(1)
    assert stage.state() is State.PREPARE_ABORT


def test_a_shorter_timeout_holds_for_the_next_transaction() -> None:
    stage = Stage()
    stage.commit(stage.producer())
    app = stage.producer(timeout_ms=1000)
    stage.add(app, A)
    stage.pass_time(1000)
    assert stage.state() is State.PREPARE_ABORT


def test_a_deadline_holds_across_a_change_of_the_coordinator() -> None:
    stage = Stage()
    app = stage.producer()
    stage.add(app, A)
    stage.pass_time(TIMEOUT_MS - 10)
    stage.reload()
    stage.pass_time(9)
    assert stage.state() is State.ONGOING
    stage.pass_time(1)
    assert stage.state() is State.PREPARE_ABORT


def test_a_transactional_id_that_nobody_uses_is_forgotten_in_the_end() -> None:
    stage = Stage()
    stage.commit(stage.producer("idle"))
    busy = stage.producer("busy")
    for _ in range(8):
        stage.pass_time(WEEK_MS // 7)
        stage.commit(busy)
    assert [it.transactional_id for it in stage.machine] == ["busy"]
    stage.reload()
    assert [it.transactional_id for it in stage.machine] == ["busy"]


def test_a_transaction_that_lacks_markers_is_never_forgotten() -> None:
    stage = Stage()
    app = stage.producer()
    stage.add(app, A)
    stage.end(app, True)
    stage.pass_time(2 * WEEK_MS)
    assert stage.state() is State.PREPARE_COMMIT


# -- the log -----------------------------------------------------------------------------------


def test_what_was_decided_goes_on_at_the_next_coordinator() -> None:
    stage = Stage()
    app, other = stage.producer(), stage.producer("other")
    stage.add(app, A, B)
    stage.add(other, C)
    stage.end(app, True)
    stage.reload()
    assert stage.mark_all() == [SendMarkers(*app, True, (A, B), 1)]
    assert stage.state() is State.COMPLETE_COMMIT
    assert stage.state("other") is State.ONGOING


def test_the_newest_record_of_each_key_gives_the_same_state_as_all_of_them() -> None:
    stage = Stage()
    app, other = stage.producer(), stage.producer("other")
    stage.commit(app, A, B)
    stage.add(app, C)
    stage.add(other, A)
    stage.end(other, False)
    whole = Stage()
    whole.log = list(stage.log)
    whole.reload()
    compacted = Stage()
    compacted.log = list(dict(stage.log).items())
    compacted.reload()
    assert list(whole.machine) == list(compacted.machine)


def test_records_have_kafkas_format() -> None:
    transaction = Transaction(
        "app", 5, 1, 1000, State.ONGOING, {("t", 1): None, ("t", 2): None}, 7, 3, 4
    )
    key, value = transaction_log.encode_transaction(transaction)
    assert key == bytes.fromhex("0000 0003") + b"app"
    assert value == bytes.fromhex(
        "0001"  # version
        "0000000000000005 0001 000003e8 01"  # producer id, epoch, timeout, status
        "02 0274 03 00000001 00000002 00"  # one topic, two partitions
        "0000000000000007 0000000000000003"  # last update, start
        "01 00 08 0000000000000004"  # the previous producer id, tagged
    )
    assert transaction_log.decode_transaction("app", value) == transaction


def test_records_of_kafkas_first_version_are_read() -> None:
    value = bytes.fromhex(
        "0000 0000000000000005 0001 000003e8 01"
        "00000001 0001 74 00000002 00000001 00000002"
        "0000000000000007 0000000000000003"
    )
    transaction = transaction_log.decode_transaction("app", value)
    assert transaction == Transaction(
        "app", 5, 1, 1000, State.ONGOING, {("t", 1): None, ("t", 2): None}, 7, 3
    )


def test_records_of_unknown_kinds_are_skipped_and_of_unknown_versions_are_not() -> None:
    stage = Stage()
    stage.machine.replay(b"\x00\x63whatever", b"\x00\x00", None)
    stage.machine.replay(None, b"", None)
    with pytest.raises(MalformedMessage, match="unknown version"):
        stage.machine.replay(b"\x00\x00\x00\x01a", b"\x00\x09", None)
    with pytest.raises(MalformedMessage, match="malformed"):
        stage.machine.replay(b"\x00\x00\x00\x01a", b"\x00\x01\x00", None)
