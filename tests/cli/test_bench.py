"""`sapwood bench`."""

import json

from tests.cli.command import sapwood
from tests.helpers import unique


def test_bench_measures_and_leaves_nothing_behind(bootstrap: str) -> None:
    arguments = ("bench", "--messages", "2000", "--partitions", "3", "--latency-messages", "20")
    out, _ = sapwood(*arguments, "-o", "json", bootstrap=bootstrap)
    found = json.loads(out)
    assert found["messages"] == 2000
    assert found["partitions"] == 3
    assert found["produce"]["messages_per_s"] > 0
    assert found["consume"]["messages_per_s"] > 0
    assert (
        0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    )
    assert found["topic"] not in sapwood("topic", "ls", bootstrap=bootstrap)[0]


def test_bench_prints_a_table_and_keeps_a_topic_that_was_given(bootstrap: str) -> None:
    name = unique("bench")
    sapwood("topic", "create", name, "--partitions", "2", bootstrap=bootstrap)
    arguments = ("bench", "--messages", "100", "--latency-messages", "0", "-z", "lz4")
    out, _ = sapwood(*arguments, "--topic", name, bootstrap=bootstrap)
    assert "produce" in out
    assert "messages/s" in out
    assert name in sapwood("topic", "ls", bootstrap=bootstrap)[0]
