"""The source's readers, called as Spark calls them, against a running node."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from sapwood.bulk import BulkClient
from sapwood.client import KafkaError
from sapwood.client.admin import NewTopic
from sapwood.spark.options import Options, WrongOption, read_options
from sapwood.spark.planning import MissingTopic, admit, split
from sapwood.spark.ranges import DataLost, Range
from sapwood.spark.source import SapwoodSource, StreamReader, read_task
from tests.helpers import eventually, unique

ALL = ReadAllAvailable()


@pytest.fixture
def client(bootstrap: str) -> Iterator[BulkClient]:
    with BulkClient(bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: BulkClient) -> str:
    return make_topic(client, 2)


def make_topic(client: BulkClient, partitions: int, name: str | None = None) -> str:
    name = name or unique("source")
    client.client.create_topics([NewTopic(name, partitions, configs={"retention.ms": "-1"})])
    return name


def put(client: BulkClient, topic: str, partition: int, count: int, time_ms: int = 1000) -> None:
    client.produce_arrow(
        topic,
        pa.table(
            {
                "value": [b"%d" % number for number in range(count)],
                "partition": pa.array([partition] * count, pa.int32()),
                "timestamp": pa.array([time_ms] * count, pa.timestamp("ms", "UTC")),
            }
        ),
    )


def source(bootstrap: str, **options: str) -> SapwoodSource:
    return SapwoodSource({"kafka.bootstrap.servers": bootstrap, **options})


def planned(bootstrap: str, **options: str) -> list[tuple[Any, ...]]:
    found = source(bootstrap, **options)
    return [task.value for task in found.reader(found.schema()).partitions()]


@pytest.fixture
def stream(bootstrap: str) -> Iterator[Callable[..., StreamReader]]:
    readers: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        found = source(bootstrap, **options)
        readers.append(found.streamReader(found.schema()))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def test_a_batch_is_planned_from_the_first_to_the_last_offset(
    bootstrap: str, client: BulkClient, topic: str
) -> None:
    put(client, topic, 0, 10)
    assert planned(bootstrap, subscribe=topic) == [(topic, 0, 0, 10)]
    put(client, topic, 1, 5)
    assert planned(bootstrap, subscribe=topic) == [(topic, 0, 0, 10), (topic, 1, 0, 5)]
    assert planned(bootstrap, assign=f'{{"{topic}": [1]}}') == [(topic, 1, 0, 5)]
    assert planned(bootstrap, subscribePattern=f"{topic}.*") == planned(bootstrap, subscribe=topic)
    bounds = {
        "startingOffsets": f'{{"{topic}": {{"0": 3, "1": -2}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": 4, "1": -1}}}}',
    }
    assert planned(bootstrap, subscribe=topic, **bounds) == [(topic, 0, 3, 4), (topic, 1, 0, 5)]


def test_a_batch_may_start_and_end_at_times(bootstrap: str, client: BulkClient, topic: str) -> None:
    for time_ms in (1000, 2000, 3000):
        put(client, topic, 0, 10, time_ms)
        put(client, topic, 1, 1, time_ms)
    found = planned(bootstrap, subscribe=topic, startingTimestamp="2000", endingTimestamp="2500")
    assert found == [(topic, 0, 10, 20), (topic, 1, 1, 2)]
    by_time = f'{{"{topic}": {{"0": 3000, "1": 1}}}}'
    found = planned(bootstrap, subscribe=topic, startingOffsetsByTimestamp=by_time)
    assert found == [(topic, 0, 20, 30), (topic, 1, 0, 3)]
    with pytest.raises(WrongOption, match="is as young as the time to start at"):
        planned(bootstrap, subscribe=topic, startingTimestamp="9000")
    late = {"startingTimestamp": "9000", "startingOffsetsByTimestampStrategy": "latest"}
    assert planned(bootstrap, subscribe=topic, **late) == []


def test_tasks_read_their_ranges_with_headers_on_request(
    bootstrap: str, client: BulkClient, topic: str
) -> None:
    put(client, topic, 0, 100)
    found = source(bootstrap, subscribe=topic, maxRecordsPerPartition="40", includeHeaders="true")
    reader = pickle.loads(pickle.dumps(found.reader(found.schema())))
    tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]
    batches = [batch for task in tasks for batch in reader.read(task)]
    assert len(tasks) == 3
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == list(range(100))
    assert batches[0].schema.names[-1] == "headers"


def test_what_cannot_be_read_is_told_in_one_line(
    bootstrap: str, client: BulkClient, topic: str
) -> None:
    with pytest.raises(MissingTopic, match="there is no topic nowhere at"):
        planned(bootstrap, subscribe=f"{topic},nowhere")
    with pytest.raises(MissingTopic, match="has no partition 7"):
        planned(bootstrap, assign=f'{{"{topic}": [7]}}')
    with pytest.raises(WrongOption, match="must name every partition that is read"):
        planned(bootstrap, subscribe=topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}')
    offsets = f'{{"{topic}": {{"0": 5, "1": 0}}}}'
    with pytest.raises(WrongOption, match="ends at 0, before the offset 5"):
        planned(bootstrap, subscribe=topic, startingOffsets=offsets)
    with pytest.raises(WrongOption, match="the columns are always key, value"):
        source(bootstrap, subscribe=topic).reader(StructType([StructField("a", LongType())]))
    hasty = {"kafka.default.api.timeout.ms": "500"}
    with pytest.raises(KafkaError, match="no broker answered at") as caught:
        planned("127.0.0.1:1", subscribe=topic, **hasty)
    assert "\n" not in str(caught.value)


def test_a_stream_goes_from_offset_to_offset(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    put(client, topic, 0, 3)
    reader = stream(subscribe=topic)
    start = reader.initialOffset()
    assert start == {topic: {"0": 3, "1": 0}}
    assert reader.latestOffset(start, ALL) == start
    put(client, topic, 1, 4)
    end = eventually(lambda: (it := reader.latestOffset(start, ALL)) != start and it)
    assert end == {topic: {"0": 3, "1": 4}}
    (task,) = reader.partitions(start, end)
    assert task.value == (topic, 1, 0, 4)
    (batch,) = pickle.loads(pickle.dumps(reader)).read(task)
    assert batch.column("value").to_pylist() == [b"0", b"1", b"2", b"3"]


def test_a_stream_takes_no_more_than_it_may_and_all_in_the_end(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    put(client, topic, 0, 90)
    put(client, topic, 1, 10)
    reader = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    position, steps = reader.initialOffset(), []
    while (following := reader.latestOffset(position, limit)) != position:
        taken = sum(following[topic].values()) - sum(position[topic].values())
        steps.append(taken)
        position = following
    assert position == {topic: {"0": 90, "1": 10}}
    assert max(steps) <= 30
    assert steps[0] >= 28


def test_a_stream_waits_for_enough_records_but_not_for_ever(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    put(client, topic, 0, 5)
    patient = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    reader = stream(subscribe=topic, startingOffsets="earliest", **patient)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    put(client, topic, 0, 5)
    assert reader.latestOffset(start, ALL) == {topic: {"0": 10, "1": 0}}
    hasty = stream(subscribe=topic, minOffsetsPerTrigger="99", maxTriggerDelay="1ms")
    assert eventually(lambda: hasty.latestOffset(start, ALL) != start)


def test_available_now_ends_where_the_log_ended_when_it_began(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    put(client, topic, 0, 5)
    reader = stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="100")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    put(client, topic, 0, 5)
    end = reader.latestOffset(start, ALL)
    assert end == {topic: {"0": 5, "1": 0}}
    assert reader.latestOffset(end, ALL) == end


def test_new_partitions_and_topics_are_picked_up_from_their_first_record(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    reader = stream(subscribePattern=f"{topic}.*")
    start = reader.initialOffset()
    client.client.create_partitions({topic: 3})
    other = make_topic(client, 1, f"{topic}-other")
    put(client, other, 0, 2)
    client.client.core.view.invalidate()
    put(client, topic, 2, 4)
    expected = {topic: {"0": 0, "1": 0, "2": 4}, other: {"0": 2}}
    eventually(lambda: reader.latestOffset(start, ALL) == expected)
    assert [task.value for task in reader.partitions(start, expected)] == [
        (topic, 2, 0, 4),
        (other, 0, 0, 2),
    ]


def test_a_stream_whose_records_are_gone_fails_or_goes_on_as_told(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    put(client, topic, 0, 10)
    start, end = {topic: {"0": 0, "1": 0}}, {topic: {"0": 10, "1": 0}}
    client.client.delete_records({(topic, 0): 6})
    strict, lax = stream(subscribe=topic), stream(subscribe=topic, failOnDataLoss="false")
    with pytest.raises(DataLost, match="offsets 0 to 5 are no longer there"):
        list(strict.read(strict.partitions(start, end)[0]))
    (batch,) = lax.read(lax.partitions(start, end)[0])
    assert batch.column("offset").to_pylist() == [6, 7, 8, 9]
    beyond = {topic: {"0": 99, "1": 0}}
    with pytest.raises(DataLost, match="offsets 10 to 98 are no longer there"):
        strict.latestOffset(beyond, ALL)
    assert lax.latestOffset(beyond, ALL) == end


def test_a_stream_notices_that_its_topic_is_gone(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    kept = make_topic(client, 1)
    names = f"{topic},{kept}"
    strict, lax = stream(subscribe=names), stream(subscribe=names, failOnDataLoss="false")
    start = strict.initialOffset()
    client.client.delete_topics([topic])
    with pytest.raises(DataLost, match="all from offset 0 on is no longer there"):
        strict.latestOffset(start, ALL)
    assert lax.latestOffset(start, ALL) == {kept: {"0": 0}}


def test_a_topic_that_matched_a_pattern_may_be_deleted_under_a_stream(
    bootstrap: str,
    client: BulkClient,
    topic: str,
    stream: Callable[..., StreamReader],
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = make_topic(client, 1, f"{topic}-kept")
    for name in (topic, kept):
        put(client, name, 0, 5)
    start = {topic: {"0": 0, "1": 0}, kept: {"0": 0}}
    end = {topic: {"0": 5, "1": 0}, kept: {"0": 5}}
    client.client.delete_topics([topic])
    reader = stream(subscribePattern=f"{topic}.*")
    after = reader.latestOffset(end, ALL)
    assert after == {kept: {"0": 5}}
    gone = f"topic {topic}, partition 0: all from offset 5 on is no longer there"
    assert gone in caplog.text
    # What was planned before is planned again by a query that is started again.
    assert [len(rows) for rows in read(reader, bootstrap, start, end, pattern=True)] == [0, 5]
    with pytest.raises(DataLost, match="--allow-data-loss"):
        read(reader, bootstrap, start, end, pattern=False)
    make_topic(client, 1, topic)
    put(client, topic, 0, 2)
    anew = eventually(lambda: (it := reader.latestOffset(after, ALL)) != after and it)
    assert anew
    assert [task.value for task in reader.partitions(after, anew)] == [(topic, 0, 0, 2)]


def read(
    reader: StreamReader, bootstrap: str, start: Any, end: Any, *, pattern: bool
) -> list[list[int]]:
    """The offsets that each task reads, by clients that don't wait long for what isn't there."""
    options = read_options(
        {"kafka.bootstrap.servers": bootstrap, "subscribePattern" if pattern else "subscribe": "t"},
        streaming=True,
    )
    hasty = replace(options, client={**options.client, "topic_wait_ms": 100})
    return [
        [offset for batch in read_task(hasty, task) for offset in batch["offset"].to_pylist()]
        for task in reader.partitions(start, end)
    ]


def test_a_topic_that_a_pattern_does_not_find_keeps_its_positions_as_long_as_it_is_there(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    other = make_topic(client, 1)
    put(client, topic, 0, 5)
    reader = stream(subscribePattern=topic)
    position = {other: {"0": 7}, topic: {"0": 5, "1": 0}}
    assert reader.latestOffset(position, ALL) == position


def test_a_pattern_means_the_systems_own_topics_too_but_not_the_coordinators_logs(
    bootstrap: str, client: BulkClient, topic: str
) -> None:
    own = make_topic(client, 1, f"__{topic}")
    put(client, own, 0, 3)
    client.client.commit_positions("a group", {(own, 0): 1})
    pattern = f"__{topic}|__consumer_offsets"
    assert planned(bootstrap, subscribePattern=pattern) == [(own, 0, 0, 3)]


def test_a_new_topic_is_read_from_what_retention_has_left_of_it(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    start = {make_topic(client, 1): {"0": 0}}
    put(client, topic, 0, 10)
    client.client.delete_records({(topic, 0): 6})
    names = ",".join([topic, *start])
    reader = stream(subscribe=names)
    end = reader.latestOffset(start, ALL)
    assert end == {**start, topic: {"0": 10, "1": 0}}
    (task,) = reader.partitions(start, end)
    assert task.value == (topic, 0, 6, 10)
    (batch,) = reader.read(task)
    assert batch.column("offset").to_pylist() == [6, 7, 8, 9]
    few = stream(subscribe=names, maxOffsetsPerTrigger="2")
    assert few.latestOffset(start, few.getDefaultReadLimit())[topic]["0"] == 8


def test_a_stream_in_order_of_time_goes_on_without_a_topic_if_it_may(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    kept = make_topic(client, 1)
    asked = {"subscribe": f"{topic},{kept}", "appendTimes": "true", "failOnDataLoss": "false"}
    for name in (topic, kept):
        put(client, name, 0, 5)
    reader = stream(startingOffsets="earliest", **asked)
    start = reader.initialOffset()
    full = {topic: {"0": 5, "1": 0}, kept: {"0": 5}}
    eventually(lambda: reader.latestOffset(start, ALL) == full)
    client.client.delete_topics([topic])
    assert stream(**asked).latestOffset(full, ALL) == {kept: {"0": 5}}


def test_positions_are_shown_to_a_consumer_group_on_request(
    client: BulkClient, topic: str, stream: Callable[..., StreamReader]
) -> None:
    group = unique("watched")
    reader = stream(subscribe=topic, **{"kafka.group.id": group})
    reader.commit({topic: {"0": 7, "1": 3}})
    core, now_ms = client.client.core, client.client.now_ms()
    ticket = core.groups.positions(group, [(topic, 0), (topic, 1)], now_ms)
    client.client.run_until(lambda: ticket.done, 30)
    assert {key: it.offset for key, it in ticket.result().items()} == {
        (topic, 0): 7,
        (topic, 1): 3,
    }


def options(**more: str) -> Options:
    return read_options(
        {"kafka.bootstrap.servers": "h:1", "subscribe": "t", **more}, streaming=True
    )


def test_ranges_are_cut_as_the_options_ask() -> None:
    ranges = [Range("t", 0, 0, 100), Range("t", 1, 50, 50), Range("t", 2, 10, 20)]
    assert split(ranges, options()) == [Range("t", 0, 0, 100), Range("t", 2, 10, 20)]
    cut = split(ranges, options(minPartitions="11"))
    assert len(cut) == 11
    assert [each for each in cut if each.partition == 2] == [Range("t", 2, 10, 20)]
    cut = split(ranges, options(maxRecordsPerPartition="30"))
    assert [each.stop - each.start for each in cut] == [25, 25, 25, 25, 10]
    assert len(split([Range("t", 0, 0, 3)], options(minPartitions="8"))) == 3


def test_small_partitions_are_not_held_up_by_large_ones() -> None:
    start, end = {("t", 0): 0, ("t", 1): 0}, {("t", 0): 10**9, ("t", 1): 1}
    assert admit(start, end, 1000) == {("t", 0): 999, ("t", 1): 1}
    assert admit(start, {("t", 0): 5}, 1000) == {("t", 0): 5}
