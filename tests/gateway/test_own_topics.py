"""The cluster's own topics: who may write to them, and what gateways make of what stands there."""

import json
import socket

import pytest

import sapwood
from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.gateway.lines.load import TOPIC as LOAD_TOPIC
from sapwood.gateway.tree import EVENTS_TOPIC, change_in
from tests.gateway.rest import Gateway, problem
from tests.gateway.talk import TcpTalk
from tests.helpers import eventually
from tests.requirements.test_c6_redirect import redirected

REFUSED = "INVALID_TOPIC_EXCEPTION"


@pytest.mark.parametrize("topic", [EVENTS_TOPIC, LOAD_TOPIC, "__sapwood_whatever"])
def test_clients_of_a_gateway_may_not_write_to_them(gateway: Gateway, topic: str) -> None:
    assert topic in problem(gateway.post("/producer/produce", topic=topic, message="x"), 400)
    problem(gateway.post("/logs", topic=topic, partition=0, message="x"), 400)
    with TcpTalk(gateway.ready["lines"]) as talk:
        assert talk.error("SEND", topic=topic, message="x") == REFUSED


def test_what_happens_to_the_tree_is_told_by_the_controller_alone(gateway: Gateway) -> None:
    with TcpTalk(gateway.ready["lines"]), KafkaClient(gateway.bootstrap) as client:
        eventually(lambda: not client.metadata([EVENTS_TOPIC]).topics[EVENTS_TOPIC].error_code)
        sent = client.send(EVENTS_TOPIC, b'{"event": "erased", "node": 0}')
        client.flush()
        with pytest.raises(KafkaError) as caught:
            sent.result()
        assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[1]", b'{"a": 1', b'{"a": "\\ud800"}'])
def test_what_is_no_change_of_the_tree_is_passed_over(value: bytes | None) -> None:
    assert change_in(value) is None


def test_a_change_of_the_tree_is_one_line() -> None:
    assert (
        change_in(b'{"event":\n\n"erased\\n",\r\n"node": 1}') == b'{"event":"erased\\n","node":1}'
    )


def test_nobody_is_sent_to_who_claims_to_have_few_clients_and_is_no_node_of_the_cluster() -> None:
    with (
        sapwood.Cluster() as cluster,
        Gateway(cluster.bootstrap) as busy,
        Gateway(cluster.bootstrap) as idle,
        KafkaClient(cluster.bootstrap) as client,
        socket.create_server(("127.0.0.1", 0)) as here,
        socket.create_server(("127.0.0.2", 0)) as elsewhere,
    ):
        clients = [TcpTalk(busy.ready["lines"]) for _ in range(3)]
        eventually(lambda: redirected(busy) == idle.ready["lines"])

        def say(where: tuple[str, int], clients: int) -> None:
            load = {"node": None, "host": where[0], "port": where[1], "clients": clients}
            client.send(LOAD_TOPIC, json.dumps(load).encode())

        client.send(LOAD_TOPIC, b"\xff")
        say(here.getsockname(), -1000)
        say(elsewhere.getsockname(), 0)
        host, _, port = idle.ready["lines"].rpartition(":")
        seen = set()

        def all_is_heard() -> bool:
            say((host, int(port)), 50)  # each time: it may have spoken for itself in between
            client.flush()
            seen.add(redirected(busy))
            return None in seen

        eventually(all_is_heard)
        assert seen <= {None, idle.ready["lines"]}
        for each in clients:
            each.close()
