"""The gateway as an HTTP server: what is malformed, too large, too slow or from elsewhere."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.gateway.rest import Gateway, ok, problem
from tests.gateway.talk import OK, TcpTalk
from tests.helpers import eventually, unique


def test_a_body_that_is_not_json_is_refused(gateway: Gateway) -> None:
    headers = {"content-type": "application/json"}
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"topic": "' + b"[" * 100_000):
        problem(gateway.http.post("/topics", content=body, headers=headers), 400)


def test_what_pages_may_post_without_asking_is_no_json(gateway: Gateway) -> None:
    body = json.dumps({"topic": "t"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = gateway.http.post("/topics", content=body, headers={"content-type": kind})
        assert "application/json" in problem(response, 415)


def test_pages_of_others_change_nothing(gateway: Gateway) -> None:
    headers = {"origin": "http://elsewhere.example"}
    response = gateway.http.post("/topics", json={"topic": "t"}, headers=headers)
    assert "elsewhere" in problem(response, 403)
    own = {"origin": gateway.url}
    assert gateway.http.post("/consumer/ack", json={}, headers=own).status_code == 400


def test_a_broker_is_started_from_its_own_host_only(gateway: Gateway) -> None:
    response = gateway.http.post("/brokers", headers={"host": "broker.example"})
    assert "own host" in problem(response, 403)


def test_a_body_that_is_too_large_is_refused_and_harms_nobody(gateway: Gateway) -> None:
    def endless() -> Any:
        for _ in range(100):
            yield b" " * 100_000

    headers = {"content-type": "application/json"}
    response = gateway.http.post("/producer/produce", content=endless(), headers=headers)
    assert "at most" in problem(response, 413)
    ok(gateway.get("/livez"))


def test_a_message_that_the_topic_does_not_take_is_too_large(gateway: Gateway) -> None:
    configs = {"max.message.bytes": "1000"}
    ok(gateway.post("/topics", topic="small-ones", partitions=1, configs=configs), 201)
    response = gateway.post("/producer/produce", topic="small-ones", message="x" * 2000)
    assert "max.message.bytes" in problem(response, 413)


def test_a_head_that_is_too_large_is_refused(gateway: Gateway) -> None:
    response = gateway.http.get("/livez", headers={"x-large": "x" * 100_000})
    assert "at most" in problem(response, 431)


@pytest.mark.parametrize(
    "query",
    ["topic=a&topic=b", "topic=", "topic=no%20name", "topic=a&partition=-1", "topic=a&partition=x"],
)
def test_a_query_that_is_wrong_is_refused(query: str, gateway: Gateway) -> None:
    problem(gateway.http.get(f"/size?{query}"), 400)


def test_a_path_that_is_not_there_is_not_found(gateway: Gateway) -> None:
    for path in ("/nowhere", "/topics/", "/topics/orders", "/%00"):
        assert "/openapi.json" in problem(gateway.http.get(path), 404)


def test_head_is_answered_as_get_without_its_body(gateway: Gateway) -> None:
    response = gateway.http.head("/livez")
    assert (response.status_code, response.content) == (200, b"")


def test_head_takes_no_message(gateway: Gateway, topic: str) -> None:
    ok(gateway.post("/consumers", topic=topic, consumer="ann"), 201)
    gateway.produce(topic, "the only one")
    where = {"topic": topic, "consumer": "ann"}
    response = gateway.http.head("/consumer/consume", params=where)
    assert (response.status_code, response.headers["allow"]) == (405, "GET")
    assert ok(gateway.get("/consumer/consume", **where))["message"] == "the only one"


def test_who_connects_and_asks_nothing_is_let_go(gateway: Gateway) -> None:
    openings = {
        "nothing": b"",
        "half a head": b"GET /livez HTTP/1.1\r\nHost:",
        "half a body": b"POST /topics HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{",
    }
    lines = {}
    for name, opening in openings.items():
        lines[name] = socket.create_connection(gateway.address, 10)
        lines[name].sendall(opening)
        lines[name].setblocking(False)

    def answer_of(name: str) -> bytes | None:
        try:
            return lines[name].recv(65536)
        except BlockingIOError:
            return None

    answers: dict[str, bytes] = {}

    def all_answered() -> bool:
        for name in openings.keys() - answers.keys():
            if (answer := answer_of(name)) is not None:
                answers[name] = answer
        return len(answers) == len(openings)

    eventually(all_answered, 25)
    assert answers["nothing"] == b""
    assert answers["half a head"] == b""
    assert answers["half a body"].startswith(b"HTTP/1.1 408")
    for line in lines.values():
        line.close()


def test_a_gateway_in_front_of_nothing_says_so_and_stays(gateway: Gateway) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        port = nobody.getsockname()[1]
        with Gateway(f"127.0.0.1:{port}") as lonely:
            with ThreadPoolExecutor() as together:
                paths = ("/readyz", "/topics", "/metrics")
                ready, topics, metrics = together.map(lonely.get, paths)
            assert str(port) in problem(ready, 503)
            assert str(port) in problem(topics, 503)
            assert "sapwood_up 0.0" in metrics.text
            ok(lonely.get("/livez"))


def test_metrics_have_the_names_that_exporters_for_kafka_use(gateway: Gateway, topic: str) -> None:
    gateway.produce(topic, "a", "b", partition=1)
    text = gateway.get("/metrics").text
    for line in (
        "sapwood_up 1.0",
        "kafka_brokers 1.0",
        f'kafka_topic_partitions{{topic="{topic}"}} 3.0',
        f'kafka_topic_partition_current_offset{{partition="1",topic="{topic}"}} 2.0',
        f'kafka_topic_partition_leader{{partition="1",topic="{topic}"}} 0.0',
        "kafka_server_replicamanager_offlinereplicacount 0.0",
    ):
        assert line in text.splitlines(), line
    assert 'sapwood_gateway_requests_total{method="POST",path="/topics",status="201"}' in text


def test_a_gateway_that_is_told_to_stop_answers_what_was_asked_before(bootstrap: str) -> None:
    with Gateway(bootstrap) as gateway:
        ok(gateway.get("/livez"))
    assert gateway.process.returncode == 0


def test_a_gateway_that_stops_while_its_clients_say_goodbye_is_silent(bootstrap: str) -> None:
    with Gateway(bootstrap, node_id=0) as gateway:
        talks = [TcpTalk(gateway.ready["lines"]) for _ in range(20)]
        for number, talk in enumerate(talks):
            talk.say("USER", name=unique(f"leaver-{number}"))
            assert talk.say("SUBSCRIBE", topic=unique("goodbye"), durable=True) == OK
        for talk in talks:
            talk.close()
