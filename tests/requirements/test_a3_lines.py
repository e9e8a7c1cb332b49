"""A3: every line is a command and is answered; durable messages come until acknowledged."""

from collections.abc import Iterator

import pytest

from tests.gateway.rest import Gateway
from tests.gateway.talk import OK, Talk, TcpTalk, WebSocketTalk, error_in
from tests.helpers import unique


@pytest.fixture(scope="module")
def gateway(bootstrap: str) -> Iterator[Gateway]:
    with Gateway(bootstrap, node_id=0) as gateway:
        yield gateway


@pytest.fixture(params=["tcp", "websocket"])
def talk(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[Talk]:
    with opened(gateway, request.param) as talk:
        yield talk


def opened(gateway: Gateway, way: str) -> Talk:
    if way == "tcp":
        return TcpTalk(gateway.ready["lines"])
    return WebSocketTalk(gateway.ready["rest"])


def test_a3_what_is_sent_comes_to_who_has_subscribed(talk: Talk) -> None:
    topic = unique("a3")
    assert talk.say("USER", name="ann") == OK
    assert talk.say("SUBSCRIBE", topic=topic) == OK
    for text in ("rain", "two\nlines", "ünïcödé", ""):
        assert talk.say("SEND", topic=topic, message=text) == OK
        found = talk.message()
        assert (found["topic"], found["user"], found["message"]) == (topic, "ann", text)
        assert found["id"]
        assert found["timestamp"] > 0
    assert talk.say("UNSUBSCRIBE", topic=topic) == OK
    assert talk.say("SEND", topic=topic, message="unheard") == OK
    assert talk.say("SUBSCRIBE", topic=topic) == OK
    assert talk.say("SEND", topic=topic, message="heard") == OK
    assert talk.message()["message"] == "heard", "from now on, not from before"


def test_a3_help_names_every_command_and_quit_ends(talk: Talk) -> None:
    talk.write("[HELP] {}")
    lines = []
    while (line := talk.read()) != OK:
        lines.append(line)
    for command in ("USER", "SUBSCRIBE", "UNSUBSCRIBE", "SEND", "ACK", "HELP", "QUIT"):
        assert any(command in line for line in lines)
    assert talk.say("QUIT") == OK


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "[SEND",
        "[send] {}",
        "[NO_SUCH] {}",
        "[SEND] {",
        '[SEND] {"topic": "t"}',
        '[SEND] {"topic": "t", "message": 1}',
        '[SEND] {"topic": "no name", "message": "m"}',
        '[SUBSCRIBE] {"topic": "t", "durable": "yes"}',
        '[USER] {"name": ""}',
        '[PORT] {"port": 9092}',
        "[HELP] []",
        "\0\1\2",
    ],
)
def test_a3_what_is_no_command_is_an_invalid_message_and_costs_nobody_anything(
    line: str, talk: Talk
) -> None:
    assert error_in(talk.say_line(line)) == "INVALID_MESSAGE"
    assert talk.say("USER", name="ann") == OK


def test_a3_a_line_that_is_too_long_costs_its_sender_that_line(gateway: Gateway) -> None:
    with opened(gateway, "tcp") as talk:
        assert error_in(talk.say_line("[SEND] " + "x" * 3_000_000)) == "TOO_LARGE"
        assert talk.say("USER", name="ann") == OK


def test_a3_commands_that_make_no_sense_now_are_refused(talk: Talk) -> None:
    topic = unique("a3")
    assert talk.error("UNSUBSCRIBE", topic=topic) == "NOT_SUBSCRIBED"
    assert talk.error("ACK", id="nothing") == "UNKNOWN_MESSAGE"
    assert talk.error("SUBSCRIBE", topic=topic, durable=True) == "NO_NAME"
    assert talk.say("SUBSCRIBE", topic=topic) == OK
    assert talk.error("SUBSCRIBE", topic=topic) == "SUBSCRIBED"


def test_a3_what_a_durable_subscriber_missed_comes_until_it_is_acknowledged(
    gateway: Gateway,
) -> None:
    topic, name = unique("a3"), unique("bob")
    with opened(gateway, "tcp") as talk:
        assert talk.say("USER", name=name) == OK
        assert talk.say("SUBSCRIBE", topic=topic, durable=True) == OK
    with opened(gateway, "websocket") as other:
        for text in "abc":
            assert other.say("SEND", topic=topic, message=text, id=f"{topic}-{text}") == OK
    for way, acknowledged in (("tcp", "a"), ("websocket", "b"), ("tcp", "c")):
        with opened(gateway, way) as talk:
            assert talk.say("USER", name=name) == OK
            assert talk.say("SUBSCRIBE", topic=topic, durable=True) == OK
            expected = [it for it in "abc" if it >= acknowledged]
            assert [talk.message()["message"] for _ in expected] == expected
            assert talk.say("ACK", id=f"{topic}-{acknowledged}") == OK
            assert talk.error("ACK", id=f"{topic}-{acknowledged}") == "UNKNOWN_MESSAGE"
    pending = gateway.get("/pending", topic=topic).json()["pending"]
    assert [it["pending"] for it in pending if it["subscriber"] == name] == [0]


def test_a3_a_message_with_an_id_is_sent_once_however_often(talk: Talk) -> None:
    topic = unique("a3")
    assert talk.say("SUBSCRIBE", topic=topic) == OK
    for _ in range(3):
        assert talk.say("SEND", topic=topic, message="once", id="once") == OK
    assert talk.say("SEND", topic=topic, message="last") == OK
    assert [talk.message()["message"] for _ in range(2)] == ["once", "last"]


@pytest.mark.parametrize("way", ["tcp", "websocket"])
def test_a3_who_does_not_read_is_let_go_and_the_others_hear_everything(
    gateway: Gateway, way: str
) -> None:
    topic = unique("a3-slow")
    deaf = opened(gateway, way)
    with opened(gateway, "tcp") as talk, opened(gateway, "tcp") as sender:
        assert deaf.say("SUBSCRIBE", topic=topic) == OK
        assert talk.say("SUBSCRIBE", topic=topic) == OK
        text = "x" * 500_000
        for number in range(40):
            assert sender.say("SEND", topic=topic, message=f"{number} {text}") == OK
            assert talk.message()["message"].startswith(f"{number} ")
        said = []
        while line := deaf.read():
            said.append(line)
        assert error_in(said[-1]) == "TOO_SLOW"
        assert len(said) < 40
    deaf.close()
