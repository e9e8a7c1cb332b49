"""What a leader checks before it lets a producer's batch in.

Headers only: a broker never looks inside a batch, so its cost is per batch and not per record.
The exceptions are topics that ask for it: compacted ones, where every record needs a key, and
those with a compression of their own.
"""

from dataclasses import dataclass

from sapwood.log import FIRST_ID
from sapwood.wire import batch as wire_batch
from sapwood.wire.batch import BatchHeader
from sapwood.wire.compression import Compression
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.recompress import recompress
from sapwood.wire.records import decode_batch

MAX_DECOMPRESSED_BYTES = 32 << 20
"""Of one batch that has to be looked into: a producer must not stall a node with a bomb."""


@dataclass(slots=True, frozen=True)
class Rules:
    """A topic's configs that decide on produce."""

    max_message_bytes: int
    append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compression: Compression | None
    """What batches are stored with; None keeps the producer's choice."""
    compacted: bool
    min_insync_replicas: int


def accept(
    records: memoryview | None, rules: Rules, now_ms: int
) -> tuple[memoryview, BatchHeader, int]:
    """The batch as it is to be stored, its header, and its append time (-1: its producer's).

    The batch may be patched in place.
    """
    if not records:
        raise KafkaError(ErrorCode.INVALID_RECORD, "No records were sent for this partition")
    header = _checked_header(records, rules)
    if not rules.append_time:
        _check_timestamp(header, rules, now_ms)
    if rules.compacted:
        _check_keys(records)
    if rules.compression is not None and header.compression != rules.compression:
        records = _recompressed(records, header, rules.compression)
        header = wire_batch.read_header(records)
        _check_size(header, rules)
    if not rules.append_time:
        return records, header, -1
    wire_batch.patch_append_time(records, 0, now_ms)
    return records, wire_batch.read_header(records), now_ms


def _checked_header(records: memoryview, rules: Rules) -> BatchHeader:
    if len(records) > 16 and records[16] < 2:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Message format v{records[16]} is too old: use a client of Kafka 0.11 or later",
        )
    try:
        header = wire_batch.read_header(records)
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Not a record batch: {error}") from error
    if header.size > len(records):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The record batch is cut short")
    if header.size < len(records):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "A produce request carries one record batch per partition"
        )
    _check_size(header, rules)
    if not wire_batch.crc_ok(records, 0, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The record batch's CRC doesn't match")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"The batch counts {header.record_count} records over "
            f"{header.last_offset_delta + 1} offsets",
        )
    if header.compression > Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown codec {header.compression}"
        )
    if header.timestamp_type != 0:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "Only the broker may say that it set a batch's time"
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "Only the broker may write control records")
    if header.is_transactional and header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "A transactional batch needs a producer id")
    if header.producer_id >= FIRST_ID and (
        header.record_count != 1 or header.producer_epoch or header.is_transactional
    ):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "A message with an id of its own is a batch of its own"
        )
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "An idempotent producer's batch needs an epoch and a sequence"
        )
    return header


def _check_size(header: BatchHeader, rules: Rules) -> None:
    if header.size > rules.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch has {header.size} bytes, max.message.bytes is {rules.max_message_bytes}",
        )


def _check_timestamp(header: BatchHeader, rules: Rules, now_ms: int) -> None:
    age_ms = now_ms - header.max_timestamp
    too_new = -age_ms > rules.timestamp_after_max_ms
    too_old = header.max_timestamp >= 0 and age_ms > rules.timestamp_before_max_ms
    if too_new or too_old:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"Timestamp {header.max_timestamp} is too far from the broker's time {now_ms}; see "
            "message.timestamp.before.max.ms and message.timestamp.after.max.ms",
        )


def _recompressed(records: memoryview, header: BatchHeader, codec: Compression) -> memoryview:
    try:
        return memoryview(recompress(records, header, codec, MAX_DECOMPRESSED_BYTES))
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def _check_keys(records: memoryview) -> None:
    try:
        decoded = decode_batch(records, max_bytes=MAX_DECOMPRESSED_BYTES)
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if any(record.key is None for record in decoded):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "A compacted topic takes only records with a key"
        )
