"""The newer group protocol, judged by librdkafka: subscriptions and assignors."""

from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Consumer

from tests.helpers import eventually, unique
from tests.judges.confluent import Confluent

DEADLINE_S = 60
HALVES = [range(3), range(3, 6)]


@pytest.fixture
def topics(bootstrap: str) -> list[str]:
    """Two topics with six partitions each whose names begin alike."""
    prefix = unique("newer")
    names = [f"{prefix}-a", f"{prefix}-b"]
    for name in names:
        Confluent(bootstrap).create_topic(name, partitions=6)
    return names


def member(bootstrap: str, group: str, topics: list[str], **more: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            **more,
        }
    )
    consumer.subscribe(topics)
    return consumer


def assigned(*consumers: Consumer) -> list[set[tuple[str, int]]]:
    """What each of them has; all are polled, which is how they get on."""
    for consumer in consumers:
        consumer.poll(0.05)
    return [{(it.topic, it.partition) for it in each.assignment()} for each in consumers]


def all_of(topic: str, partitions: int = 6) -> set[tuple[str, int]]:
    return {(topic, index) for index in range(partitions)}


def test_a_pattern_follows_topics_that_are_made_and_deleted(
    bootstrap: str, topics: list[str]
) -> None:
    first, second = topics
    judge = Confluent(bootstrap)
    pattern = f"^{first[:-2]}-[a-c]"
    with closing(member(bootstrap, unique("group"), [pattern])) as reader:
        known = all_of(first) | all_of(second)
        eventually(lambda: assigned(reader) == [known], DEADLINE_S)
        third = f"{first[:-2]}-c"
        judge.create_topic(third, partitions=2)
        judge.create_topic(f"{first[:-2]}-d", partitions=2)
        eventually(lambda: assigned(reader) == [known | all_of(third, 2)], DEADLINE_S)
        judge.delete_topic(second)
        eventually(lambda: assigned(reader) == [all_of(first) | all_of(third, 2)], DEADLINE_S)


def test_partitions_that_are_added_are_handed_out(bootstrap: str, topics: list[str]) -> None:
    with closing(member(bootstrap, unique("group"), topics[:1])) as reader:
        eventually(lambda: assigned(reader) == [all_of(topics[0])], DEADLINE_S)
        Confluent(bootstrap).create_partitions(topics[0], 9)
        eventually(lambda: assigned(reader) == [all_of(topics[0], 9)], DEADLINE_S)


def test_the_range_assignor_splits_topics_alike(bootstrap: str, topics: list[str]) -> None:
    group, wish = unique("group"), {"group.remote.assignor": "range"}
    with ExitStack() as stack:
        readers = [
            stack.enter_context(closing(member(bootstrap, group, topics, **wish))) for _ in range(2)
        ]

        def is_split() -> bool:
            found = assigned(*readers)
            halves = [{(name, index) for name in topics for index in half} for half in HALVES]
            return found in (halves, halves[::-1])

        eventually(is_split, DEADLINE_S)


def test_an_assignor_that_is_not_there_is_refused(bootstrap: str, topics: list[str]) -> None:
    wish = {"group.remote.assignor": "fair", "log_level": "0"}
    with closing(member(bootstrap, unique("group"), topics, **wish)) as reader:

        def refusal() -> str:
            message = reader.poll(0.05)
            error = None if message is None else message.error()
            return "" if error is None else error.str()

        assert "assignor" in eventually(refusal, DEADLINE_S)
