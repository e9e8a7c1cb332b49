"""Messages on their way out and in."""

import pytest

from sapwood.client.fetcher import ConsumedRecord
from sapwood.client.messages import Outgoing, message_key, outgoing, received


def sent(message: Outgoing) -> ConsumedRecord:
    headers = tuple(message.headers)
    return ConsumedRecord("orders", 2, 7, 1000, message.key, message.value, headers, 0)


def test_a_message_arrives_with_its_id_its_sender_and_its_headers() -> None:
    message = outgoing("orders", "ä", None, {"a": "1"}, None, sender="shop", fresh_id="x-1")
    assert message.message_key is None
    got = received(sent(message))
    assert (got.id, got.sender, got.key, got.text) == ("x-1", "shop", b"shop", "ä")
    assert got.headers == (("a", b"1"),)
    assert (got.topic, got.partition, got.offset, got.timestamp) == ("orders", 2, 7, 1000)


def test_a_record_of_another_client_is_known_by_its_place() -> None:
    got = received(ConsumedRecord("orders", 2, 7, 1000, None, None, (("a", None),), 0))
    assert (got.id, got.sender, got.value, got.headers) == (
        "orders-2-7",
        None,
        None,
        (("a", None),),
    )


def test_an_id_always_has_the_same_numbers_in_one_topic_and_others_elsewhere() -> None:
    first = outgoing("orders", b"", b"k", None, "17", sender="a", fresh_id="x").message_key
    again = outgoing("orders", b"", b"k", None, "17", sender="b", fresh_id="y").message_key
    assert first == again == message_key("orders", "17")
    assert len({message_key(topic, str(n)) for topic in "ab" for n in range(1000)}) == 2000
    for number in range(1000):
        identity, sequence = message_key("orders", str(number))
        assert 2**62 <= identity.producer_id < 2**63
        assert identity.epoch == 0
        assert 0 <= sequence < 2**31


def test_an_empty_id_is_refused_and_so_is_an_ack_that_nobody_waits_for() -> None:
    with pytest.raises(ValueError, match="empty"):
        outgoing("orders", b"", None, None, "", sender="a", fresh_id="x")
    message = received(sent(outgoing("orders", b"", None, None, None, sender="a", fresh_id="x")))
    with pytest.raises(RuntimeError, match="manual"):
        message.ack()
