"""The source's options: Spark's names, its defaults, and one line for what isn't understood."""

import pytest

from sapwood.client.config import READ_COMMITTED, READ_UNCOMMITTED
from sapwood.client.offsets import EARLIEST, LATEST
from sapwood.spark.options import NAMES, Bound, Options, WrongOption, read_options

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def batch(**more: str) -> Options:
    return read_options({**LEAST, **more}, streaming=False)


def stream(**more: str) -> Options:
    return read_options({**LEAST, **more}, streaming=True)


def test_a_batch_reads_everything_and_a_stream_what_is_new() -> None:
    assert (batch().start, batch().end) == (Bound("offset", EARLIEST), Bound("offset", LATEST))
    assert stream().start == Bound("offset", LATEST)
    assert not batch().may_lose
    assert not batch().with_headers
    assert batch().client["isolation_level"] == READ_COMMITTED
    assert not batch().client["allow_auto_create"]


def test_names_count_in_any_case_as_spark_gives_them() -> None:
    options = {name.lower(): value for name, value in LEAST.items()}
    options |= {"maxoffsetspertrigger": "7", "INCLUDEHEADERS": "True"}
    found = read_options(options, streaming=True)
    assert (found.most_per_trigger, found.with_headers) == (7, True)


def test_every_name_of_sparks_kafka_source_is_known() -> None:
    values = dict.fromkeys(NAMES, "1") | {
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "endingOffsetsByTimestamp": '{"orders": {"0": 9}}',
        "startingOffsetsByTimestampStrategy": "latest",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "maxTriggerDelay": "2m",
    }
    del values["assign"], values["subscribePattern"]
    found = read_options({**LEAST, **values}, streaming=False)
    assert found.start == Bound("time", 1)
    assert found.trigger_delay_ms == 120_000
    assert (found.least_tasks, found.most_per_task, found.least_per_trigger) == (1, 1, 1)
    assert (found.may_lose, found.with_headers, found.start_may_be_end) == (True, True, True)


def test_offsets_and_times_may_be_given_by_partition() -> None:
    text = '{"orders": {"0": 23, "1": -2}}'
    by_partition = {("orders", 0): 23, ("orders", 1): -2}
    assert batch(startingOffsets=text).start == Bound("offset", None, by_partition)
    times = '{"orders": {"0": 1000}}'
    assert stream(startingOffsetsByTimestamp=times).start == Bound(
        "time", None, {("orders", 0): 1000}
    )


def test_kafkas_own_settings_reach_the_client() -> None:
    options = {
        "kafka.group.id": "watched",
        "kafka.client.id": "me",
        "kafka.isolation.level": "read_uncommitted",
        "kafka.max.partition.fetch.bytes": "1000",
        "kafka.session.timeout.ms": "7",
    }
    found = read_options({**LEAST, **options}, streaming=True)
    assert found.group == "watched"
    assert found.client["client_id"] == "me"
    assert found.client["isolation_level"] == READ_UNCOMMITTED
    assert found.client["fetch_partition_bytes"] == 1000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribed": "x"}, "no option 'subscribed': did you mean subscribe?"),
        ({"assign": '{"a": [0]}'}, "exactly one of .* not assign and subscribe"),
        ({"startingOffsets": "latest"}, "a batch query can't start at latest"),
        ({"endingOffsets": "earliest"}, "a batch query can't end at earliest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "can't end at earliest"),
        ({"startingOffsets": "soon"}, "startingOffsets='soon': it is earliest, latest or JSON"),
        ({"startingOffsets": '{"orders": 5}'}, "startingOffsets="),
        ({"startingOffsets": '{"orders": {"0": -7}}'}, "offsets are 0 or more"),
        ({"startingTimestamp": "today"}, "milliseconds since 1970"),
        ({"maxOffsetsPerTrigger": "0"}, "it must be a positive number"),
        ({"maxTriggerDelay": "3 moons"}, "a time such as 500ms"),
        ({"failOnDataLoss": "maybe"}, "it is true or false"),
        ({"kafka.bootstrap.servers": ""}, "it names no broker"),
        ({"kafka.bootstrap.servers": "host:port"}, "isn't an address"),
        ({"kafka.auto.offset.reset": "latest"}, "can't be set"),
        ({"kafka.isolation.level": "some"}, "read_committed or read_uncommitted"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "speaks PLAINTEXT only"),
    ],
)
def test_what_is_not_understood_is_named_in_one_line(
    options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(WrongOption, match=complaint) as caught:
        read_options({**LEAST, **options}, streaming=False)
    assert "\n" not in str(caught.value)


def test_a_pattern_must_be_one_and_a_stream_has_no_end() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}
    with pytest.raises(WrongOption, match="not a regular expression"):
        read_options(options, streaming=True)
    with pytest.raises(WrongOption, match="endingOffsets is for batch queries"):
        stream(endingOffsets="latest")
    with pytest.raises(WrongOption, match="not none"):
        read_options({"kafka.bootstrap.servers": "h:1"}, streaming=True)
    times = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "o.*", "appendTimes": "true"}
    assert read_options(times, streaming=False).with_times
    with pytest.raises(WrongOption, match="appendTimes is of topics that are named"):
        read_options(times, streaming=True)
