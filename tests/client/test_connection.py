"""One connection's rules, bytes in and answers out."""

import pytest

from sapwood.client.config import ClientConfig
from sapwood.client.connection import Connection, Exchange
from sapwood.client.effects import Effects, Send
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct, encode_response
from sapwood.wire.errors import ErrorCode, KafkaError, MalformedMessage
from sapwood.wire.frames import RequestHeader, decode_request_header, encode_response_frame

Answer = Struct | KafkaError


def api_versions(error_code: int, *ranges: tuple[int, int, int]) -> Struct:
    return Struct(
        error_code=error_code,
        api_keys=[Struct(api_key=k, min_version=low, max_version=high) for k, low, high in ranges],
        throttle_time=0,
    )


class Wire:
    """A connection, and the other end of it."""

    def __init__(self) -> None:
        self.effects = Effects()
        config = ClientConfig(bootstrap=[("broker", 1)])
        self.connection = Connection(7, "broker", 1, 0, None, config, self.effects, 1000.0)

    def sent(self) -> list[RequestHeader]:
        headers = []
        for effect in self.effects.take():
            assert isinstance(effect, Send)
            frame = b"".join(bytes(part) for part in effect.buffers)
            headers.append(decode_request_header(memoryview(frame)[4:])[0])
        return headers

    def deliver(self, data: bytes) -> None:
        while data:
            room = self.connection.get_buffer(len(data))
            taken, data = data[: len(room)], data[len(room) :]
            room[: len(taken)] = taken
            self.connection.received(len(taken), 5.0)

    def answer(self, header: RequestHeader, message: Struct, version: int | None = None) -> None:
        version = header.api_version if version is None else version
        frame = encode_response_frame(header.api_key, version, header.correlation_id, message)
        self.deliver(b"".join(bytes(part) for part in frame))

    def open(self, *ranges: tuple[int, int, int]) -> None:
        self.connection.opened(0.0)
        (hello,) = self.sent()
        self.answer(hello, api_versions(0, *ranges))

    def ask(self, answers: list[Answer], api: Api = Api.LIST_GROUPS) -> None:
        exchange = Exchange(api, Struct(), lambda answer, _: answers.append(answer), 100.0)
        self.connection.submit(exchange, 10.0)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def groups(wire: Wire) -> Struct:
    return Struct(throttle_time=0, error_code=0, groups=[])


def test_the_first_request_asks_which_versions_the_broker_knows(wire: Wire) -> None:
    wire.connection.opened(0.0)
    (hello,) = wire.sent()
    assert hello.api_key == Api.API_VERSIONS
    assert wire.connection.state.name == "NEGOTIATING"
    wire.answer(hello, api_versions(0, (Api.LIST_GROUPS, 0, 2)))
    assert wire.connection.state.name == "READY"
    wire.ask([])
    assert wire.sent()[0].api_version == 2


def test_a_broker_that_is_too_old_for_the_question_is_asked_in_its_own_version(wire: Wire) -> None:
    wire.connection.opened(0.0)
    (hello,) = wire.sent()
    wire.answer(hello, api_versions(35, (Api.API_VERSIONS, 0, 1)), version=0)
    (again,) = wire.sent()
    assert (again.api_key, again.api_version) == (Api.API_VERSIONS, 1)
    wire.answer(again, api_versions(0, (Api.LIST_GROUPS, 0, 2)))
    assert wire.connection.state.name == "READY"


def test_a_broker_that_refuses_every_version_is_given_up(wire: Wire) -> None:
    wire.connection.opened(0.0)
    (hello,) = wire.sent()
    wire.answer(hello, api_versions(35), version=0)
    (again,) = wire.sent()
    assert again.api_version == 0
    with pytest.raises(KafkaError, match="won't negotiate"):
        wire.answer(again, api_versions(35))


def test_an_api_without_a_common_version_is_refused_before_anything_is_sent(wire: Wire) -> None:
    wire.open((Api.LIST_GROUPS, 900, 901))
    with pytest.raises(KafkaError, match="LIST_GROUPS"):
        wire.ask([])
    with pytest.raises(KafkaError, match="METADATA"):
        wire.ask([], Api.METADATA)
    assert wire.sent() == []


def test_answers_reach_their_askers_in_order_however_the_bytes_are_cut(wire: Wire) -> None:
    wire.open((Api.LIST_GROUPS, 0, 2))
    first: list[Answer] = []
    second: list[Answer] = []
    wire.ask(first)
    wire.ask(second)
    frames = b""
    for header, code in zip(wire.sent(), (0, 15), strict=True):
        message = Struct(throttle_time=0, error_code=code, groups=[])
        parts = encode_response_frame(header.api_key, 2, header.correlation_id, message)
        frames += b"".join(bytes(part) for part in parts)
    for position in range(len(frames)):
        assert len(second) == 0
        wire.deliver(frames[position : position + 1])
    assert [a.error_code for a in (*first, *second) if isinstance(a, Struct)] == [0, 15]


def test_an_answer_with_another_correlation_id_ends_the_connection(wire: Wire) -> None:
    wire.open((Api.LIST_GROUPS, 0, 2))
    wire.ask([])
    (header,) = wire.sent()
    wrong = header._replace(correlation_id=header.correlation_id + 1)
    with pytest.raises(MalformedMessage, match="instead of"):
        wire.answer(wrong, groups(wire))


def test_an_answer_that_nobody_asked_for_ends_the_connection(wire: Wire) -> None:
    wire.open((Api.LIST_GROUPS, 0, 2))
    with pytest.raises(MalformedMessage, match="nobody asked"):
        wire.answer(RequestHeader(Api.LIST_GROUPS, 2, 1, None), groups(wire))


def test_garbage_and_huge_frames_end_the_connection(wire: Wire) -> None:
    wire.open((Api.LIST_GROUPS, 0, 2))
    wire.ask([])
    with pytest.raises(MalformedMessage):
        wire.deliver(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_lost_connection_tells_everybody_who_waits(wire: Wire) -> None:
    wire.open((Api.LIST_GROUPS, 0, 2))
    answers: list[Answer] = []
    wire.ask(answers)
    wire.ask(answers)
    reason = KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")
    wire.connection.lost(reason, 20.0)
    assert answers == [reason, reason]
    assert wire.connection.state.name == "LOST"


def test_the_deadline_is_that_of_the_first_request_to_run_out(wire: Wire) -> None:
    first_ms = wire.connection.deadline_ms
    wire.open((Api.LIST_GROUPS, 0, 2))
    idle_ms = wire.connection.deadline_ms
    wire.ask([])
    assert (first_ms, idle_ms, wire.connection.deadline_ms) == (1000.0, None, 110.0)


def test_an_error_in_the_oldest_form_is_understood_whatever_was_asked(wire: Wire) -> None:
    wire.connection.opened(0.0)
    (hello,) = wire.sent()
    body = b"".join(map(bytes, encode_response(Api.API_VERSIONS, 0, api_versions(35))))
    frame = hello.correlation_id.to_bytes(4, "big") + body
    wire.deliver(len(frame).to_bytes(4, "big") + frame)
    assert [header.api_version for header in wire.sent()] == [0]
