"""A day in the life of each client, from a topic's creation to its end."""

import time

import pytest

from tests.helpers import eventually, unique
from tests.judges.confluent import Confluent
from tests.judges.judge import CODECS, Admin, Judge, same, sample
from tests.judges.kcat import Kcat


@pytest.mark.parametrize("codec", CODECS)
def test_a_client_creates_fills_reads_searches_alters_and_deletes_a_topic(
    admin: Admin, codec: str
) -> None:
    judge = admin
    assert isinstance(judge, Judge)
    topic = unique(f"day-{codec}")
    messages = sample(40)

    admin.create_topic(topic)
    judge.produce(topic, messages, codec=codec)
    assert same(messages, judge.consume(topic, len(messages)))

    times = [it.timestamp_ms or 0 for it in messages]
    assert judge.offset_for_timestamp(topic, 0) == 0
    assert judge.offset_for_timestamp(topic, times[17]) == 17
    assert judge.offset_for_timestamp(topic, times[17] + 1) == 18
    assert judge.offset_for_timestamp(topic, times[-1] + 1) == -1

    assert admin.config(topic)["retention.ms"] == "604800000"
    admin.alter_config(topic, "retention.ms", "86400000")
    assert eventually(lambda: admin.config(topic)["retention.ms"] == "86400000")

    assert list(judge.describe_topics()[topic].leaders) == [0]
    admin.delete_topic(topic)
    assert eventually(lambda: topic not in judge.describe_topics())


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_creates_fills_reads_and_searches_a_topic_that_librdkafka_alters_and_deletes(
    bootstrap: str, confluent: Confluent, codec: str
) -> None:
    """kcat makes topics by writing to them and has no commands to alter or delete them."""
    kcat = Kcat(bootstrap)
    topic = unique(f"day-kcat-{codec}")
    messages = sample(40)

    before_ms = int(time.time() * 1000)
    kcat.produce(topic, messages, codec=codec)
    after_ms = int(time.time() * 1000)
    received = kcat.consume(topic, len(messages))
    assert same(messages, received, timestamps=False)
    times = [it.timestamp_ms for it in received]
    assert before_ms <= min(times) <= max(times) <= after_ms

    assert kcat.offset_for_timestamp(topic, 0) == 0
    assert kcat.offset_for_timestamp(topic, times[17]) == times.index(times[17])
    assert kcat.offset_for_timestamp(topic, max(times) + 1) == -1

    confluent.alter_config(topic, "message.timestamp.type", "LogAppendTime")
    kcat.produce(topic, messages[:1], codec=codec)
    assert kcat.consume(topic, 1, offset=40)[0].is_append_time

    confluent.delete_topic(topic)
    assert eventually(lambda: topic not in kcat.describe_topics())


def test_a_consumer_that_waits_at_the_end_gets_what_is_written_later(
    judge: Judge, confluent: Confluent, topic: str
) -> None:
    """Each client asks again from where it was: nothing twice, nothing left out."""
    messages = sample(30)
    confluent.produce(topic, messages[:10])
    assert same(messages[:10], judge.consume(topic, 10))
    confluent.produce(topic, messages[10:])
    rest = judge.consume(topic, 20, offset=10)
    assert [it.value for it in rest] == [it.value for it in messages[10:]]
