"""Batches that no producer sends: Kafka's error for each, and nothing of them in the log."""

import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from crc32c import crc32c

from sapwood import Cluster
from sapwood.wire.records import encode_batch
from tests.faults.raw import CLOSED, Wire, produce
from tests.helpers import MIB, peak_resident_bytes, port_of, resident_bytes, unique
from tests.judges.confluent import Confluent, result

UNKNOWN_SERVER_ERROR = -1
CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REQUIRED_ACKS = 21
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
TRANSACTION_DENIED = 53
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87

ZSTD = 4

GOOD_VALUES = [b"value %d" % number for number in range(10)]
GOOD = bytes(encode_batch([(1_700_000_000_000, b"key", value, ()) for value in GOOD_VALUES]))


def signed(batch: bytes | bytearray) -> bytes:
    """With a CRC that is right for whatever stands there now."""
    return bytes(batch[:17]) + struct.pack(">I", crc32c(bytes(batch[21:]))) + bytes(batch[21:])


def patched(position: int, form: str, value: int, *, sign: bool = True) -> bytes:
    batch = bytearray(GOOD)
    struct.pack_into(form, batch, position, value)
    return signed(batch) if sign else bytes(batch)


class Bench:
    """A topic and a connection that brings batches to it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.judge = Confluent(bootstrap)
        self.wire = Wire(port_of(bootstrap))
        self.topic = topic

    def produce(self, records: bytes | None, *, partition: int = 0, acks: int = -1) -> int:
        return produce(self.wire, self.topic, records, partition, acks)

    def values(self) -> list[bytes | None]:
        """All that is in the log."""
        end = TopicPartition(self.topic, 0)
        count = result(self.judge.admin.list_offsets({end: OffsetSpec.latest()})).offset
        return [it.value for it in self.judge.consume(self.topic, count)]


@pytest.fixture
def confluent(bootstrap: str) -> Confluent:
    return Confluent(bootstrap)


@pytest.fixture
def bench(confluent: Confluent) -> Iterator[Bench]:
    topic = unique("garbage")
    confluent.create_topic(topic, config={"max.message.bytes": "100000", "retention.ms": "-1"})
    bench = Bench(confluent.bootstrap, topic)
    yield bench
    bench.wire.close()


# Where a broker stops reading a batch that is no batch is its own affair: either name fits.
NO_BATCH = {CORRUPT_MESSAGE, INVALID_RECORD}
TOO_OLD = {INVALID_RECORD, UNSUPPORTED_FOR_MESSAGE_FORMAT}
CORRUPT = {CORRUPT_MESSAGE}
INVALID = {INVALID_RECORD}

BAD_BATCHES = {
    "a flipped bit in a record": (GOOD[:-3] + bytes([GOOD[-3] ^ 1]) + GOOD[-2:], CORRUPT),
    "a wrong crc": (patched(17, ">I", 0xDEADBEEF, sign=False), CORRUPT),
    "a changed timestamp": (patched(27, ">q", 12345, sign=False), CORRUPT),
    "the format before last": (patched(16, ">b", 0, sign=False), TOO_OLD),
    "the last format": (patched(16, ">b", 1, sign=False), TOO_OLD),
    "a future format": (patched(16, ">b", 3), NO_BATCH),
    "a length beyond the batch": (patched(8, ">i", len(GOOD) + 100), NO_BATCH),
    "a negative length": (patched(8, ">i", -1), NO_BATCH),
    "a huge length": (patched(8, ">i", 2**31 - 1), NO_BATCH | {UNKNOWN_SERVER_ERROR}),
    "a length short of a header": (patched(8, ">i", 20), NO_BATCH),
    "half a batch": (GOOD[:70], NO_BATCH),
    "half a header": (GOOD[:30], NO_BATCH),
    "no batch": (b"", INVALID),
    "two batches": (GOOD + GOOD, INVALID),
    "more records than offsets": (patched(57, ">i", 11), INVALID),
    "fewer records than offsets": (patched(57, ">i", 9), INVALID),
    "no records": (patched(57, ">i", 0), INVALID),
    "minus one records": (patched(57, ">i", -1), NO_BATCH),
    "two thousand million records": (patched(57, ">i", 2**31 - 1), INVALID),
    "a negative last offset": (patched(23, ">i", -1), NO_BATCH),
    "a control batch": (patched(21, ">h", 0x20), INVALID),
    "a transaction without an id": (patched(21, ">h", 0x10), INVALID | {TRANSACTION_DENIED}),
    "an unknown codec": (patched(21, ">h", 0x07), INVALID | {UNSUPPORTED_COMPRESSION_TYPE}),
    "rubbish": (bytes(range(256)), NO_BATCH),
    "zeros": (bytes(300), NO_BATCH | TOO_OLD),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_the_log_and_the_connection_go_on(
    bench: Bench, what: str
) -> None:
    records, codes = BAD_BATCHES[what]
    assert bench.produce(records) in codes
    assert bench.produce(GOOD) == 0
    assert bench.values() == GOOD_VALUES


def test_a_batch_over_the_topics_limit_is_refused(bench: Bench) -> None:
    assert bench.produce(bytes(encode_batch([(0, None, bytes(120_000), ())]))) == MESSAGE_TOO_LARGE
    assert bench.produce(GOOD) == 0
    assert bench.values() == GOOD_VALUES


def test_a_partition_or_a_topic_that_does_not_exist_is_refused(bench: Bench) -> None:
    assert bench.produce(GOOD, partition=1) == UNKNOWN_TOPIC_OR_PARTITION
    assert bench.produce(GOOD, partition=-1) == UNKNOWN_TOPIC_OR_PARTITION
    bench.topic = unique("never-made")
    assert bench.produce(GOOD) == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acknowledgements_that_do_not_exist_are_refused(bench: Bench, acks: int) -> None:
    assert bench.produce(GOOD, acks=acks) == INVALID_REQUIRED_ACKS


def test_nothing_at_all_for_records_is_refused_or_ends_the_connection(bench: Bench) -> None:
    assert bench.produce(None) in {*NO_BATCH, CLOSED, UNKNOWN_SERVER_ERROR}


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_rubbish_in_a_compacted_topic_is_refused(
    bench: Bench, confluent: Confluent, codec: int
) -> None:
    """The broker has to look for keys there, so it must decompress what it was given."""
    confluent.alter_config(bench.topic, "cleanup.policy", "compact")
    batch = bytearray(GOOD)
    struct.pack_into(">h", batch, 21, codec)
    assert bench.produce(signed(batch)) in NO_BATCH | {UNKNOWN_SERVER_ERROR}
    assert bench.produce(GOOD) == 0


def test_a_batch_that_swells_when_it_is_unpacked_costs_no_more_memory_than_allowed(
    cluster: Cluster,
) -> None:
    judge = Confluent(cluster.bootstrap)
    topic = unique("swelling")
    judge.create_topic(topic, config={"cleanup.policy": "compact"})
    bench = Bench(cluster.bootstrap, topic)
    assert bench.produce(GOOD) == 0
    before = resident_bytes(cluster.pid())
    value = bytes(900 * MIB)
    swelling = bytes(encode_batch([(0, b"key", value, ())], compression=ZSTD))
    assert len(swelling) < MIB
    code = bench.produce(swelling)
    assert code in {0, MESSAGE_TOO_LARGE, *NO_BATCH, CLOSED}
    assert peak_resident_bytes(cluster.pid()) < before + 128 * MIB
    assert Bench(cluster.bootstrap, topic).produce(GOOD) == 0
