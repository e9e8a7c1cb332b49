"""What a leader lets in, and with which error it refuses the rest."""

import struct

import pytest
from crc32c import crc32c

from sapwood.log import FIRST_ID
from sapwood.replica import Rules
from sapwood.replica.acceptance import accept
from sapwood.wire import batch as wire_batch
from sapwood.wire.compression import Compression
from sapwood.wire.errors import ErrorCode, KafkaError
from sapwood.wire.records import decode_batch, encode_batch

NOW_MS = 1_700_000_000_000


def rules(**changes: object) -> Rules:
    given: dict[str, object] = {
        "max_message_bytes": 1 << 20,
        "append_time": False,
        "timestamp_before_max_ms": 2**62,
        "timestamp_after_max_ms": 3_600_000,
        "compression": None,
        "compacted": False,
        "min_insync_replicas": 1,
    }
    return Rules(**{**given, **changes})  # type: ignore[arg-type]


def sent(
    keys: tuple[bytes | None, ...] = (b"k",), timestamp: int = NOW_MS, codec: int = 0, **more: int
) -> bytearray:
    records = [(timestamp, key, b"v" * 100, (("h", b"x"),)) for key in keys]
    return encode_batch(records, compression=codec, **more)  # type: ignore[arg-type]


def sealed(data: bytearray, position: int, form: str, value: int) -> bytearray:
    """Change a field and make the CRC right again."""
    struct.pack_into(form, data, position, value)
    header = wire_batch.read_header(data)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21 : header.size]))
    return data


def refusal(data: bytearray | None, given: Rules | None = None) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        accept(None if data is None else memoryview(data), given or rules(), NOW_MS)
    assert refused.value.message
    return refused.value.code


def test_a_good_batch_is_stored_as_it_came() -> None:
    data = sent()
    batch, header, append_time = accept(memoryview(data), rules(), NOW_MS)
    assert bytes(batch) == bytes(data)
    assert (header.record_count, append_time) == (1, -1)


def test_bytes_that_are_no_batch_are_refused() -> None:
    good = sent()
    flipped = sent()
    flipped[-1] ^= 1
    old_format = sent()
    old_format[16] = 1
    assert refusal(None) is ErrorCode.INVALID_RECORD
    assert refusal(bytearray()) is ErrorCode.INVALID_RECORD
    assert refusal(bytearray(b"garbage")) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(good[:-1]) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(good + good) is ErrorCode.INVALID_RECORD
    assert refusal(flipped) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(old_format) is ErrorCode.INVALID_RECORD


def test_a_batch_that_contradicts_itself_is_refused() -> None:
    assert refusal(sealed(sent(), 57, ">i", 2)) is ErrorCode.INVALID_RECORD
    assert refusal(sealed(sent(), 57, ">i", 0)) is ErrorCode.INVALID_RECORD
    assert refusal(sealed(sent(), 21, ">h", 5)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refusal(sealed(sent(), 21, ">h", 0x20)) is ErrorCode.INVALID_RECORD
    assert refusal(sent(producer_id=4)) is ErrorCode.INVALID_RECORD


def test_a_transactional_batch_needs_a_producer() -> None:
    assert refusal(sent(transactional=True)) is ErrorCode.INVALID_RECORD
    whole = sent(transactional=True, producer_id=4, producer_epoch=0, base_sequence=0)
    accept(memoryview(whole), rules(), NOW_MS)


def test_a_message_with_an_id_of_its_own_is_a_batch_of_its_own() -> None:
    def keyed(*keys: bytes, epoch: int = 0, transactional: bool = False) -> bytearray:
        return sent(
            keys,
            producer_id=FIRST_ID,
            producer_epoch=epoch,
            base_sequence=3,
            transactional=transactional,
        )

    accept(memoryview(keyed(b"a")), rules(), NOW_MS)
    assert refusal(keyed(b"a", b"b")) is ErrorCode.INVALID_RECORD
    assert refusal(keyed(b"a", epoch=1)) is ErrorCode.INVALID_RECORD
    assert refusal(keyed(b"a", transactional=True)) is ErrorCode.INVALID_RECORD


def test_a_batch_over_the_limit_is_refused() -> None:
    data = sent()
    assert refusal(data, rules(max_message_bytes=len(data) - 1)) is ErrorCode.MESSAGE_TOO_LARGE
    accept(memoryview(data), rules(max_message_bytes=len(data)), NOW_MS)


def test_times_too_far_away_are_refused_unless_the_broker_sets_them() -> None:
    future = sent(timestamp=NOW_MS + 3_600_001)
    assert refusal(future) is ErrorCode.INVALID_TIMESTAMP
    past = sent(timestamp=NOW_MS - 10)
    assert refusal(past, rules(timestamp_before_max_ms=9)) is ErrorCode.INVALID_TIMESTAMP
    accept(memoryview(sent(timestamp=-1)), rules(timestamp_before_max_ms=9), NOW_MS)
    batch, header, append_time = accept(memoryview(future), rules(append_time=True), NOW_MS)
    assert append_time == header.max_timestamp == NOW_MS
    assert header.timestamp_type == 1
    assert wire_batch.crc_ok(batch, 0, header)
    assert [record.timestamp for record in decode_batch(batch)] == [NOW_MS]


def test_a_compacted_topic_takes_only_records_with_a_key() -> None:
    assert refusal(sent((b"a", None)), rules(compacted=True)) is ErrorCode.INVALID_RECORD
    accept(memoryview(sent((b"a", b"b"))), rules(compacted=True), NOW_MS)


@pytest.mark.parametrize("stored", list(Compression))
@pytest.mark.parametrize("came", list(Compression))
def test_a_topic_with_a_codec_of_its_own_stores_batches_in_it(
    came: Compression, stored: Compression
) -> None:
    data = sent((b"a", b"b"), codec=came, producer_id=4, producer_epoch=1, base_sequence=9)
    records = decode_batch(data)
    batch, header, _ = accept(memoryview(data), rules(compression=stored), NOW_MS)
    assert header.compression == stored
    assert wire_batch.crc_ok(batch, 0, header)
    assert header.size == len(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 9)
    assert decode_batch(batch) == records


def test_a_batch_that_is_too_large_once_it_is_stored_as_the_topic_wants_is_refused() -> None:
    data = sent((b"a", bytes(100_000)), codec=Compression.GZIP)
    assert len(data) < 10_000
    small = rules(compression=Compression.NONE, max_message_bytes=10_000)
    assert refusal(data, small) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_producer_may_not_say_that_the_broker_set_the_time() -> None:
    data = sent((b"a", b"b"))
    wire_batch.patch_append_time(data, 0, NOW_MS)
    assert refusal(data) is ErrorCode.INVALID_TIMESTAMP
