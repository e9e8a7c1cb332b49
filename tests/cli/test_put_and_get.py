"""`sapwood put`, `get`, `subscribe`, `unsubscribe` and `pending` against a running node."""

import json
import signal
import subprocess

import pytest

from sapwood.client import Client, KafkaClient, NotSubscribed
from tests.cli.command import COMMAND, said, sapwood
from tests.helpers import eventually, unique


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic with a durable subscriber, alice, who wants everything."""
    name = unique("messages")
    sapwood("topic", "create", name, "--partitions", "1", bootstrap=bootstrap)
    sapwood("subscribe", name, "--id", "alice", "--start", "earliest", bootstrap=bootstrap)
    return name


def got(topic: str, bootstrap: str, *arguments: str, name: str = "alice") -> list[str]:
    return sapwood("get", topic, "--id", name, *arguments, bootstrap=bootstrap)[0].splitlines()


def test_what_is_put_is_got_once(bootstrap: str, topic: str) -> None:
    out, err = sapwood("put", topic, "eins", "zwölf", bootstrap=bootstrap)
    first, second = (line.split() for line in out.splitlines())
    assert (first[1:], second[1:]) == ([topic, "0@0"], [topic, "0@1"])
    assert first[0] != second[0]
    assert f"2 messages are safe in {topic}" in err
    assert got(topic, bootstrap) == ["eins", "zwölf"]
    assert got(topic, bootstrap) == []
    sapwood("put", topic, "drei", bootstrap=bootstrap)
    assert got(topic, bootstrap, "--max", "1") == ["drei"]


def test_a_put_that_is_repeated_under_its_id_is_stored_once(bootstrap: str, topic: str) -> None:
    arguments = ("put", topic, "order", "--id", "order-17")
    once, again = (sapwood(*arguments, bootstrap=bootstrap)[0] for _ in range(2))
    assert once == again == f"order-17 {topic} 0@0\n"
    assert got(topic, bootstrap) == ["order"]


def test_a_put_is_repeated_into_the_partition_where_it_was(bootstrap: str) -> None:
    topic = unique("put")
    sapwood("topic", "create", topic, "--partitions", "4", bootstrap=bootstrap)
    for number in range(6):
        arguments = ("put", topic, "order", "--id", f"order-{number}")
        once, again = (sapwood(*arguments, bootstrap=bootstrap)[0] for _ in range(2))
        assert once == again


def test_lines_of_standard_input_are_messages_and_go_out_before_the_next_is_awaited(
    bootstrap: str, topic: str
) -> None:
    with subprocess.Popen(
        [*COMMAND, "put", topic, "-", "-b", bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        for number in range(3):
            publisher.stdin.write(b"%d\n" % number)
            publisher.stdin.flush()
            assert publisher.stdout.readline().endswith(b" 0@%d\n" % number)
        publisher.stdin.close()
        assert publisher.wait(30) == 0
    assert got(topic, bootstrap) == ["0", "1", "2"]


def test_a_message_has_its_key_headers_and_sender(bootstrap: str, topic: str) -> None:
    sapwood(
        "put", topic, "x", "--sender", "shop", "-k", "k", "-H", "a=1", "-H", "n", "--id", "7",
        bootstrap=bootstrap,
    )  # fmt: skip
    sapwood("put", topic, "y", "--sender", "shop", bootstrap=bootstrap)
    first, second = (json.loads(line) for line in got(topic, bootstrap, "-J"))
    assert first == {
        "id": "7",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": first["timestamp"],
        "sender": "shop",
        "key": "k",
        "headers": {"a": "1", "n": None},
        "value": "x",
    }
    assert (second["key"], second["sender"], second["value"]) == ("shop", "shop", "y")


def test_formats_are_those_of_consume(bootstrap: str, topic: str) -> None:
    sapwood("put", topic, "v", "-k", "k", bootstrap=bootstrap)
    assert got(topic, bootstrap, "-f", r"%p@%o %k: %s\n") == ["0@0 k: v"]


def test_puts_can_be_told_as_json(bootstrap: str, topic: str) -> None:
    (line,) = sapwood("put", topic, "v", "-J", "--id", "9", bootstrap=bootstrap)[0].splitlines()
    told = json.loads(line)
    assert told == {**told, "id": "9", "topic": topic, "partition": 0, "offset": 0}


def test_what_is_not_acknowledged_comes_again_and_what_is_does_not(
    bootstrap: str, topic: str
) -> None:
    sapwood("put", topic, "a", "b", bootstrap=bootstrap)
    assert got(topic, bootstrap, "--ack", "manual", "--max", "1") == ["a"]
    assert got(topic, bootstrap, "--ack", "manual") == ["b"]


def test_a_subscription_starts_where_it_is_told_and_ends_when_told(bootstrap: str) -> None:
    topic = unique("start")
    sapwood("put", topic, "early", bootstrap=bootstrap)
    subscribe = ("subscribe", topic, "--id", "late")
    out, _ = sapwood(*subscribe, bootstrap=bootstrap)
    assert out == f"late is subscribed to {topic}.\n"
    assert "already" in sapwood(*subscribe, bootstrap=bootstrap)[0]
    sapwood("put", topic, "next", bootstrap=bootstrap)
    assert got(topic, bootstrap, name="late") == ["next"]
    out, _ = sapwood("unsubscribe", topic, "--id", "late", bootstrap=bootstrap)
    assert out == f"late is no longer subscribed to {topic}.\n"
    line = said("get", topic, "--id", "late", bootstrap=bootstrap)
    assert "no subscription" in line


def test_pending_tells_who_has_how_much_to_get(bootstrap: str, topic: str) -> None:
    sapwood("subscribe", topic, "--id", "bob", "--start", "earliest", bootstrap=bootstrap)
    sapwood("put", topic, "a", "b", bootstrap=bootstrap)
    got(topic, bootstrap, "--max", "1")
    lines = sapwood("pending", topic, bootstrap=bootstrap)[0].splitlines()
    assert [line.split() for line in lines] == [
        ["SUBSCRIBER", "PENDING"],
        ["alice", "1"],
        ["bob", "2"],
    ]
    lines = sapwood("pending", topic, "-p", bootstrap=bootstrap)[0].splitlines()
    assert lines[2].split() == ["bob", "0", "0", "2", "2"]
    found = json.loads(sapwood("pending", topic, "-o", "json", bootstrap=bootstrap)[0])
    partition = {"partition": 0, "position": 1, "end": 2, "pending": 1}
    assert found[0] == {"subscriber": "alice", "pending": 1, "partitions": [partition]}
    bare = unique("bare")
    sapwood("topic", "create", bare, bootstrap=bootstrap)
    out, err = sapwood("pending", bare, bootstrap=bootstrap)
    assert (out, "sapwood subscribe" in err) == ("", True)


def test_a_subscriber_can_be_sent_back_as_the_group_that_it_is(bootstrap: str, topic: str) -> None:
    sapwood("put", topic, "a", "b", "c", bootstrap=bootstrap)
    assert got(topic, bootstrap) == ["a", "b", "c"]
    sapwood("group", "seek", f"{topic}␟alice", "--to", "1", bootstrap=bootstrap)
    assert got(topic, bootstrap) == ["b", "c"]


def test_following_waits_for_more_until_it_is_interrupted(bootstrap: str, topic: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "get", topic, "--id", "alice", "--follow", "-b", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        for text in ("first", "second"):
            sapwood("put", topic, text, bootstrap=bootstrap)
            assert reader.stdout.readline().decode() == f"{text}\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(30) == 0
        assert b"alice got 2" in reader.stderr.read()
    # Who leaves in good order leaves at once.
    sapwood("put", topic, "third", bootstrap=bootstrap)
    assert got(topic, bootstrap) == ["third"]


def test_reading_ends_when_nothing_comes_for_the_time_given(bootstrap: str, topic: str) -> None:
    assert got(topic, bootstrap, "--follow", "--timeout", "0.5") == []


def test_messages_that_were_deleted_are_told_and_the_rest_is_got(
    bootstrap: str, topic: str
) -> None:
    sapwood("put", topic, "a", "b", "c", bootstrap=bootstrap)
    with KafkaClient(bootstrap) as client:
        client.delete_records({(topic, 0): 2})
    out, err = sapwood("get", topic, "--id", "alice", bootstrap=bootstrap)
    assert out == "c\n"
    assert "WARNING" in err
    assert "offsets 0 to 1 are gone" in err


def test_logs_are_levelled(bootstrap: str, topic: str) -> None:
    assert sapwood("put", topic, "a", "--log-level", "warning", bootstrap=bootstrap)[1] == ""
    _, err = sapwood("put", topic, "a", "--id", "5", "--log-level", "debug", bootstrap=bootstrap)
    assert [line.split()[1] for line in err.splitlines()] == ["DEBUG", "INFO"]


def test_mistakes_are_one_line_that_says_what_is_wrong(bootstrap: str, topic: str) -> None:
    line = said("get", topic, "--id", "nobody", bootstrap=bootstrap)
    assert line == f"error: nobody has no subscription to {topic}: subscribe first"
    assert "--id is for one message" in said("put", topic, "a", "b", "--id", "1", fails=2)
    assert "--id is for one message" in said("put", topic, "-", "--id", "1", fails=2)
    assert "empty" in said("put", topic, "a", "--id", "", bootstrap=bootstrap, fails=2)
    assert "␟" in said("subscribe", topic, "--id", "a␟b", bootstrap=bootstrap, fails=2)
    assert "exclude" in said("get", topic, "--id", "a", "-J", "-f", "%s", fails=2)
    assert "%q" in said("get", topic, "--id", "a", "-f", "%q", bootstrap=bootstrap, fails=2)
    assert "not a topic name" in said("put", "a/b", "x", bootstrap=bootstrap)


def test_a_subscription_ends_for_whoever_uses_it(bootstrap: str, topic: str) -> None:
    with Client(bootstrap, "alice") as client:
        client.put(topic, "x")
        assert eventually(lambda: client.get(topic, 1))
        sapwood("unsubscribe", topic, "--id", "alice", bootstrap=bootstrap)
        with pytest.raises(NotSubscribed):
            eventually(lambda: client.get(topic, 1), 60)
