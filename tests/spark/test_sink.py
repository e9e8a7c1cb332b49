"""The sink's tasks and its driver, called as Spark calls them, against a running node."""

import asyncio
import itertools
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sapwood.bulk import BulkClient
from sapwood.client import KafkaError
from sapwood.client.admin import NewTopic
from sapwood.client.calls import TRANSACTION, Coordinator
from sapwood.client.transaction_groups import child_id
from sapwood.spark.columns import UnsuitableColumns
from sapwood.spark.decoding import HEADERS_TYPE
from sapwood.spark.options import WrongOption
from sapwood.spark.planning import MissingTopic
from sapwood.spark.sink import BatchRefused, Written, abort, commit
from sapwood.spark.sink_options import JOB_TIMEOUT_MS, SinkOptions, read_sink_options
from sapwood.spark.source import SapwoodSource
from sapwood.spark.writing import Task, write_task
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.compression import Compression
from tests.client.proxy import cut_off_node
from tests.helpers import eventually, unique

ALL = ["key", "value", "headers", "topic", "partition", "timestamp"]
SHORT_MS = 2000
"""For which a transaction may be open whose time is to be up: a busy machine needs some of it to
write a row."""


@pytest.fixture
def client(bootstrap: str) -> Iterator[BulkClient]:
    with BulkClient(bootstrap) as client:
        yield client


def topic(client: BulkClient, partitions: int = 1) -> str:
    name = unique("sink")
    client.client.create_topics([NewTopic(name, partitions)])
    return name


class Query:
    """A stream that writes to one topic; its tasks run when a test calls them."""

    def __init__(self, bootstrap: str, topic: str | None, **client: Any) -> None:
        self.name = f"spark/{unique('query')}"
        self.options = SinkOptions(
            bootstrap=bootstrap,
            topic=topic,
            timeout_ms=client.pop("timeout_ms", 60_000),
            with_timestamps=True,
            client={"allow_auto_create": False, **client},
        )
        self._attempts = itertools.count()

    def write(self, batch: int, *tables: pa.Table, task: int = 0) -> Written:
        batches = itertools.chain.from_iterable(table.to_batches() for table in tables)
        columns = [name for name in ALL if not tables or name in tables[0].column_names]
        attempt = Task(self.name, batch, task, next(self._attempts))
        message = Written(self.name, write_task(self.options, columns, attempt, batches))
        found: Written = pickle.loads(pickle.dumps(message))
        return found

    def commit(self, batch: int, *messages: Written) -> None:
        commit(self.options, messages, batch)


def rows(*values: str) -> pa.Table:
    return pa.table({"value": list(values)})


def committed(client: BulkClient, topic: str, partition: int = 0) -> list[str]:
    return [each.decode() for each in client.fetch_arrow(topic, partition)["value"].to_pylist()]


def test_a_batch_is_seen_when_the_driver_commits_it_and_not_before(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name)
    for batch in range(2):
        messages = [query.write(batch, rows(f"{batch}/{task}"), task=task) for task in range(3)]
        assert len(committed(client, name)) == 3 * batch
        query.commit(batch, *messages)
    assert sorted(committed(client, name)) == ["0/0", "0/1", "0/2", "1/0", "1/1", "1/2"]


def test_of_a_task_that_ran_twice_one_run_counts(bootstrap: str, client: BulkClient) -> None:
    name = topic(client)
    query = Query(bootstrap, name)
    query.write(0, rows("lost"))
    winner = query.write(0, rows("found"))
    query.write(0, rows("slow"))
    query.commit(0, winner)
    assert committed(client, name) == ["found"]
    query.commit(1, query.write(1, rows("next")))
    assert committed(client, name) == ["found", "next"]


def test_a_batch_that_comes_again_is_left_out_but_read_to_its_end(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name)
    first = query.write(4, rows("once"))
    query.commit(4, first)
    again = iter(rows("once", "twice").to_batches(max_chunksize=1))
    assert write_task(query.options, ["value"], Task(query.name, 4, 0, 77), again) is None
    assert list(again) == []
    query.commit(4, first)  # the driver's question may come twice as well
    abort(query.options, query.name, 4)
    assert committed(client, name) == ["once"]


def test_a_task_that_writes_while_its_batch_is_committed_by_another_driver_leaves_nothing_open(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name)
    first = query.write(0, rows("first"))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows("second").to_batches()
        query.commit(0, first)
        yield from rows("third").to_batches()

    assert write_task(query.options, ["value"], Task(query.name, 0, 0, 77), slow()) is None
    assert committed(client, name) == ["first"]
    client.produce_arrow(name, rows("behind"))
    eventually(lambda: committed(client, name) == ["first", "behind"])


def test_an_aborted_batch_leaves_nothing_and_can_be_run_again(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name)
    failed = query.write(0, rows("failed"))
    abort(query.options, query.name, 0)
    with pytest.raises(BatchRefused, match=r"batch 0 is not written.*transaction\.timeout\.ms"):
        query.commit(0, failed)
    query.commit(0, query.write(0, rows("done")))
    assert committed(client, name) == ["done"]


def test_of_a_batch_that_is_aborted_for_good_no_late_task_leaves_anything_open(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name)
    query.write(0, rows("open"))
    entered = threading.Event()
    aborted = threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        """Its first row comes before the abort, its last one behind it."""
        yield from rows("before").to_batches()
        entered.set()
        assert aborted.wait(60)
        yield from rows("behind").to_batches()

    task = Task(query.name, 0, 1, 100)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(write_task, query.options, ["value"], task, slow())
        assert entered.wait(60)
        abort(query.options, query.name, 0, for_good=True)
        aborted.set()
        assert under_way.result(60) is None
    assert query.write(0, rows("late"), task=2).child is None
    other = Query(bootstrap, name)
    other.commit(0, other.write(0, rows("seen")))
    # Far sooner than the time of a transaction is up.
    assert eventually(lambda: committed(client, name)) == ["seen"]


def test_a_batch_is_refused_whole_if_the_time_of_one_task_is_up(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name, timeout_ms=SHORT_MS)
    early = query.write(0, rows("early"), task=0)
    client.produce_arrow(name, rows("behind"))
    eventually(lambda: committed(client, name) == ["behind"])  # as soon as the first is aborted
    with pytest.raises(BatchRefused):
        query.commit(0, early, query.write(0, rows("late"), task=1))
    assert committed(client, name) == ["behind"]


def described(client: BulkClient, query: Query, transactional_id: str) -> Struct:
    names = Struct(transactional_ids=[transactional_id])
    place = Coordinator(TRANSACTION, query.name)
    answer = client.client.request(Api.DESCRIBE_TRANSACTIONS, names, place)
    found: Struct = answer.transaction_states[0]
    return found


def open_for_ms(client: BulkClient, query: Query, message: Written) -> int:
    assert message.child is not None
    found = described(client, query, message.child.transactional_id)
    assert found.error_code == 0
    return int(found.transaction_timeout)


def test_a_batch_whose_time_was_up_has_more_when_it_comes_again(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name, timeout_ms=SHORT_MS)
    early = query.write(0, rows("early"))
    assert open_for_ms(client, query, early) == SHORT_MS
    client.produce_arrow(name, rows("behind"))
    eventually(lambda: committed(client, name) == ["behind"])
    with pytest.raises(BatchRefused, match="If it comes again, it has 900 s: run it again"):
        query.commit(0, early)
    abort(query.options, query.name, 0)
    again = query.write(0, rows("again"))
    assert open_for_ms(client, query, again) == JOB_TIMEOUT_MS
    abort(query.options, query.name, 0)
    with pytest.raises(BatchRefused, match="maxOffsetsPerTrigger"):
        query.commit(0, again)
    query.commit(0, query.write(0, rows("done")))
    assert committed(client, name) == ["behind", "done"]
    assert open_for_ms(client, query, query.write(1, rows("next"))) == SHORT_MS


def test_a_task_whose_time_was_up_has_more_when_it_is_tried_again(
    bootstrap: str, client: BulkClient
) -> None:
    name = topic(client)
    query = Query(bootstrap, name, timeout_ms=300)

    def slow() -> Iterator[pa.RecordBatch]:
        def state() -> str:
            found = described(client, query, child_id(query.name, 0, 0, 77))
            return str(found.transaction_state)

        for _ in range(100):  # until it has begun
            yield pa.record_batch({"value": [b"x" * 600_000] * 2})
            if state() != "Empty":
                break
        eventually(lambda: state() == "CompleteAbort")
        yield from rows("late").to_batches()

    with pytest.raises(KafkaError):
        write_task(query.options, ["value"], Task(query.name, 0, 0, 77), slow())
    assert open_for_ms(client, query, query.write(0, rows("again"))) == JOB_TIMEOUT_MS


def test_a_failing_task_doesnt_hold_readers_up(bootstrap: str, client: BulkClient) -> None:
    name = topic(client)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows("half").to_batches()
        raise ZeroDivisionError

    query = Query(bootstrap, name)
    with pytest.raises(ZeroDivisionError):
        write_task(query.options, ["value"], Task(query.name, 0, 0, 0), failing())
    client.produce_arrow(name, rows("behind"))
    assert eventually(lambda: committed(client, name)) == ["behind"]


def test_empty_tasks_have_nothing_to_commit(bootstrap: str, client: BulkClient) -> None:
    name = topic(client)
    query = Query(bootstrap, name)
    empty = query.write(0), query.write(0, rows())
    assert [each.child for each in empty] == [None, None]
    query.commit(0, *empty)
    query.commit(1, query.write(1, rows("x")), *empty)
    assert committed(client, name) == ["x"]


@pytest.mark.parametrize("partition", [-1, -2, 2])
def test_a_partition_that_is_not_there_is_refused(
    bootstrap: str, client: BulkClient, partition: int
) -> None:
    name = topic(client, 2)
    table = pa.table({"value": ["a", "b"], "partition": pa.array([None, partition], pa.int32())})
    with pytest.raises(UnsuitableColumns, match=f"'partition' holds {partition}, but topic {name}"):
        Query(bootstrap, name).write(0, table)


def test_every_column_arrives(bootstrap: str, client: BulkClient) -> None:
    first, second = topic(client, 2), topic(client, 2)
    headers = pa.array([[{"key": "h", "value": b"1"}], None, []], HEADERS_TYPE)
    table = pa.table(
        {
            "key": pa.array([b"k", None, b"l"]),
            "value": pa.array([b"a", b"b", None]),
            "headers": headers,
            "topic": [first, second, first],
            "partition": pa.array([1, 0, 0], pa.int32()),
            "timestamp": pa.array([1_000_000, 2_000_000, None], pa.timestamp("us", "UTC")),
        }
    )
    query = Query(bootstrap, None)
    query.commit(0, query.write(0, table))
    (row,) = client.fetch_arrow(first, 1).to_pylist()
    assert (row["key"], row["value"], row["timestamp"].timestamp()) == (b"k", b"a", 1.0)
    assert row["headers"] == [{"key": "h", "value": b"1"}]
    (row,) = client.fetch_arrow(second, 0).to_pylist()
    assert (row["key"], row["value"], row["timestamp"].timestamp()) == (None, b"b", 2.0)
    (row,) = client.fetch_arrow(first, 0).to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (b"l", None, None)
    with pytest.raises(UnsuitableColumns, match="column 'topic' holds a null"):
        query.write(1, pa.table({"value": ["x"], "topic": pa.array([None], pa.string())}))


def test_a_topic_that_isnt_there_is_named(bootstrap: str) -> None:
    query = Query(bootstrap, "nowhere", topic_wait_ms=200)
    with pytest.raises(MissingTopic, match="there is no topic nowhere at"):
        query.write(0, rows("x"))


SINK = {"kafka.bootstrap.servers": "127.0.0.1:1"}
VALUE = "value string"
TYPES = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "timestamp": TimestampType(),
}


def columns(text: str) -> StructType:
    fields = (field.split() for field in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    ("options", "schema", "error"),
    [
        ({"topic": "t"}, "key string", "there is no column 'value' among key"),
        ({}, VALUE, "nothing says which topic to write to"),
        ({"topic": "t"}, "value bigint", "column 'value' is bigint, but must be binary or string"),
        ({"topic": "t"}, f"{VALUE}, partition bigint", "'partition' is bigint, but must be int"),
        ({"topic": "t"}, f"{VALUE}, headers string", "column 'headers' is string"),
        ({"topci": "t"}, VALUE, "there is no option 'topci': did you mean topic"),
        ({"topic": "t", "kafka.acks": "1"}, VALUE, "kafka.acks='1': it is all or -1"),
        ({"topic": "t", "kafka.transactional.id": "x"}, VALUE, "every task has one of its own"),
        ({"topic": "t", "kafka.batch.size": "big"}, VALUE, "kafka.batch.size='big'"),
        ({"topic": "t", "includeHeaders": "yes"}, VALUE, "includeHeaders='yes'"),
        ({"topic": "t", "kafka.bootstrap.servers": ""}, VALUE, "it names no broker"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(
    options: dict[str, str], schema: str, error: str
) -> None:
    source = SapwoodSource({**SINK, **options})
    for make in (source.writer, source.streamWriter):
        with pytest.raises((UnsuitableColumns, WrongOption), match=error) as caught:
            make(columns(schema), False)
        assert "\n" not in str(caught.value)


def test_columns_that_arent_for_messages_stay_behind() -> None:
    source = SapwoodSource({**SINK, "topic": "t"})
    schema = f"{VALUE}, offset bigint, timestamp timestamp, topic int, colour string"
    source.writer(columns(schema), False)
    with pytest.raises(WrongOption, match="can't be overwritten"):
        source.writer(columns(schema), True)


def test_options_of_kafkas_producer_reach_the_client() -> None:
    given = {
        **SINK,
        "topic": "t",
        "includeTimestamp": "true",
        "checkpointLocation": "/somewhere",
        "queryName": "orders",
        "kafka.compression.type": "zstd",
        "kafka.linger.ms": "5",
        "kafka.transaction.timeout.ms": "1234",
    }
    options = read_sink_options(given, streaming=True)
    assert (options.topic, options.timeout_ms, options.with_timestamps) == ("t", 1234, True)
    assert options.client["compression"] is Compression.ZSTD
    assert options.client["linger_ms"] == 5
    assert read_sink_options(SINK, streaming=False).timeout_ms == JOB_TIMEOUT_MS


def test_a_cluster_that_isnt_there_is_named() -> None:
    query = Query("127.0.0.1:1", "t", bootstrap_timeout_ms=200)
    with pytest.raises(KafkaError, match=r"no broker answered at 127\.0\.0\.1:1"):
        query.write(0, rows("x"))


def test_against_another_kafka_each_task_commits_its_own(tmp_path: Path) -> None:
    def check(bootstrap: str) -> None:
        with BulkClient(bootstrap) as client:
            name = topic(client)
            query = Query(bootstrap, name)
            message = query.write(0, rows("x"))
            assert message.child is None
            assert committed(client, name) == ["x"]
            query.commit(0, message)
            abort(query.options, query.name, 0)
            assert committed(client, name) == ["x"]

    async def run() -> None:
        async with cut_off_node(tmp_path) as (_, proxy):
            offered = Api.END_TXN_GROUP.to_bytes(2, "big") + bytes(4)
            proxy.rewritten = {offered: b"\x7f\xff" + bytes(4)}
            await asyncio.to_thread(check, f"127.0.0.1:{proxy.port}")

    asyncio.run(run())
