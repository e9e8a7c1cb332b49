"""C6, load: servers announce it, and send new clients to where there are at least two fewer."""

import json

import pytest

import sapwood
from sapwood.client import KafkaClient
from sapwood.gateway.lines.load import TOPIC
from tests.gateway.rest import Gateway
from tests.gateway.talk import OK, TcpTalk
from tests.helpers import eventually


def redirected(gateway: Gateway) -> str | None:
    """Where a client that connects now is sent."""
    with TcpTalk(gateway.ready["lines"]) as talk:
        talk.write("[HELP] {}")
        while (line := talk.read()) != OK:
            if line.startswith("[REDIRECT] "):
                place = json.loads(line.removeprefix("[REDIRECT] "))
                return f"{place['host']}:{place['port']}"
    return None


def test_c6_a_server_with_two_clients_more_than_another_sends_new_ones_there() -> None:
    with sapwood.Cluster() as cluster, Gateway(cluster.bootstrap) as busy:
        with Gateway(cluster.bootstrap) as idle:
            assert redirected(busy) is None, "both have none"
            clients = [TcpTalk(busy.ready["lines"]) for _ in range(3)]
            eventually(lambda: redirected(busy) == idle.ready["lines"])
            assert redirected(idle) is None
            for client in clients:
                assert client.say("USER", name="stays") == OK, "who doesn't follow is served here"
        eventually(lambda: redirected(busy) is None)  # nobody is sent to one that has gone
        for client in clients:
            client.close()


@pytest.mark.parametrize("advertised", [None, "localhost:7000"])
def test_c6_others_send_clients_to_where_a_gateway_is_advertised_not_to_where_it_listens(
    advertised: str | None,
) -> None:
    more = ["--lines", "0.0.0.0:0"]
    if advertised is not None:
        more += ["--advertise-lines", advertised]
    with (
        sapwood.Cluster() as cluster,
        Gateway(cluster.bootstrap, node_id=0, more=more) as gateway,
        TcpTalk(gateway.ready["lines"]),
        KafkaClient(cluster.bootstrap) as client,
    ):
        eventually(lambda: not client.metadata([TOPIC]).topics[TOPIC].error_code)

        def announced() -> list[str]:
            found = client.consume({(TOPIC, 0): 0}, stop_at="end")
            loads = [json.loads(it.value or b"{}") for it in found]
            return [f"{it['host']}:{it['port']}" for it in loads if it["node"] == 0]

        port = gateway.ready["lines"].rpartition(":")[2]
        assert set(eventually(announced)) == {advertised or f"127.0.0.1:{port}"}
