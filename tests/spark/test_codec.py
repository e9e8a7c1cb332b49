"""Record batches to Arrow and back, against the readers and writers of `wire` and of others."""

import ctypes
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.client.fetcher import Chunk
from sapwood.client.partitioner import partition_of_key
from sapwood.spark import decoding
from sapwood.spark.columns import UnsuitableColumns
from sapwood.spark.decoding import HEADERS_TYPE, SCHEMA_WITH_HEADERS, record_batches
from sapwood.spark.encoding import Packed, Rows, partitions_of_keys
from sapwood.wire.batch import (
    CRC_POSITION,
    CRC_START,
    HEADER_SIZE,
    iterate,
    patch_append_time,
    read_header,
)
from sapwood.wire.codec import Buffer
from sapwood.wire.compression import Compression
from sapwood.wire.errors import KafkaError, MalformedMessage
from sapwood.wire.records import NewRecord, Record, decode_batch, encode_batch, seal_batch

CODECS = list(Compression)
NOW_MS = 1_700_000_000_000
LAST_MS = (2**63 - 1) // 1000  # that is a microsecond of 64 bits, too

headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
record_values = st.tuples(
    st.integers(-1, 2**42),
    st.none() | st.binary(max_size=100),
    st.none() | st.binary(max_size=200),
    headers,
)
batches = st.lists(st.lists(record_values, min_size=1, max_size=20), min_size=1, max_size=4)


def chunk_of(data: Buffer, first: int = 0, stop: int | None = None) -> Chunk:
    return Chunk("orders", 3, first, 0, stop, 0, memoryview(data))


def as_records(found: Sequence[pa.RecordBatch]) -> list[Record]:
    """What the columns hold, as `wire` would say it."""
    records = []
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA_WITH_HEADERS)
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for row, time_us in zip(batch.to_pylist(), times, strict=True):
            assert (row["topic"], row["partition"]) == ("orders", 3)
            pairs = tuple((each["key"], each["value"]) for each in row["headers"] or ())
            records.append(Record(row["offset"], time_us // 1000, row["key"], row["value"], pairs))
    return records


def decoded(data: Buffer, first: int = 0, stop: int | None = None) -> list[Record]:
    return as_records(list(record_batches(chunk_of(data, first, stop), with_headers=True)))


def decoded_by_wire(data: Buffer) -> list[Record]:
    return [record for position, _ in iterate(data) for record in decode_batch(data, position)]


@given(batches, st.sampled_from(CODECS))
@settings(max_examples=60, deadline=None)
def test_what_is_decoded_equals_what_wire_decodes(
    lists: list[list[NewRecord]], codec: Compression
) -> None:
    data, base_offset = bytearray(), 5
    for values in lists:
        data += encode_batch(values, base_offset=base_offset, compression=codec)
        base_offset += len(values)
    assert decoded(bytes(data)) == decoded_by_wire(data)


def test_batches_of_every_codec_may_follow_each_other() -> None:
    data = b"".join(
        encode_batch(
            [(NOW_MS, b"key", codec.name.encode(), [])], base_offset=codec, compression=codec
        )
        for codec in CODECS
    )
    assert [record.value for record in decoded(data)] == [codec.name.encode() for codec in CODECS]


def test_records_before_the_first_and_from_the_last_offset_on_are_left_out() -> None:
    values: list[NewRecord] = [(NOW_MS, None, b"%d" % number, []) for number in range(10)]
    data = bytes(encode_batch(values, base_offset=100, offsets=list(range(100, 120, 2))))
    assert [record.offset for record in decoded(data, 103, 110)] == [104, 106, 108]
    assert decoded(data, 120) == []


def test_a_time_that_the_broker_set_counts_for_every_record() -> None:
    data = encode_batch([(NOW_MS, None, b"a", []), (NOW_MS + 5, None, b"b", [])])
    patch_append_time(data, 0, NOW_MS + 77)
    (batch,) = record_batches(chunk_of(data))
    assert batch.column("timestampType").to_pylist() == [1, 1]
    assert [record.timestamp for record in decoded(data)] == [NOW_MS + 77] * 2


def test_kinds_of_time_may_change_from_batch_to_batch() -> None:
    set_by_broker = encode_batch([(NOW_MS, None, b"b", [])], base_offset=1)
    patch_append_time(set_by_broker, 0, NOW_MS)
    data = bytes(encode_batch([(NOW_MS, None, b"a", [])]) + set_by_broker)
    kinds = [batch.column("timestampType").to_pylist() for batch in record_batches(chunk_of(data))]
    assert kinds == [[0], [1]]


def test_a_time_that_no_microsecond_can_hold_becomes_the_last_one() -> None:
    data = encode_batch([(2**62, None, b"late", [])])
    (batch,) = record_batches(chunk_of(data))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [(2**63 - 1) // 1000 * 1000]


def test_large_chunks_are_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SLICE_BYTES", 1000)
    data = b"".join(
        encode_batch([(NOW_MS, None, bytes(400), [])], base_offset=number) for number in range(10)
    )
    found = list(record_batches(chunk_of(data), with_headers=True))
    assert [batch.num_rows for batch in found] == [2] * 5
    assert [record.offset for record in as_records(found)] == list(range(10))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_compaction_has_emptied_holds_nothing(codec: Compression) -> None:
    assert decoded(bytes(seal_batch(b"", 0, -1, -1, last_offset_delta=9, compression=codec))) == []


def marker(base_offset: int, producer_id: int, kind: int) -> bytearray:
    key = b"\0\0" + kind.to_bytes(2, "big")
    return encode_batch(
        [(NOW_MS, key, bytes(6), [])],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


def test_records_of_aborted_transactions_and_markers_are_left_out() -> None:
    def of(producer_id: int, offset: int) -> bytearray:
        value = b"%d at %d" % (producer_id, offset)
        return encode_batch(
            [(NOW_MS, None, value, [])],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    data = bytes(
        of(1, 10) + of(2, 11) + marker(12, 1, 0) + of(1, 13) + marker(14, 2, 1) + marker(15, 1, 1)
    )
    chunk = chunk_of(data, 10)._replace(aborted=((1, 9),))
    found = as_records(list(record_batches(chunk, with_headers=True)))
    assert [record.value for record in found] == [b"2 at 11", b"1 at 13"]


def test_a_batch_that_fails_its_crc_raises() -> None:
    data = encode_batch([(NOW_MS, None, b"value", [])])
    data[-1] ^= 1
    with pytest.raises(KafkaError, match="partition 3: the batch at offset 0 fails its CRC"):
        decoded(data)


def test_a_decompressed_batch_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "DEFAULT_MAX_BYTES", 1000)
    data = encode_batch([(NOW_MS, None, bytes(2000), [])], compression=Compression.ZSTD)
    with pytest.raises(MalformedMessage, match="exceeds 1000 bytes"):
        decoded(data)


class GuardedMemory:
    """Bytes behind whose end lies a page that must not be touched: who reads on is killed."""

    def __init__(self, room_bytes: int) -> None:
        self._end = -(-room_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self._end + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + self._end
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0

    def hold(self, data: bytes) -> memoryview:
        start = self._end - len(data)
        self._map[start : self._end] = data
        return memoryview(self._map)[start : self._end]


def outcome(decode: Callable[[], list[Record]]) -> list[Record] | None:
    """None if it raised as it should."""
    try:
        return decode()
    except MalformedMessage:
        return None


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Other records under a CRC that says they are right."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(HEADER_SIZE, len(changed))
        match chance.randrange(4):
            case 0:
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                changed[place] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[place : place + chance.randrange(1, 4)]
            case _:
                changed[place:place] = chance.choice((b"\xff" * 9, b"\x80", b"\x01", b"\0\0"))
        if len(changed) <= HEADER_SIZE:
            break
    if chance.random() < 0.3:  # the number of records, or their last offset
        place = chance.choice((57, 23))
        changed[place : place + 4] = chance.choice((0, 1, 3, 1000, 2**31 - 1)).to_bytes(4, "big")
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[CRC_POSITION:CRC_START] = crc32c(bytes(changed[CRC_START:])).to_bytes(4, "big")
    return bytes(changed)


def test_mutated_records_raise_or_are_read_as_wire_reads_them() -> None:
    memory = GuardedMemory(1 << 16)
    raised = 0
    for seed in range(4000):
        chance = random.Random(seed)
        values: list[NewRecord] = [
            (
                NOW_MS + chance.randrange(1000),
                None if chance.random() < 0.3 else chance.randbytes(chance.randrange(5)),
                None if chance.random() < 0.3 else chance.randbytes(chance.choice((0, 3, 70))),
                [("é", b"1"), ("b", None)] if chance.random() < 0.5 else [],
            )
            for _ in range(chance.randrange(1, 4))
        ]
        data = memory.hold(mutated(bytes(encode_batch(values)), chance))
        expected = outcome(partial(decoded_by_wire, data))
        found = outcome(partial(decoded, data))
        if expected is not None:
            expected = [it._replace(timestamp=min(it.timestamp, LAST_MS)) for it in expected]
        assert found == expected, seed
        raised += found is None
    assert 1000 < raised < 3900


# Encoding


def table_of(values: Sequence[NewRecord], **kinds: Any) -> pa.RecordBatch:
    pairs = [
        [{"key": name, "value": content} for name, content in record[3]] or None
        for record in values
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record[1] for record in values], kinds.get("key", pa.binary())),
            pa.array([record[2] for record in values], kinds.get("value", pa.binary())),
            pa.array([record[0] for record in values], pa.timestamp("ms", "UTC")),
            pa.array(pairs, HEADERS_TYPE),
        ],
        ["key", "value", "timestamp", "headers"],
    )


def sealed(packed: Packed, compression: int = 0) -> bytes:
    return bytes(seal_batch(*packed, compression=compression))


def packed(batch: pa.RecordBatch, rows: Sequence[int], most_bytes: int = 2**20) -> list[Packed]:
    return list(Rows(batch, NOW_MS).pack(np.array(rows, np.int64), most_bytes, 2**21))


@given(
    st.lists(record_values, min_size=1, max_size=30),
    st.sampled_from(CODECS),
    st.integers(30, 2000),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_what_is_encoded_is_read_by_others(
    values: list[NewRecord], codec: Compression, most_bytes: int, data: st.DataObject
) -> None:
    # A slice of a larger table, whose bitmaps begin in the middle of a byte.
    start = data.draw(st.integers(0, len(values) - 1))
    rows = data.draw(st.permutations(range(len(values) - start)))
    found: list[NewRecord] = []
    for each in packed(table_of(values).slice(start), rows, most_bytes):
        encoded = sealed(each, codec)
        assert AiokafkaBatch(encoded).validate_crc()
        header = read_header(encoded)
        records = decode_batch(encoded)
        assert header.record_count == len(records) == each.record_count
        assert header.max_timestamp == max(record.timestamp for record in records)
        assert len(records) == 1 or len(each.body) <= most_bytes
        found += [(it.timestamp, it.key, it.value, list(it.headers)) for it in records]
    assert found == [values[start + row] for row in rows]


def test_text_large_and_dictionary_columns_become_bytes() -> None:
    texts = ["a", None, "ä"]
    expected = [None if text is None else text.encode() for text in texts]
    for kind in (pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view()):
        values = expected if "binary" in str(kind) else texts
        batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["value"])
        (each,) = packed(batch, range(3))
        assert [record.value for record in decode_batch(sealed(each))] == expected
    batch = pa.RecordBatch.from_arrays([pa.array(texts).dictionary_encode()], ["value"])
    (each,) = packed(batch, range(3))
    assert [record.value for record in decode_batch(sealed(each))] == expected


def test_rows_without_a_time_get_the_present_one_and_finer_times_are_cut() -> None:
    times = pa.array([None, 1_234_999], pa.timestamp("us"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), times], ["value", "timestamp"])
    (each,) = packed(batch, range(2))
    assert [record.timestamp for record in decode_batch(sealed(each))] == [NOW_MS, 1234]


def test_columns_that_cannot_become_messages_are_named() -> None:
    with pytest.raises(UnsuitableColumns, match="no column 'value' among id"):
        Rows(pa.RecordBatch.from_arrays([pa.array([1])], ["id"]), NOW_MS)
    with pytest.raises(UnsuitableColumns, match="column 'value' is list"):
        Rows(pa.RecordBatch.from_arrays([pa.array([[1]])], ["value"]), NOW_MS)
    with pytest.raises(UnsuitableColumns, match="a row is larger than max_request_bytes"):
        packed(pa.RecordBatch.from_arrays([pa.array([b"", bytes(2**22)])], ["value"]), range(2))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50), st.integers(1, 1000))
@settings(deadline=None)
def test_keys_go_to_the_partitions_to_which_every_client_sends_them(
    keys: list[bytes], partition_count: int
) -> None:
    rows = Rows(pa.RecordBatch.from_arrays([pa.array(keys)] * 2, ["key", "value"]), NOW_MS)
    found = partitions_of_keys(rows.keys, len(keys), partition_count)
    assert found.tolist() == [partition_of_key(key, partition_count) for key in keys]


def test_of_workers_that_start_together_one_compiles_and_the_others_take_it_from_the_cache(
    tmp_path: Path,
) -> None:
    asked = "sum(kernels.decode.stats.cache_misses.values())"
    told = f"from sapwood.spark import kernels; print({asked})"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", told],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert sorted(worker.communicate()[0].strip() for worker in workers) == ["0", "1"]
