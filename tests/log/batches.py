"""Batches for logs, and logs for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sapwood.disk import Disk
from sapwood.log import Log, LogConfig
from sapwood.wire.batch import BatchHeader, read_header
from sapwood.wire.records import NewRecord, Record, decode_batch, encode_batch

DIRECTORY = "/node/logs/topic-0"


def opened(
    disk: Disk,
    config: LogConfig | None = None,
    *,
    durable_end: int = 0,
    clean: bool = False,
    now_ms: int = 0,
) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        config or LogConfig(),
        durable_end=durable_end,
        clean=clean,
        now_ms=now_ms,
    )


def record(value: bytes | None = b"value", key: bytes | None = None, at: int = 0) -> NewRecord:
    return (at, key, value, ())


def put(
    log: Log,
    records: Sequence[NewRecord],
    *,
    hlc: int = 0,
    now_ms: int = 0,
    epoch: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    compression: int = 0,
    transactional: bool = False,
) -> BatchHeader:
    """Append one batch at the log's end, in its last epoch if not in another one; `producer` is
    (id, epoch, first sequence)."""
    batch = encode_batch(
        records,
        base_offset=log.end_offset,
        leader_epoch=max(log.last_epoch, 0) if epoch is None else epoch,
        compression=compression,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )
    header = read_header(batch)
    log.append(memoryview(batch), header, hlc, now_ms)
    return header


def fill(log: Log, batches: int, *, size: int = 100, now_ms: int = 0) -> None:
    for _ in range(batches):
        offset = log.end_offset
        put(
            log,
            [record(b"%d" % offset + bytes(size), at=offset)],
            hlc=(offset + 1) << 16,
            now_ms=now_ms,
        )


def read_all(log: Log, *, limit: int | None = None, max_bytes: int = 1000) -> list[Record]:
    """Everything from the log's start on, as a consumer gets it."""
    limit = log.end_offset if limit is None else limit
    records: list[Record] = []
    offset = log.start_offset
    while batches := log.read(offset, max_bytes, limit):
        for batch in batches:
            records += [it for it in decode_batch(batch) if it.offset >= offset]
            offset = read_header(batch).next_offset
    return records


def offsets(log: Log) -> list[int]:
    return [it.offset for it in read_all(log)]


def fetched(leader: Log, follower: Log, max_bytes: int = 500) -> int:
    """Until nothing is left; returns how many fetches it took."""
    for number in itertools.count():
        pieces = leader.read_replica(*follower.position, max_bytes)
        if not pieces:
            return number
        before = follower.position
        follower.append_entries(b"".join(pieces), 0)
        assert follower.position > before
    return 0


def starts(log: Log) -> list[tuple[int, int]]:
    return log._files.ledger.epochs.starts


def first_at(log: Log, timestamp: int, limit: int) -> tuple[int, int] | None:
    found = log.offset_for_timestamp(timestamp, limit)
    while isinstance(found, int):
        found = log.offset_for_timestamp(timestamp, limit, found)
    return found


def newest(log: Log, limit: int) -> tuple[int, int] | None:
    """The first record with the largest timestamp."""
    largest = log.largest_timestamp(limit)
    return None if largest < 0 else first_at(log, largest, limit)
