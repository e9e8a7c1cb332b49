"""Record batches as a broker sees them, and the records inside, against others' builders."""

import random
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from sapwood.wire import batch
from sapwood.wire.batch import BatchHeader, crc_ok, iterate, read_header, restamp
from sapwood.wire.compression import Compression
from sapwood.wire.encoder import Buffer
from sapwood.wire.errors import MalformedMessage
from sapwood.wire.recompress import recompress
from sapwood.wire.records import NewRecord, Record, decode_batch, encode_batch, varint

CODECS = list(Compression)

headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
record_values = st.tuples(
    st.integers(0, 2**42),
    st.none() | st.binary(max_size=100),
    st.none() | st.binary(max_size=200),
    headers,
)


def sample(count: int = 100, seed: int = 0) -> list[NewRecord]:
    chance = random.Random(seed)
    return [
        (
            1_700_000_000_000 + chance.randrange(-5000, 100_000),
            None if chance.random() < 0.2 else chance.randbytes(chance.choice((0, 1, 8, 70))),
            None if chance.random() < 0.1 else b"value " * chance.choice((0, 1, 20, 2000)),
            [("trace", b"1"), ("empty", None)] if chance.random() < 0.2 else [],
        )
        for _ in range(count)
    ]


def as_records(values: list[NewRecord], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + position, timestamp, key, value, tuple(headers))
        for position, (timestamp, key, value, headers) in enumerate(values)
    ]


def read_by_others(reader: Any, data: bytes) -> list[Record]:
    return [
        Record(it.offset, it.timestamp, it.key, it.value, tuple(map(tuple, it.headers)))
        for it in reader(data)
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", [AiokafkaBatch, KafkaPythonBatch])
def test_other_clients_read_what_was_encoded(codec: Compression, reader: Any) -> None:
    values = sample()
    data = bytes(encode_batch(values, base_offset=42, compression=codec))
    assert reader(data).validate_crc()
    assert read_by_others(reader, data) == as_records(values, 42)


@pytest.mark.parametrize("codec", CODECS)
def test_what_other_clients_encode_is_read(codec: Compression) -> None:
    values = sample(50, seed=1)
    builder = AiokafkaBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=True,
        producer_id=7,
        producer_epoch=3,
        base_sequence=2**31 - 10,
        batch_size=10**7,
    )
    for position, (timestamp, key, value, record_headers) in enumerate(values):
        builder.append(position, timestamp, key, value, list(record_headers))
    data = builder.build()
    header = read_header(data)
    assert crc_ok(data, 0, header)
    assert (header.producer_id, header.producer_epoch, header.record_count) == (7, 3, 50)
    assert header.is_transactional
    assert header.has_producer
    assert not header.is_control
    assert header.compression == codec
    assert header.timestamp_type == 0
    assert header.last_sequence == 39
    assert header.size == len(data)
    assert header.max_timestamp == max(value[0] for value in values)
    assert decode_batch(data) == as_records(values)


@settings(max_examples=100, deadline=None)
@given(st.lists(record_values, min_size=1, max_size=10), st.sampled_from(CODECS))
def test_records_survive_a_batch(values: list[NewRecord], codec: Compression) -> None:
    data = b"before" + encode_batch(values, compression=codec, base_offset=2**40)
    header = read_header(data, 6)
    assert crc_ok(data, 6, header)
    assert header.next_offset == 2**40 + len(values)
    assert decode_batch(memoryview(data), 6) == as_records(values, 2**40)


def test_a_compacted_batch_keeps_its_offsets() -> None:
    values = sample(3)
    data = encode_batch(
        values,
        base_offset=100,
        offsets=[101, 105, 170],
        producer_id=9,
        producer_epoch=1,
        base_sequence=5,
        control=True,
        leader_epoch=8,
    )
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (100, 170, 8)
    assert (header.base_sequence, header.is_control) == (5, True)
    assert [record.offset for record in decode_batch(data)] == [101, 105, 170]
    assert [record.offset for record in read_by_others(AiokafkaBatch, bytes(data))] == [
        101,
        105,
        170,
    ]


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


def test_offset_and_epoch_are_set_in_place_without_touching_the_crc() -> None:
    frame = bytearray(b"??" + encode_batch(sample(3)) + b"??")
    batch.patch_offset(memoryview(frame), 2, 5_000_000_000, 12)
    header = read_header(frame, 2)
    assert (header.base_offset, header.leader_epoch) == (5_000_000_000, 12)
    assert crc_ok(frame, 2, header)
    assert frame.startswith(b"??")
    assert frame.endswith(b"??")
    assert decode_batch(frame, 2)[0].offset == 5_000_000_000


@pytest.mark.parametrize("codec", CODECS)
def test_append_time_is_set_in_place_and_holds_for_every_record(codec: Compression) -> None:
    values = sample(5)
    frame = bytearray(b"??" + encode_batch(values, compression=codec) + b"??")
    before = read_header(frame, 2)
    batch.patch_append_time(memoryview(frame), 2, 1_800_000_000_000)
    header = read_header(frame, 2)
    assert crc_ok(frame, 2, header)
    assert frame.startswith(b"??")
    assert frame.endswith(b"??")
    assert (header.timestamp_type, header.compression) == (1, codec)
    assert header.base_timestamp == before.base_timestamp
    assert {record.timestamp for record in decode_batch(frame, 2)} == {1_800_000_000_000}
    others = AiokafkaBatch(bytes(frame[2:-2]))
    assert others.validate_crc()
    assert {record.timestamp for record in others} == {1_800_000_000_000}


def test_batches_are_iterated_with_their_positions() -> None:
    batches = [encode_batch(sample(count), base_offset=count) for count in (1, 5, 2)]
    data = b"".join(batches)
    found = list(iterate(memoryview(data)))
    assert [position for position, _ in found] == [
        0,
        len(batches[0]),
        len(batches[0]) + len(batches[1]),
    ]
    assert [header.base_offset for _, header in found] == [1, 5, 2]
    assert list(iterate(b"")) == []


def test_a_short_last_batch_is_malformed() -> None:
    data = encode_batch(sample(1)) + encode_batch(sample(1))
    for cut in (1, 30, 60, 61, len(data) // 2 - 1):
        with pytest.raises(MalformedMessage):
            list(iterate(data[:-cut]))


def changed(data: Buffer, **fields: int) -> bytes:
    header = read_header(data)._replace(**fields)
    return batch._HEADER.pack(*header) + data[batch.HEADER_SIZE :]


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": 1},
        {"magic": 0},
        {"length": 48},
        {"length": -1},
        {"last_offset_delta": -1},
        {"record_count": -1},
    ],
)
def test_a_header_that_cannot_be_is_malformed(fields: dict[str, int]) -> None:
    with pytest.raises(MalformedMessage):
        read_header(changed(encode_batch(sample(2)), **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": 4},
        {"record_count": 1},
        {"record_count": 2**31 - 1},
        {"length": 2**31 - 1},
        {"attributes": 5},
        {"attributes": 7},
        {"attributes": 1},
        {"attributes": 4},
    ],
)
def test_a_batch_whose_records_do_not_fit_its_header_is_malformed(fields: dict[str, int]) -> None:
    with pytest.raises(MalformedMessage):
        decode_batch(changed(encode_batch(sample(3)), **fields))


def with_records(body: bytes, count: int) -> bytes:
    header = encode_batch([(0, None, None, [])] * count)[: batch.HEADER_SIZE]
    return changed(header, length=49 + len(body)) + body


def raw_record(time_delta: int, offset_delta: int) -> bytes:
    record = b"\0" + varint(time_delta) + varint(offset_delta) + b"\1\1\0"
    return varint(len(record)) + record


def test_offsets_that_do_not_ascend_within_the_batch_are_malformed() -> None:
    def offsets(*deltas: int) -> list[int]:
        body = b"".join(raw_record(0, delta) for delta in deltas)
        return [record.offset for record in decode_batch(with_records(body, len(deltas)))]

    assert offsets(0, 1, 2) == [0, 1, 2]
    for deltas in ((0, 0, 1), (1, 0, 2), (-1, 0, 1), (0, 1, 3), (0, 1, 2**40)):
        with pytest.raises(MalformedMessage, match="follows"):
            offsets(*deltas)


def test_a_time_that_no_other_batch_could_hold_is_malformed() -> None:
    data = with_records(raw_record(2**40, 0), 1)
    assert decode_batch(data)[0].timestamp == 2**40
    assert decode_batch(changed(data, base_timestamp=-1))[0].timestamp == 2**40 - 1
    for broken in (
        changed(data, base_timestamp=2**63 - 1),
        changed(data, base_timestamp=-(2**63)),
        with_records(raw_record(2**63, 0), 1),
        with_records(b"\x1e\0" + b"\xff" * 10 + b"\1\0\1\1\0", 1),
    ):
        with pytest.raises(MalformedMessage):
            decode_batch(broken)


@pytest.mark.parametrize("target", CODECS)
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_in_another_codec_is_the_same_batch(
    codec: Compression, target: Compression
) -> None:
    values = sample(20)
    data = encode_batch(values, base_offset=7, compression=codec, producer_id=4, base_sequence=3)
    header = read_header(data)
    changed_batch = recompress(data, header, target, 10**7)
    new_header = read_header(changed_batch)
    assert crc_ok(changed_batch, 0, new_header)
    assert new_header.size == len(changed_batch)
    assert new_header.compression == target
    assert (new_header.producer_id, new_header.base_sequence) == (4, 3)
    assert decode_batch(changed_batch) == as_records(values, 7)


def test_a_changed_bit_is_caught_by_the_crc() -> None:
    data = encode_batch(sample(1))
    chance = random.Random(3)
    for _ in range(50):
        broken = bytearray(data)
        broken[chance.randrange(batch.CRC_START, len(data))] ^= 1 << chance.randrange(8)
        assert not crc_ok(broken, 0, BatchHeader._make(batch._HEADER.unpack_from(broken)))
    assert not crc_ok(data[:-1], 0, read_header(data))


@pytest.mark.parametrize("codec", CODECS)
def test_mutated_records_are_understood_or_malformed(codec: Compression) -> None:
    chance = random.Random(codec)
    data = encode_batch(sample(20, seed=5), compression=codec)
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            position = chance.randrange(batch.HEADER_SIZE, len(data))
            broken[position] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            records = decode_batch(broken, max_bytes=10**6)
        except MalformedMessage:
            continue
        assert len(records) == 20


def test_an_empty_batch_that_compaction_left_behind_has_no_records() -> None:
    data = changed(
        encode_batch([(0, None, None, [])])[: batch.HEADER_SIZE], record_count=0, length=49
    )
    assert decode_batch(data) == []


def test_sequences_wrap_from_the_largest_to_zero() -> None:
    values = sample(3)
    assert read_header(encode_batch(values, base_sequence=2**31 - 2)).last_sequence == 0
    assert read_header(encode_batch(values, base_sequence=2**31 - 3)).last_sequence == 2**31 - 1
    assert read_header(encode_batch(values)).last_sequence == -1


def test_a_batch_that_is_stamped_anew_has_other_numbers_and_the_same_records() -> None:
    sealed = encode_batch([(5, b"k", b"v", (("h", None),)), (6, None, b"w", ())], compression=4)
    stamped = restamp(sealed, 7, 2, 90, transactional=True)
    header = read_header(stamped)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 90)
    assert header.is_transactional
    assert crc_ok(stamped, 0, header)
    assert decode_batch(stamped) == decode_batch(sealed)
    assert restamp(stamped, -1, -1, -1, transactional=False) == sealed
