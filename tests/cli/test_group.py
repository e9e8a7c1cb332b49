"""`sapwood group` against a running node, with confluent-kafka as the member."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.cli.command import said, sapwood
from tests.helpers import eventually, unique


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("grouped")
    sapwood("topic", "create", name, "--partitions", "2", bootstrap=bootstrap)
    for partition in range(2):
        lines = b"".join(b"%d\n" % number for number in range(10))
        sapwood("produce", name, "-q", "-p", str(partition), bootstrap=bootstrap, stdin=lines)
    return name


@contextmanager
def member(bootstrap: str, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """A consumer that has got everything and committed where it is."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    count = 0

    def has_all() -> bool:
        nonlocal count
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            count += 1
        return count == 20

    try:
        eventually(has_all, 60)
        consumer.commit(asynchronous=False)
        yield consumer
    finally:
        consumer.close()


def described(group: str, bootstrap: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        sapwood("group", "describe", group, "-o", "json", bootstrap=bootstrap)[0]
    )
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_both_protocols_are_shown_with_members_and_lag(
    bootstrap: str, topic: str, protocol: str
) -> None:
    group = unique(protocol)
    with member(bootstrap, group, topic, protocol):
        sapwood("produce", topic, "-q", "-p", "1", bootstrap=bootstrap, stdin=b"x\ny\n")
        found = json.loads(sapwood("group", "ls", "-o", "json", bootstrap=bootstrap)[0])
        (row,) = [each for each in found if each["group"] == group]
        assert (row["type"], row["state"].lower(), row["members"], row["lag"]) == (
            protocol,
            "stable",
            1,
            2,
        )
        about = described(group, bootstrap)
        assert (about["type"], len(about["members"])) == (protocol, 1)
        first, second = about["partitions"]
        assert (first["position"], first["end"], first["lag"]) == (10, 10, 0)
        assert (second["position"], second["end"], second["lag"]) == (10, 12, 2)
        assert first["member"] == second["member"] is not None
        lines = sapwood("group", "describe", group, bootstrap=bootstrap)[0].splitlines()
        assert lines[0] == f"{group}: {protocol}, stable, 1 member, lag 2"
        assert lines[3].split()[:5] == [topic, "1", "10", "12", "2"]
        assert group in sapwood("group", "ls", bootstrap=bootstrap)[0]
        for command in (("seek", group, "--to", "earliest"), ("rm", group)):
            line = said("group", *command, bootstrap=bootstrap)
            assert f"{group} has 1 member: stop it first" in line


@pytest.fixture
def group(bootstrap: str, topic: str) -> str:
    """Without members, at the end of the topic."""
    name = unique("group")
    sapwood("group", "seek", name, "--to", "latest", "-t", topic, bootstrap=bootstrap)
    return name


def positions(group: str, bootstrap: str) -> list[int]:
    return [each["position"] for each in described(group, bootstrap)["partitions"]]


def test_an_empty_group_is_moved_anywhere_in_the_log(
    bootstrap: str, topic: str, group: str
) -> None:
    def seek(*arguments: str) -> list[int]:
        sapwood("group", "seek", group, *arguments, bootstrap=bootstrap)
        return positions(group, bootstrap)

    assert positions(group, bootstrap) == [10, 10]
    assert seek("--to", "earliest") == [0, 0]
    assert seek("--to", "7") == [7, 7]
    assert seek("--to", "latest", "-t", f"{topic}:1") == [7, 10]
    assert seek("--to", "@0") == [0, 0]
    assert seek("--to", "@99999999999999") == [10, 10]
    out, _ = sapwood("group", "seek", group, "--to", "3", bootstrap=bootstrap)
    assert out == f"{topic}:0 is at 3.\n{topic}:1 is at 3.\n"


def test_a_place_that_is_none_is_refused_and_nothing_moves(
    bootstrap: str, topic: str, group: str
) -> None:
    def refused(*arguments: str, fails: int = 1) -> str:
        return said("group", "seek", group, *arguments, bootstrap=bootstrap, fails=fails)

    assert "offsets 0 to 10" in refused("--to", "11")
    assert "use earliest" in refused("--to", "soon", fails=2)
    assert "no partition 5" in refused("--to", "0", "-t", f"{topic}:5", fails=2)
    assert "topic:partition" in refused("--to", "0", "-t", f"{topic}:x", fails=2)
    assert "there is no topic" in refused("--to", "0", "-t", "missing-topic")
    line = said("group", "seek", unique("new"), "--to", "0", bootstrap=bootstrap)
    assert "no positions" in line
    assert positions(group, bootstrap) == [10, 10]


def test_a_group_is_removed_with_its_positions(bootstrap: str, group: str) -> None:
    assert sapwood("group", "rm", group, bootstrap=bootstrap)[0] == f"Removed {group}.\n"
    for command in ("describe", "rm"):
        line = said("group", command, group, bootstrap=bootstrap)
        assert f"there is no group {group}" in line


def test_a_group_whose_topic_is_gone_is_shown_without_its_end(
    bootstrap: str, topic: str, group: str
) -> None:
    sapwood("topic", "rm", topic, "-y", bootstrap=bootstrap)
    out, _ = sapwood("group", "ls", bootstrap=bootstrap)
    assert group in out
