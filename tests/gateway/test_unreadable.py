"""A batch that nobody can unpack is stored as it was sent: readers hear of it, and go on."""

import struct
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from crc32c import crc32c

from sapwood.wire.records import encode_batch
from tests.faults.raw import Wire, produce
from tests.gateway.rest import Gateway, ok, problem
from tests.gateway.talk import OK, TcpTalk, WebSocketTalk, error_in
from tests.helpers import MIB, port_of, unique

ZSTD = 4


def garbage() -> bytes:
    """It says that it is compressed, and isn't."""
    batch = bytearray(encode_batch([(0, None, b"value", ())] * 3))
    struct.pack_into(">h", batch, 21, ZSTD)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def swelling() -> bytes:
    return bytes(encode_batch([(0, None, bytes(130 * MIB), ())], compression=ZSTD))


@cache
def made(make: Callable[[], bytes]) -> bytes:
    return make()


@pytest.fixture(params=[garbage, swelling])
def bad(request: pytest.FixtureRequest) -> bytes:
    return made(request.param)


@pytest.fixture
def topic(gateway: Gateway) -> str:
    name = unique("unreadable")
    ok(gateway.post("/topics", topic=name, partitions=1), 201)
    return name


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(port_of(bootstrap)) as wire:
        yield wire


def test_who_listens_is_told_of_it_and_hears_what_comes_behind(
    gateway: Gateway, wire: Wire, topic: str, bad: bytes
) -> None:
    other = unique("unreadable")
    with TcpTalk(gateway.ready["lines"]) as talk, WebSocketTalk(gateway.ready["rest"]) as web:
        for each in (talk, web):
            assert each.say("SUBSCRIBE", topic=topic) == OK
            assert each.say("SUBSCRIBE", topic=other) == OK
        assert produce(wire, topic, bad) == 0
        for each in (talk, web):
            assert error_in(each.answer()) == "MESSAGES_LOST"
        gateway.produce(topic, "behind")
        for each in (talk, web):
            assert each.message()["message"] == "behind"
        assert talk.say("SEND", topic=other, message="elsewhere") == OK
        assert talk.message()["message"] == web.message()["message"] == "elsewhere"


def test_a_durable_subscription_is_told_of_it_and_goes_on(
    gateway: Gateway, wire: Wire, topic: str, bad: bytes
) -> None:
    with TcpTalk(gateway.ready["lines"]) as talk:
        assert talk.say("USER", name="ann") == OK
        assert talk.say("SUBSCRIBE", topic=topic, durable=True) == OK
        assert produce(wire, topic, bad) == 0
        assert error_in(talk.answer()) == "MESSAGES_LOST"
        gateway.produce(topic, "behind")
        assert talk.message()["message"] == "behind"


def test_a_consumer_is_told_of_it_once_and_goes_on_behind_it(
    gateway: Gateway, wire: Wire, topic: str, bad: bytes
) -> None:
    ok(gateway.post("/consumers", topic=topic, consumer="ann"), 201)
    gateway.produce(topic, "before")
    assert produce(wire, topic, bad) == 0
    gateway.produce(topic, "behind")
    where = {"topic": topic, "consumer": "ann"}
    assert ok(gateway.get("/consumer/consume", **where))["message"] == "before"
    assert "can't be unpacked" in problem(gateway.get("/consumer/consume", **where), 410)
    assert ok(gateway.get("/consumer/consume", **where))["message"] == "behind"
    assert gateway.get("/consumer/consume", **where).status_code == 204


def test_who_looks_into_the_log_is_told_where_it_goes_on(
    gateway: Gateway, wire: Wire, topic: str, bad: bytes
) -> None:
    gateway.produce(topic, "before")
    assert produce(wire, topic, bad) == 0
    (behind,) = gateway.produce(topic, "behind")
    look = {"topic": topic, "partition": 0}
    first = ok(gateway.get("/logs", offset=0, **look))
    assert [it["message"] for it in first["messages"]] == ["before"]
    goes_on = f"go on at offset {behind['offset']}"
    assert goes_on in problem(gateway.get("/logs", offset=1, **look), 410)
    last = ok(gateway.get("/logs", offset=behind["offset"], **look))
    assert [it["message"] for it in last["messages"]] == ["behind"]
