"""What one client writes, every other reads, under every codec."""

import pytest

from tests.judges.judge import AN_HOUR_AGO_MS, CODECS, Judge, Message, same, sample


@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_writes_every_client_reads(
    judge: Judge, judges: list[Judge], topic: str, codec: str
) -> None:
    messages = sample(60)
    judge.produce(topic, messages, codec=codec)
    for reader in judges:
        received = reader.consume(topic, len(messages))
        assert same(messages, received, timestamps=judge.sets_timestamps), reader.name


def test_an_idempotent_producer_of_one_client_is_read_by_every_client(
    judge: Judge, judges: list[Judge], topic: str
) -> None:
    messages = sample(200)
    judge.produce(topic, messages, idempotent=True)
    for reader in judges:
        received = reader.consume(topic, len(messages))
        assert same(messages, received, timestamps=judge.sets_timestamps), reader.name


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_read_from_its_middle_by_every_client(
    judges: list[Judge], topic: str, codec: str
) -> None:
    messages = sample(100)
    judges[1].produce(topic, messages, codec=codec)
    for reader in judges:
        received = reader.consume(topic, 3, offset=58)
        assert [it.offset for it in received] == [58, 59, 60], reader.name
        assert [it.value for it in received] == [it.value for it in messages[58:61]], reader.name


def test_nulls_and_empty_strings_stay_apart_for_every_client_that_can_tell(
    admin: Judge, judges: list[Judge], topic: str
) -> None:
    messages = [
        Message(value=None, key=b"a tombstone", timestamp_ms=AN_HOUR_AGO_MS + 1),
        Message(value=b"", key=b"an empty value", timestamp_ms=AN_HOUR_AGO_MS + 2),
        Message(value=b"no key", key=None, timestamp_ms=AN_HOUR_AGO_MS + 3),
        Message(value=b"an empty key", key=b"", timestamp_ms=AN_HOUR_AGO_MS + 4),
        Message(
            value=b"an empty header",
            key=b"k",
            headers=(("empty", b""),),
            timestamp_ms=AN_HOUR_AGO_MS + 5,
        ),
        Message(
            value=b"twice",
            headers=(("again", b"1"), ("again", b"2")),
            timestamp_ms=AN_HOUR_AGO_MS + 6,
        ),
    ]
    admin.produce(topic, messages)
    for reader in judges:
        received = reader.consume(topic, len(messages))
        if reader.name == "kcat":  # its JSON shows an empty key as null
            received[3] = received[3]._replace(key=b"")
        assert same(messages, received), reader.name


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_message_of_eight_megabytes_travels_between_all_clients(
    judge: Judge, judges: list[Judge], topic_for_large_messages: str, codec: str
) -> None:
    topic = topic_for_large_messages
    messages = [
        Message(value=bytes(range(97, 123)) * 322_638, key=b"large"),
        Message(value=b"small", key=b"large"),
    ]
    judge.produce(topic, messages, codec=codec)
    for reader in judges:
        assert same(messages, reader.consume(topic, 2), timestamps=False), reader.name
