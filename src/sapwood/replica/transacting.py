"""What a partition lets into a transaction, and who may end one.

A late batch of a transaction that was aborted meanwhile must not begin another one, which nobody
would ever end. So the first batch of a transaction is let in only after its coordinator has said
that the partition is part of it, and if no marker has come in between (KIP-890).
"""

from __future__ import annotations

from typing import NamedTuple

from sapwood.log import Log
from sapwood.wire.batch import BatchHeader
from sapwood.wire.control import TransactionMarker, encode_transaction_marker
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import encode_batch


class Guard(NamedTuple):
    """A moment before the coordinator was asked: if it still holds, so does the answer."""

    leader_epoch: int
    marker_offset: int


def guard_of(log: Log, leader_epoch: int, producer_id: int) -> Guard:
    producer = log.producers.find(producer_id)
    return Guard(leader_epoch, -1 if producer is None else producer.marker_offset)


def is_in_progress(log: Log, producer_id: int, producer_epoch: int) -> bool:
    """Whether there is a transaction here that a batch of that epoch goes on with.

    KafkaError if there is one of another epoch, which has to be ended first: if what comes went on
    with it, both would end as one, and what is to be aborted might be committed.
    """
    known = log.producers.find(producer_id)
    if known is None or log.transactions.first_offset(producer_id) is None:
        return False
    if producer_epoch != known.epoch:
        is_late = producer_epoch < known.epoch
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH if is_late else ErrorCode.INVALID_TXN_STATE,
            f"Producer {producer_id} has a transaction in epoch {known.epoch} here that was not "
            f"ended, and sends something in {producer_epoch}",
        )
    return True


def check_transaction(
    log: Log, header: BatchHeader, leader_epoch: int, verified: Guard | None
) -> None:
    """Whether a producer's batch is in a transaction if, and only if, it should be."""
    producer_id = header.producer_id
    in_progress = is_in_progress(log, producer_id, header.producer_epoch)
    if in_progress and not header.is_transactional:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"Producer {producer_id} has a transaction in progress, and sends a batch outside it",
        )
    if in_progress or not header.is_transactional or header.base_sequence < 0:
        return  # without a sequence it is a coordinator's own
    if verified != guard_of(log, leader_epoch, producer_id):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"Producer {producer_id} sends a batch of a transaction that isn't in progress here",
        )


def check_marker(log: Log, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
    """Whether a marker comes from the present coordinator and doesn't reach a later producer."""
    known = log.producers.find(producer_id)
    if known is None:
        return
    if producer_epoch < known.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"A marker for epoch {producer_epoch} of producer {producer_id}, which is at "
            f"{known.epoch}",
        )
    if coordinator_epoch < known.coordinator_epoch:
        raise KafkaError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"A marker of the coordinator in epoch {coordinator_epoch}, one in epoch "
            f"{known.coordinator_epoch} has taken over",
        )


def marker_batch(producer_id: int, producer_epoch: int, marker: TransactionMarker) -> memoryview:
    # Without a time, so that nobody finds it by time.
    batch = encode_batch(
        [(-1, *encode_transaction_marker(marker), ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
    return memoryview(batch)
