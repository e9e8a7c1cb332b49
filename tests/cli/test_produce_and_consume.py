"""`sapwood produce` and `sapwood consume`, with kcat as the judge of formats."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from sapwood.client import KafkaClient
from tests.cli.command import COMMAND, said, sapwood
from tests.helpers import unique


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("records")
    sapwood("topic", "create", name, "--partitions", "1", bootstrap=bootstrap)
    return name


def kcat(bootstrap: str, *arguments: str) -> str:
    command = ["kcat", "-b", bootstrap, "-q", *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode()


def read(topic: str, bootstrap: str, *arguments: str) -> list[str]:
    return sapwood("consume", topic, "-e", "-q", *arguments, bootstrap=bootstrap)[0].splitlines()


def test_lines_go_in_and_come_out(bootstrap: str, topic: str) -> None:
    out, err = sapwood("produce", topic, bootstrap=bootstrap, stdin="eins\n\nzwölf".encode())
    assert (out, err) == ("", f"Sent 3 records to {topic}.\n")
    out, err = sapwood("consume", topic, "-e", bootstrap=bootstrap)
    assert (out, err) == ("eins\n\nzwölf\n", f"Read 3 records of {topic}.\n")
    assert sapwood("produce", topic, "-q", bootstrap=bootstrap, stdin=b"x\n") == ("", "")


def test_keys_headers_partition_and_codec_are_those_asked_for(bootstrap: str) -> None:
    name = unique("keyed")
    sapwood("topic", "create", name, "--partitions", "3", bootstrap=bootstrap)
    sapwood(
        "produce", name, "-k", "::", "-H", "a=1=2", "-H", "none", "-p", "2", "-z", "zstd",
        bootstrap=bootstrap, stdin=b"k::v::w\nno key\n",
    )  # fmt: skip
    first, second = (json.loads(line) for line in read(name, bootstrap, "-J"))
    assert (first["partition"], first["key"], first["payload"]) == (2, "k", "v::w")
    assert first["headers"] == ["a", "1=2", "none", None]
    assert (second["key"], second["payload"]) == (None, "no key")


def test_files_are_read_line_by_line_or_whole(bootstrap: str, topic: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1\r\n2\n")
    two.write_bytes(b"3")
    sapwood("produce", topic, str(one), "-", str(two), bootstrap=bootstrap, stdin=b"x\n")
    assert read(topic, bootstrap) == ["1", "2", "x", "3"]
    sapwood("produce", topic, "--whole", str(one), bootstrap=bootstrap)
    (found,) = (json.loads(line) for line in read(topic, bootstrap, "-J", "-o", "-1"))
    assert found["payload"] == "1\r\n2\n"
    one.write_bytes(bytes(2_000_000))
    line = said("produce", topic, "--whole", str(one), bootstrap=bootstrap)
    assert "max.message.bytes" in line
    sapwood("topic", "alter", topic, "--config", "max.message.bytes=3000000", bootstrap=bootstrap)
    sapwood("produce", topic, "--whole", str(one), bootstrap=bootstrap)
    assert "nowhere" in said("produce", topic, str(tmp_path / "nowhere"), bootstrap=bootstrap)


def test_empty_keys_and_values_can_mean_none(bootstrap: str, topic: str) -> None:
    sapwood("produce", topic, "-Z", "-k", ":", bootstrap=bootstrap, stdin=b"k:\n:v\n")
    assert read(topic, bootstrap, "-f", r"%K %S\n") == ["1 -1", "-1 1"]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_a_large_input_arrives_whole_and_in_order(bootstrap: str, topic: str, acks: str) -> None:
    lines = [f"line {number}" for number in range(30_000)]
    text = "\n".join(lines).encode()
    sapwood("produce", topic, "--acks", acks, bootstrap=bootstrap, stdin=text)
    arguments = ("consume", topic, "-q", "-c", str(len(lines)))
    assert sapwood(*arguments, bootstrap=bootstrap)[0].splitlines() == lines


def test_a_typed_line_is_sent_before_the_next_one_is_awaited(bootstrap: str, topic: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "produce", topic, "-q", "-b", bootstrap], stdin=subprocess.PIPE
    ) as producer:
        assert producer.stdin is not None
        for number in range(3):
            producer.stdin.write(b"%d\n" % number)
            producer.stdin.flush()
            wanted = ("consume", topic, "-q", "-c", str(number + 1))
            assert sapwood(*wanted, bootstrap=bootstrap)[0].splitlines()[-1] == str(number)
        producer.stdin.close()
        assert producer.wait(30) == 0


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([], range(10)),
        (["beginning"], range(10)),
        (["end"], []),
        (["7"], range(7, 10)),
        (["-3"], range(7, 10)),
        (["-100"], range(10)),
        (["s@1000004"], range(4, 10)),
        (["s@1000002", "e@1000005"], range(2, 5)),
        (["s@9999999"], []),
        (["e@1000003"], range(3)),
    ],
)
def test_reading_starts_and_stops_where_it_is_told(
    bootstrap: str, offsets: list[str], expected: range | list[int]
) -> None:
    topic = unique("offsets")
    create = ("topic", "create", topic, "--config", "retention.ms=-1", "--partitions", "1")
    sapwood(*create, bootstrap=bootstrap)
    with KafkaClient(bootstrap) as client:
        for number in range(10):
            client.send(topic, b"%d" % number, timestamp_ms=1_000_000 + number)
    arguments = [part for offset in offsets for part in ("-o", offset)]
    assert read(topic, bootstrap, *arguments) == [str(number) for number in expected]


def test_json_and_formats_are_kcats_to_the_letter(bootstrap: str) -> None:
    name = unique("kcat")
    sapwood("topic", "create", name, "--partitions", "1", bootstrap=bootstrap)
    stdin = 'k:v"\\\t\nkéy:wörld\n:empty\n'.encode()
    sapwood("produce", name, "-k", ":", "-H", "h=x,y", "-H", "n", bootstrap=bootstrap, stdin=stdin)
    sapwood("produce", name, bootstrap=bootstrap, stdin=b"no key, no headers\n")
    theirs = kcat(bootstrap, "-C", "-t", name, "-e", "-J").splitlines()
    ours = read(name, bootstrap, "-J")
    assert [list(json.loads(line).items()) for line in ours] == [
        list(json.loads(line).items()) for line in theirs
    ]
    template = r"%t [%p] %o %k %K %s %S %T %h %% \x41\t|\n"
    assert "\n".join(read(name, bootstrap, "-f", template)) + "\n" == kcat(
        bootstrap, "-C", "-t", name, "-e", "-f", template
    )


def test_a_reader_waits_for_more_until_it_has_enough(bootstrap: str, topic: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "-q", "-c", "2", "-b", bootstrap], stdout=subprocess.PIPE
    ) as consumer:
        assert consumer.stdout is not None
        sapwood("produce", topic, bootstrap=bootstrap, stdin=b"first\n")
        assert consumer.stdout.readline() == b"first\n"
        sapwood("produce", topic, bootstrap=bootstrap, stdin=b"second\nthird\n")
        assert consumer.stdout.read() == b"second\n"
        assert consumer.wait(30) == 0


def test_an_interrupt_ends_reading_quietly(bootstrap: str, topic: str) -> None:
    sapwood("produce", topic, bootstrap=bootstrap, stdin=b"first\n")
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "-b", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"first\n"
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(30) == 0
        assert consumer.stderr.read() == b""


def test_several_partitions_or_one_can_be_read(bootstrap: str) -> None:
    name = unique("partitions")
    sapwood("topic", "create", name, "--partitions", "3", bootstrap=bootstrap)
    for number in range(3):
        stdin = b"%d\n" % number
        sapwood("produce", name, "-p", str(number), bootstrap=bootstrap, stdin=stdin)
    assert sorted(read(name, bootstrap)) == ["0", "1", "2"]
    assert read(name, bootstrap, "-p", "1") == ["1"]
    assert sorted(read(name, bootstrap, "-p", "0", "-p", "2")) == ["0", "2"]


def test_topics_are_merged_in_the_order_in_which_they_were_stored(bootstrap: str) -> None:
    names = [unique(name) for name in ("orders", "payments")]
    for name in names:
        sapwood("topic", "create", name, "--partitions", "2", bootstrap=bootstrap)
    for number in range(6):
        place = names[number % 2], "-p", str(number % 3 % 2)
        sapwood("produce", *place, bootstrap=bootstrap, stdin=b"%d\n" % number)
    merged = ["consume", "--merge", *names, "-e"]
    out, err = sapwood(*merged, "-c", "4", bootstrap=bootstrap)
    assert out.split() == ["0", "1", "2", "3"]
    position = err.split()[-1]
    assert sapwood(*merged, "-q", "-o", position, bootstrap=bootstrap) == ("4\n5\n", "")
    found = sapwood(*merged, "-q", "-J", bootstrap=bootstrap)[0].splitlines()
    assert [json.loads(line)["topic"] for line in found] == names * 3
    assert "--merge" in said("consume", *names, bootstrap=bootstrap, fails=2)
    assert "no place" in said(*merged, "-o", "5", bootstrap=bootstrap, fails=2)
    assert "leave -p out" in said(*merged, "-p", "0", bootstrap=bootstrap, fails=2)


def test_mistakes_are_one_line_that_says_what_is_wrong(bootstrap: str, topic: str) -> None:
    assert "sapwood topic create" in said("consume", "missing-topic", "-e", bootstrap=bootstrap)
    assert "no partition 8" in said("produce", topic, "-p", "8", bootstrap=bootstrap, stdin=b"x\n")
    assert "not a topic name" in said("produce", "a/b", bootstrap=bootstrap, stdin=b"x\n")
    assert "offset 99" in said("consume", topic, "-o", "99", bootstrap=bootstrap)
    sapwood("topic", "alter", topic, "--config", "max.message.bytes=100", bootstrap=bootstrap)
    assert "max.message.bytes" in said("produce", topic, bootstrap=bootstrap, stdin=bytes(200))
    assert "no partition 5" in said("consume", topic, "-p", "5", bootstrap=bootstrap, fails=2)
    assert "-o soon" in said("consume", topic, "-o", "soon", bootstrap=bootstrap, fails=2)
    assert "%q" in said("consume", topic, "-f", "%q", bootstrap=bootstrap, fails=2)
    assert "exclude" in said("consume", topic, "-J", "-f", "%s", bootstrap=bootstrap, fails=2)
