"""A1: what is said of the tree and isn't true is answered clearly, and harms nobody."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import sapwood
from sapwood.client import KafkaClient
from tests.gateway.rest import Gateway, ok, problem
from tests.helpers import eventually


class Supervisor:
    def __init__(self, cluster: sapwood.Cluster, gateway: Gateway) -> None:
        self.cluster = cluster
        self._gateway = gateway
        secret = cluster.layout.secret_file.read_text().strip()
        self._headers = {"authorization": f"Bearer {secret}"}

    def tell(self, path: str, **body: Any) -> httpx.Response:
        return self._gateway.http.post(path, json=body, headers=self._headers)

    def edges(self) -> list[dict[str, Any]]:
        (core,) = ok(self._gateway.get("/jtree"))["children"]
        found: list[dict[str, Any]] = core["children"]
        return found


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    with (
        sapwood.Cluster(edges=1, topics={"news": 1}) as cluster,
        Gateway(cluster.bootstrap, node_id=0) as gateway,
    ):
        found = Supervisor(cluster, gateway)
        eventually(found.edges)  # it hangs there before the supervisor has heard of that
        yield found


@pytest.mark.parametrize("wish", ["127.0.0.1:1", "77", "12345", "nobody", "127.0.0.1:11200"])
def test_a1_a_father_that_is_not_there_can_not_be_wished_for(
    wish: str, supervisor: Supervisor
) -> None:
    body = {"host": "127.0.0.1", "port": 11_200, "wish": wish}
    assert wish in problem(supervisor.tell("/node/register", **body), 404)
    assert len(supervisor.edges()) == 1


def test_a1_a_stranger_is_not_confirmed_and_neither_is_anothers_child(
    supervisor: Supervisor,
) -> None:
    tell = supervisor.tell
    (edge,) = supervisor.edges()
    assert "11201" in problem(tell("/node/confirm", father="0", child="127.0.0.1:11201"), 404)
    ok(tell("/node/register", host="127.0.0.1", port=11_202, wish="0"), 201)
    says = problem(tell("/node/confirm", father=str(edge["id"]), child="127.0.0.1:11202"), 400)
    assert "isn't the father" in says
    assert "core node" in problem(tell("/node/confirm", father=str(edge["id"]), child="0"), 400)
    assert [it["id"] for it in supervisor.edges()] == [edge["id"]]


def test_a1_who_is_no_neighbour_can_not_report_anybody(supervisor: Supervisor) -> None:
    (edge,) = supervisor.edges()
    node = str(edge["id"])
    says = problem(supervisor.tell("/node/down", reporter=node, node=node), 400)
    assert "neither father nor child" in says
    assert "77" in problem(supervisor.tell("/node/down", reporter="77", node=node), 404)
    assert [it["id"] for it in supervisor.edges()] == [edge["id"]]


def test_a1_a_living_node_that_is_reported_down_stays_and_its_clients_notice_nothing(
    supervisor: Supervisor,
) -> None:
    cluster = supervisor.cluster
    (edge,) = supervisor.edges()
    got: list[bytes | None] = []
    sent = [b"%d" % number for number in range(60)]

    def read() -> None:
        with KafkaClient(cluster.edge_address()) as client:
            found = client.consume({("news", 0): 0}, stop_at={("news", 0): len(sent)})
            got.extend(record.value for record in found)

    reader = threading.Thread(target=read)
    reader.start()
    with KafkaClient(cluster.bootstrap) as publisher:
        for number, value in enumerate(sent):
            if number % 20 == 10:
                ok(supervisor.tell("/node/down", reporter="0", node=str(edge["id"])))
                eventually(lambda: [it["id"] for it in supervisor.edges()] == [edge["id"]])
            publisher.send("news", value)
            publisher.flush()
    reader.join(60)
    assert got == sent
