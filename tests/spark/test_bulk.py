"""Arrow tables to topics and back, against a running node and confluent-kafka as judge."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import sapwood
from sapwood.bulk import BulkClient, DataLost, UnsuitableColumns, fetch_arrow, produce_arrow
from sapwood.client import Compression, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.config import READ_UNCOMMITTED
from sapwood.client.partitioner import partition_of_key
from sapwood.spark.decoding import HEADERS_TYPE
from sapwood.spark.ranges import Range
from sapwood.spark.reading import read_range
from tests.helpers import eventually, unique
from tests.judges.confluent import Confluent
from tests.judges.judge import Message

NOW_MS = 1_700_000_000_000


@pytest.fixture
def client(bootstrap: str) -> Iterator[BulkClient]:
    with BulkClient(bootstrap) as client:
        yield client


def topic(client: BulkClient, partitions: int = 1, most_bytes: int = 1_000_000) -> str:
    name = unique("bulk")
    configs = {"retention.ms": "-1", "max.message.bytes": str(most_bytes)}
    client.client.create_topics([NewTopic(name, partitions, configs=configs)])
    return name


def numbered(count: int, start: int = 0) -> pa.Table:
    values = [b"%d" % number for number in range(start, start + count)]
    return pa.table({"key": [b"key-" + value for value in values], "value": values})


def values_of(table: pa.Table) -> list[Any]:
    return list(table.column("value").to_pylist())


@pytest.mark.parametrize("codec", list(Compression))
def test_a_table_is_read_by_confluent_kafka_as_it_was_given(
    bootstrap: str, client: BulkClient, codec: Compression
) -> None:
    name = topic(client)
    table = pa.table(
        {
            "key": [b"a", None, b""],
            "value": [b"1", b"", None],
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}, {"key": "é", "value": None}], None, []],
                HEADERS_TYPE,
            ),
            "timestamp": pa.array([NOW_MS, NOW_MS - 5, NOW_MS + 5], pa.timestamp("ms", "UTC")),
            "partition": pa.array([0, 0, 0], pa.int32()),
        }
    )
    assert produce_arrow(name, table, bootstrap=bootstrap, compression=codec) == 3
    found = Confluent(bootstrap).consume(name, 3)
    assert [(it.key, it.value, it.timestamp_ms, it.headers) for it in found] == [
        (b"a", b"1", NOW_MS, (("h", b"x"), ("é", None))),
        (None, b"", NOW_MS - 5, ()),
        (b"", None, NOW_MS + 5, ()),
    ]
    again = topic(client)
    client.produce_arrow(again, client.fetch_arrow(name, 0))
    kept = ["key", "value", "headers", "timestamp", "offset"]
    assert client.fetch_arrow(again, 0).select(kept) == client.fetch_arrow(name, 0).select(kept)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_confluent_kafka_wrote_is_fetched_as_it_reads_it(
    bootstrap: str, client: BulkClient, codec: str
) -> None:
    name = topic(client)
    judge = Confluent(bootstrap)
    messages = [
        Message(b"v" * (number % 300), b"k%d" % number, (("n", b"%d" % number),), NOW_MS + number)
        for number in range(500)
    ]
    judge.produce(name, messages, codec=codec)
    found = client.fetch_arrow(name, 0).to_pylist()
    assert [
        (
            row["offset"],
            row["key"],
            row["value"],
            tuple((h["key"], h["value"]) for h in row["headers"]),
        )
        for row in found
    ] == [(it.offset, it.key, it.value, it.headers) for it in judge.consume(name, 500)]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in found} == {
        (name, 0, 0)
    }


def test_aborted_transactions_are_left_out(bootstrap: str, client: BulkClient) -> None:
    name = topic(client)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("bulk")})
    producer.init_transactions(30)
    for number, finish in enumerate([producer.commit_transaction, producer.abort_transaction] * 2):
        producer.begin_transaction()
        producer.produce(name, b"%d" % number)
        producer.flush(30)
        finish(30)
    assert values_of(client.fetch_arrow(name, 0)) == [b"0", b"2"]
    with BulkClient(bootstrap, isolation_level=READ_UNCOMMITTED) as other:
        assert values_of(other.fetch_arrow(name, 0)) == [b"0", b"1", b"2", b"3"]


def test_tables_of_a_transaction_become_visible_together_or_never(client: BulkClient) -> None:
    first, second, name = topic(client), topic(client), unique("bulk")
    with client.transaction(name):
        client.produce_arrow(first, numbered(1000))
        client.produce_arrow(second, numbered(10))
        assert client.fetch_arrow(first, 0).num_rows == 0
    with contextlib.suppress(ZeroDivisionError), client.transaction(name):
        client.produce_arrow(first, numbered(500))
        raise ZeroDivisionError
    with client.transaction(name):
        client.produce_arrow(first, numbered(5, 1000))
    # A transaction is committed once that is decided; readers are told a moment later.
    eventually(lambda: client.fetch_arrow(first, 0).num_rows >= 1005)
    assert values_of(client.fetch_arrow(first, 0)) == values_of(numbered(1005))
    assert values_of(client.fetch_arrow(second, 0)) == values_of(numbered(10))


def test_keys_decide_the_partition_and_order_is_kept_within_it(client: BulkClient) -> None:
    name = topic(client, 3)
    assert client.produce_arrow(name, numbered(200_000)) == 200_000
    total = 0
    for partition in range(3):
        table = client.fetch_arrow(name, partition)
        assert table.column("offset").to_pylist() == list(range(table.num_rows))
        numbers = [int(value) for value in values_of(table)]
        assert numbers == sorted(numbers)
        for key in table.column("key").slice(0, 50).to_pylist():
            assert partition_of_key(key, 3) == partition
        total += table.num_rows
    assert total == 200_000


def test_rows_without_a_key_are_spread_and_a_given_partition_is_obeyed(client: BulkClient) -> None:
    name = topic(client, 4)
    client.produce_arrow(name, pa.table({"value": [bytes(1000)] * 5000}))
    counts = [client.fetch_arrow(name, partition).num_rows for partition in range(4)]
    assert sum(counts) == 5000
    assert min(counts) > 500
    rows = pa.table({"value": [b"x", b"y"], "key": [b"a", b"b"], "partition": [2, None]})
    client.produce_arrow(name, rows)
    assert values_of(client.fetch_arrow(name, 2, counts[2]))[0] == b"x"
    with pytest.raises(UnsuitableColumns, match="column 'partition' holds 9"):
        client.produce_arrow(name, pa.table({"value": [b"x"], "partition": [9]}))
    with pytest.raises(UnsuitableColumns, match="no place for the columns colour"):
        client.produce_arrow(name, pa.table({"value": [b"x"], "colour": ["red"]}))


def test_any_range_can_be_fetched(bootstrap: str, client: BulkClient) -> None:
    name = topic(client)
    client.produce_arrow(name, numbered(1000).to_batches())
    found = fetch_arrow(name, 0, 990, 995, bootstrap=bootstrap)
    assert values_of(found) == [b"990", b"991", b"992", b"993", b"994"]
    assert client.fetch_arrow(name, 0, 1000).num_rows == 0
    assert client.fetch_arrow(name, 0, 0, 1, with_headers=False).column_names[-1] == "timestampType"


def test_batches_that_the_broker_finds_too_large_are_split(client: BulkClient) -> None:
    name = topic(client, most_bytes=20_000)
    client.produce_arrow(name, numbered(5000))
    assert values_of(client.fetch_arrow(name, 0)) == values_of(numbered(5000))
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        client.produce_arrow(name, pa.table({"value": [b"small", bytes(30_000)]}))


def test_what_was_removed_is_reported_or_left_out_on_request(
    client: BulkClient, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(client)
    client.produce_arrow(name, numbered(100))
    client.client.delete_records({(name, 0): 40})
    with pytest.raises(DataLost, match="offsets 10 to 39 are no longer there"):
        client.fetch_arrow(name, 0, 10)
    with pytest.raises(DataLost, match="offsets 100 to 199 are no longer there"):
        list(read_range(client.client, Range(name, 0, 50, 200), patience_s=0.1))
    caplog.set_level(logging.WARNING)
    found = read_range(client.client, Range(name, 0, 0, 200), may_lose=True, patience_s=0.1)
    assert sum(batch.num_rows for batch in found) == 60
    assert "offsets 0 to 39" in caplog.text
    assert "offsets 100 to 199" in caplog.text


def test_a_range_is_read_to_its_end_though_its_leader_is_killed() -> None:
    with (
        sapwood.Cluster(nodes=3, topics={"big": 1}) as cluster,
        BulkClient(cluster.bootstrap, fetch_partition_bytes=64 * 1024) as client,
    ):
        client.produce_arrow("big", numbered(100_000))
        found = client.fetch_batches("big", 0)
        first = next(found)
        cluster.kill(cluster.leader("big"))
        rest = list(found)
    assert values_of(pa.Table.from_batches([first, *rest])) == values_of(numbered(100_000))


def test_append_times_order_partitions_and_closed_ones_cut_the_same_records_for_everybody(
    client: BulkClient,
) -> None:
    first, second = topic(client, 2), topic(client)
    for number in range(6):
        client.produce_arrow((first, second)[number % 2], numbered(10, 10 * number))
    closed = client.closed_times([first, second])
    assert sorted(closed.offsets) == sorted([(first, 0), (first, 1), (second, 0)])
    found: list[tuple[int, int]] = []
    for key, end in closed.offsets.items():
        table = client.fetch_arrow(*key, end=end, with_append_time=True)
        times = table.column("append_time").to_pylist()
        assert times == sorted(times)
        found += zip(times, map(int, values_of(table)), strict=True)
    assert max(time for time, _ in found) <= closed.time
    rounds = [value // 10 for _, value in sorted(found)]
    assert rounds == sorted(rounds)
    assert len(found) == 60
    middle = sorted(time for time, _ in found)[29]
    after = client.offsets_after(closed.offsets, middle)
    client.produce_arrow(first, numbered(10))
    assert client.offsets_after(closed.offsets, middle) == after
    assert client.offsets_after(closed.offsets, closed.time) == closed.offsets
    assert sum(after.values()) == 30
