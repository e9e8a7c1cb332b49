"""A1: the supervisor, over REST at every node. A2: it sees by itself who dies, and tells of it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import sapwood
from tests.gateway.rest import Gateway, ok, problem
from tests.gateway.talk import TcpTalk
from tests.helpers import eventually


class Supervisors:
    """A cluster with a gateway beside each node."""

    def __init__(self, cluster: sapwood.Cluster) -> None:
        self.cluster = cluster
        self.gateways = [Gateway(cluster.bootstrap, node_id=it) for it in cluster.nodes]
        secret = cluster.layout.secret_file.read_text().strip()
        self.headers = {"authorization": f"Bearer {secret}"}

    def tell(self, index: int, path: str, **body: Any) -> httpx.Response:
        return self.gateways[index].http.post(path, json=body, headers=self.headers)

    def tree(self, index: int) -> dict[str, Any]:
        return ok(self.gateways[index].get("/jtree"))

    def edges(self, index: int) -> set[str]:
        """Of those that are part of the tree, wherever they hang."""

        def below(nodes: list[dict[str, Any]]) -> Iterator[str]:
            for each in nodes:
                if each["kind"] == "edge":
                    yield f"{each['host']}:{each['port']}"
                yield from below(each["children"])

        return set(below(self.tree(index)["children"]))


@pytest.fixture(scope="module")
def supervisors() -> Iterator[Supervisors]:
    with sapwood.Cluster(nodes=3) as cluster:
        found = Supervisors(cluster)
        yield found
        for gateway in found.gateways:
            assert "Traceback" not in gateway.stop()


def test_a1_a_node_registers_at_one_node_and_is_confirmed_at_another(
    supervisors: Supervisors,
) -> None:
    tell = supervisors.tell
    registered = ok(tell(0, "/node/register", host="127.0.0.1", port=11_001, wish="1"), 201)
    assert registered["state"] == "PENDING"
    assert registered["father"] == supervisors.cluster.address(1)
    assert "127.0.0.1:11001" not in supervisors.edges(2), "it isn't confirmed yet"
    eventually(lambda: "11001" in str(supervisors.tree(2)["pending"]))

    ok(tell(1, "/node/confirm", father=registered["father"], child="127.0.0.1:11001"))
    for index in range(3):
        eventually(lambda at=index: "127.0.0.1:11001" in supervisors.edges(at))  # type: ignore[misc]
        drawing = supervisors.gateways[index].get("/tree")
        assert drawing.headers["content-type"].startswith("text/plain")
        assert "edge" in drawing.text
        assert "127.0.0.1:11001" in drawing.text

    below = ok(
        tell(2, "/node/register", host="127.0.0.1", port=11_002, wish="127.0.0.1:11001"), 201
    )
    assert below["father"] == "127.0.0.1:11001", "a confirmed one is offered to those who join"
    ok(tell(0, "/node/down", reporter="1", node="127.0.0.1:11001"))
    eventually(lambda: "127.0.0.1:11001" not in supervisors.edges(0))


def test_a1_only_who_has_the_secret_changes_the_tree(supervisors: Supervisors) -> None:
    gateway = supervisors.gateways[0]
    body = {"host": "127.0.0.1", "port": 11_003}
    nobody = gateway.http.post("/node/register", json=body)
    assert "secret" in problem(nobody, 401)
    assert nobody.headers["www-authenticate"] == "Bearer"
    wrong = {"authorization": f"Bearer {'00' * 32}"}
    assert "secret" in problem(gateway.http.post("/node/register", json=body, headers=wrong), 403)
    assert "11003" not in str(supervisors.tree(0))


def test_a1_clients_are_spread_over_the_nodes(supervisors: Supervisors) -> None:
    asked = [ok(supervisors.gateways[0].get("/broker")) for _ in range(12)]
    assert {it["kind"] for it in asked} <= {"core", "edge"}
    assert len({it["id"] for it in asked}) > 1


def test_a2_whoever_listens_is_told_when_a_node_at_the_root_dies(supervisors: Supervisors) -> None:
    cluster, gateway = supervisors.cluster, supervisors.gateways[0]
    cluster.wait_healthy()
    with (
        TcpTalk(gateway.ready["lines"]) as talk,
        gateway.http.stream("GET", "/tree/events", timeout=60) as events,
    ):
        lines = events.iter_lines()
        assert next(lines) == "event: tree"
        before = json.loads(next(lines).removeprefix("data: "))
        assert [it["id"] for it in before["children"]] == [0, 1, 2]
        cluster.kill(2)
        told = next(
            event
            for line in lines
            if line.startswith("data: ")
            and (event := json.loads(line.removeprefix("data: ")))["event"] == "core_down"
        )
        assert told["node"] == 2
        while '"core_down"' not in (line := talk.read()):
            assert line
        assert json.loads(line.removeprefix("[TREE] "))["node"] == 2
    eventually(lambda: [it["id"] for it in supervisors.tree(1)["children"]] == [0, 1])
    cluster.restart(2)
    eventually(lambda: [it["id"] for it in supervisors.tree(1)["children"]] == [0, 1, 2])
