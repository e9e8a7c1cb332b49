"""Transactions in logs, and a reader that gets to see only those that were committed."""

from __future__ import annotations

from sapwood.log import Log
from sapwood.wire.batch import read_header
from sapwood.wire.control import (
    TransactionMarker,
    decode_transaction_marker,
    encode_transaction_marker,
)
from sapwood.wire.records import decode_batch, encode_batch
from tests.log.batches import put, record


def write(log: Log, producer_id: int, *values: bytes, epoch: int = 0) -> int:
    """Append a batch of a transaction, as a coordinator does; returns its offset."""
    records = [record(value, b"key of " + value) for value in values]
    header = put(log, records, producer=(producer_id, epoch, -1), transactional=True)
    return header.base_offset


def end(
    log: Log,
    producer_id: int,
    *,
    committed: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    now_ms: int = 0,
) -> int:
    """Append a marker; returns its offset."""
    marker = TransactionMarker(committed, coordinator_epoch)
    batch = encode_batch(
        [(-1, *encode_transaction_marker(marker), ())],
        base_offset=log.end_offset,
        leader_epoch=max(log.last_epoch, 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )
    log.append(memoryview(batch), read_header(batch), 0, now_ms)
    return log.end_offset - 1


def read_committed(
    log: Log, high_watermark: int, *, offset: int | None = None, max_bytes: int = 300
) -> list[int]:
    """The offsets of the records that a consumer would give to its user."""
    limit = log.last_stable_offset(high_watermark)
    offset = log.start_offset if offset is None else offset
    seen: list[int] = []
    while batches := log.read(offset, max_bytes, limit):
        end_offset = read_header(batches[-1]).next_offset
        coming = log.transactions.aborted(offset, end_offset)
        aborted: set[int] = set()
        for batch in batches:
            header = read_header(batch)
            while coming and coming[0].first_offset <= header.last_offset:
                aborted.add(coming.pop(0).producer_id)
            if header.is_control:
                it = decode_batch(batch)[0]
                marker = decode_transaction_marker(it.key, it.value)
                if marker is not None and not marker.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                seen += [it.offset for it in decode_batch(batch) if it.offset >= offset]
        offset = end_offset
    return seen
