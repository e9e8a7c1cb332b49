"""`sapwood topic`."""

import json

import pytest

from tests.cli.command import said, sapwood
from tests.helpers import unique


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("topic")
    out, _ = sapwood("topic", "create", name, "--partitions", "2", bootstrap=bootstrap)
    assert out == f"Created {name}.\n"
    return name


def test_a_new_topic_is_listed_as_a_table_and_as_json(bootstrap: str, topic: str) -> None:
    out, _ = sapwood("topic", "ls", bootstrap=bootstrap)
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert [topic, "2", "1"] in rows
    out, _ = sapwood("topic", "ls", "-o", "json", bootstrap=bootstrap)
    listed = {each["topic"]: each for each in json.loads(out)}
    assert listed[topic] == {
        "topic": topic, "partitions": 2, "replication_factor": 1, "internal": False,
    }  # fmt: skip


def test_describe_shows_leaders_offsets_and_configs_that_differ(bootstrap: str, topic: str) -> None:
    sapwood("topic", "alter", topic, "--config", "retention.ms=12345", bootstrap=bootstrap)
    sapwood("produce", topic, "-p", "1", bootstrap=bootstrap, stdin=b"a\nb\nc\n")
    out, _ = sapwood("topic", "describe", topic, "-o", "json", bootstrap=bootstrap)
    found = json.loads(out)
    assert found["topic"] == topic
    assert found["configs"] == {"retention.ms": "12345"}
    first, second = found["partitions"]
    assert (first["start_offset"], first["end_offset"]) == (0, 0)
    assert (second["start_offset"], second["end_offset"]) == (0, 3)
    assert second["leader"] in second["replicas"] == second["in_sync"]
    out, _ = sapwood("topic", "describe", topic, bootstrap=bootstrap)
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:2] == ["PARTITION", "LEADER"]
    assert lines[2][-3:] == ["0", "3", "3"]
    assert ["retention.ms", "12345"] in lines


def test_alter_adds_partitions_and_puts_configs_back(bootstrap: str, topic: str) -> None:
    sapwood("topic", "alter", topic, "--config", "retention.ms=12345", bootstrap=bootstrap)
    out, _ = sapwood(
        "topic", "alter", topic, "--partitions", "5", "--delete-config", "retention.ms",
        "--config", "max.message.bytes=9999", bootstrap=bootstrap,
    )  # fmt: skip
    assert out == f"Altered {topic}.\n"
    found = json.loads(sapwood("topic", "describe", topic, "-o", "json", bootstrap=bootstrap)[0])
    assert len(found["partitions"]) == 5
    assert found["configs"] == {"max.message.bytes": "9999"}


def test_a_topic_is_made_with_its_configs(bootstrap: str) -> None:
    name = unique("configured")
    sapwood(
        "topic", "create", name, "--replication-factor", "1", "--config", "cleanup.policy=compact",
        "--config", "retention.ms=7", bootstrap=bootstrap,
    )  # fmt: skip
    found = json.loads(sapwood("topic", "describe", name, "-o", "json", bootstrap=bootstrap)[0])
    assert found["configs"] == {"cleanup.policy": "compact", "retention.ms": "7"}


def test_removed_topics_are_gone(bootstrap: str, topic: str) -> None:
    other = unique("other")
    sapwood("topic", "create", other, bootstrap=bootstrap)
    out, _ = sapwood("topic", "rm", topic, other, bootstrap=bootstrap)
    assert out == f"Removed {topic}.\nRemoved {other}.\n"
    listed = sapwood("topic", "ls", bootstrap=bootstrap)[0]
    assert topic not in listed
    assert other not in listed


def test_mistakes_are_one_line_that_says_what_is_wrong(bootstrap: str, topic: str) -> None:
    assert "exists" in said("topic", "create", topic, bootstrap=bootstrap)
    assert "missing-topic" in said("topic", "rm", "missing-topic", bootstrap=bootstrap)
    line = said("topic", "describe", "missing-topic", bootstrap=bootstrap)
    assert "sapwood topic create missing-topic" in line
    assert "no.such" in said("topic", "alter", topic, "--config", "no.such=1", bootstrap=bootstrap)
    assert topic in said("topic", "alter", topic, "--partitions", "1", bootstrap=bootstrap)
    assert "b d" in said("topic", "create", "b d", bootstrap=bootstrap)
    line = said("topic", "create", "x", "--replication-factor", "9", bootstrap=bootstrap)
    assert line.startswith("error: topic x")
    assert "nothing to alter" in said("topic", "alter", topic, bootstrap=bootstrap, fails=2)
    line = said("topic", "create", "x", "--config", "oops", bootstrap=bootstrap, fails=2)
    assert "name=value" in line
