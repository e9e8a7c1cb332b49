"""What the broker refuses, and that each client hears the right error."""

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import NewTopic

from tests.helpers import unique
from tests.judges.aio import Aio
from tests.judges.confluent import Confluent, result
from tests.judges.judge import CODECS, Admin, Judge, Message, RefusedError
from tests.judges.kcat import Kcat
from tests.judges.python import KafkaPython

UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC_EXCEPTION = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40
INVALID_RECORD = 87


def code(refusal: "pytest.ExceptionInfo[RefusedError]") -> int:
    return refusal.value.code


def test_a_topic_that_exists_is_not_created_again(admin: Admin, topic: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        admin.create_topic(topic)
    assert code(refusal) == TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["with space", "slash/ed", "a" * 250, "..", "ünsafe", ""])
def test_an_invalid_topic_name_is_refused(admin: Admin, name: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        admin.create_topic(name)
    assert code(refusal) == INVALID_TOPIC_EXCEPTION


def test_a_topic_that_does_not_exist_is_not_deleted(admin: Admin) -> None:
    with pytest.raises(RefusedError) as refusal:
        admin.delete_topic(unique("never-made"))
    assert code(refusal) == UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_needs_a_partition(admin: Admin) -> None:
    with pytest.raises(RefusedError) as refusal:
        admin.create_topic(unique("none-at-all"), partitions=0)
    assert code(refusal) == INVALID_PARTITIONS


def test_partitions_are_never_taken_away(admin: Admin, confluent: Confluent) -> None:
    topic = unique("shrinking")
    confluent.create_topic(topic, partitions=3)
    with pytest.raises(RefusedError) as refusal:
        admin.create_partitions(topic, 2)
    assert code(refusal) == INVALID_PARTITIONS


def test_more_replicas_than_brokers_are_refused(confluent: Confluent) -> None:
    new = NewTopic(unique("spread"), num_partitions=1, replication_factor=9)
    with pytest.raises(RefusedError) as refusal:
        result(confluent.admin.create_topics([new]))
    assert code(refusal) == INVALID_REPLICATION_FACTOR


BAD_CONFIGS = [
    ("retention.ms", "soon"),
    ("retention.ms", "-2"),
    ("segment.bytes", "0"),
    ("cleanup.policy", "shred"),
    ("compression.type", "brotli"),
    ("message.timestamp.type", "MoonTime"),
    ("max.message.bytes", "-1"),
    ("no.such.setting", "1"),
]


@pytest.mark.parametrize(("key", "value"), BAD_CONFIGS)
def test_a_bad_setting_is_refused_at_creation(admin: Admin, key: str, value: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        admin.create_topic(unique("misconfigured"), config={key: value})
    assert code(refusal) == INVALID_CONFIG


@pytest.mark.parametrize(("key", "value"), BAD_CONFIGS)
def test_a_bad_setting_is_refused_later_and_changes_nothing(
    admin: Admin, topic: str, key: str, value: str
) -> None:
    before = admin.config(topic)
    with pytest.raises(RefusedError) as refusal:
        admin.alter_config(topic, key, value)
    assert code(refusal) == INVALID_CONFIG
    assert admin.config(topic) == before


def test_the_configuration_of_an_unknown_topic_is_not_altered(admin: Admin) -> None:
    with pytest.raises(RefusedError) as refusal:
        admin.alter_config(unique("never-made"), "retention.ms", "1000")
    assert code(refusal) == UNKNOWN_TOPIC_OR_PARTITION


def test_a_message_over_the_topics_limit_is_refused_and_a_smaller_one_still_passes(
    admin: Admin,
) -> None:
    assert isinstance(admin, Judge)
    topic = unique("limited")
    admin.create_topic(topic, config={"max.message.bytes": "20000"})
    with pytest.raises(RefusedError) as refusal:
        admin.produce(topic, [Message(b"x" * 30000)])
    assert code(refusal) == MESSAGE_TOO_LARGE
    admin.produce(topic, [Message(b"x" * 15000)])
    assert len(admin.consume(topic, 1)) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_takes_no_message_without_a_key(
    confluent: Confluent, kafka_python: KafkaPython, codec: str
) -> None:
    """aiokafka doesn't know this error and shows it as unknown."""
    topic = unique("compacted")
    confluent.create_topic(topic, config={"cleanup.policy": "compact"})
    for judge in (confluent, kafka_python):
        with pytest.raises(RefusedError) as refusal:
            judge.produce(topic, [Message(b"no key")], codec=codec)
        assert code(refusal) == INVALID_RECORD
        judge.produce(topic, [Message(b"a value", key=b"a key")], codec=codec)
    assert [it.value for it in confluent.consume(topic, 2)] == [b"a value"] * 2


def test_reading_a_topic_that_does_not_exist_is_refused_and_creates_nothing(
    bootstrap: str, confluent: Confluent
) -> None:
    topic = unique("never-made")
    with pytest.raises(RefusedError) as refusal:
        result(confluent.admin.describe_topics(TopicCollection([topic])))
    assert code(refusal) == UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(RuntimeError, match="Unknown topic or partition"):
        Kcat(bootstrap).consume(topic, 1)
    assert topic not in confluent.describe_topics()


def test_writing_to_a_partition_that_does_not_exist_is_refused(bootstrap: str, topic: str) -> None:
    with pytest.raises(AssertionError, match="Unrecognized partition"):
        Aio(bootstrap).produce(topic, [Message(b"nowhere")], partition=7)
