"""A3: `[PORT]` with the cluster's secret marks a broker, whom the father confirms; else it is no
message at all."""

from collections.abc import Iterator

import pytest

import sapwood
from tests.gateway.rest import Gateway, ok
from tests.gateway.talk import OK, Talk, TcpTalk, WebSocketTalk, error_in
from tests.helpers import eventually


class Fathers:
    """A core node and an edge, each with its gateway."""

    def __init__(self, cluster: sapwood.Cluster, core: Gateway, edge: Gateway, edge_id: int):
        self.cluster = cluster
        self.gateways = {"0": core, str(edge_id): edge}
        self.core, self.edge_id = core, str(edge_id)
        self.secret = cluster.layout.secret_file.read_text().strip()

    def register(self, port: int, wish: str) -> None:
        headers = {"authorization": f"Bearer {self.secret}"}
        body = {"host": "127.0.0.1", "port": port, "wish": wish}
        ok(self.core.http.post("/node/register", json=body, headers=headers), 201)

    def drawing(self) -> str:
        return self.core.get("/tree").text

    def is_in_tree(self, port: int) -> bool:
        return f"127.0.0.1:{port}" in self.drawing().partition("(pending")[0]


@pytest.fixture(scope="module")
def fathers() -> Iterator[Fathers]:
    with sapwood.Cluster(edges=1) as cluster, Gateway(cluster.bootstrap, node_id=0) as core:
        (edge,) = eventually(lambda: ok(core.get("/jtree"))["children"][0]["children"])
        with Gateway(cluster.edge_address(), node_id=edge["id"]) as beside:
            yield Fathers(cluster, core, beside, edge["id"])


@pytest.mark.parametrize("way", ["tcp", "websocket"])
@pytest.mark.parametrize("father", ["core", "edge"])
def test_a3_a_broker_with_the_secret_is_confirmed_by_its_father_and_reported_when_it_goes(
    father: str, way: str, fathers: Fathers
) -> None:
    wish = "0" if father == "core" else fathers.edge_id
    port = 11_100 + 2 * (father == "core") + (way == "tcp")
    fathers.register(port, wish)
    assert not fathers.is_in_tree(port), "it is pending"
    ready = fathers.gateways[wish].ready
    talk: Talk = TcpTalk(ready["lines"]) if way == "tcp" else WebSocketTalk(ready["rest"])
    with talk:
        assert talk.say("PORT", port=port, secret=fathers.secret) == OK
        assert fathers.is_in_tree(port)
        assert talk.say("PORT", port=port, secret=fathers.secret) == OK, "once more does no harm"
    eventually(lambda: not fathers.is_in_tree(port))


@pytest.mark.parametrize("father", ["core", "edge"])
def test_a3_a_broker_that_lives_and_is_reported_down_comes_back(
    father: str, fathers: Fathers
) -> None:
    wish = "0" if father == "core" else fathers.edge_id
    port = 11_140 + (father == "core")
    fathers.register(port, wish)
    with TcpTalk(fathers.gateways[wish].ready["lines"]) as talk:
        assert talk.say("PORT", port=port, secret=fathers.secret) == OK
        headers = {"authorization": f"Bearer {fathers.secret}"}
        body = {"reporter": wish, "node": f"127.0.0.1:{port}"}
        ok(fathers.core.http.post("/node/down", json=body, headers=headers))
        assert not fathers.is_in_tree(port)
        eventually(lambda: fathers.is_in_tree(port))
    eventually(lambda: not fathers.is_in_tree(port))


@pytest.mark.parametrize("secret", [None, "", "00", "00" * 32, "not hexadecimal"])
def test_a3_without_the_secret_port_is_an_invalid_message(
    secret: str | None, fathers: Fathers
) -> None:
    fathers.register(11_150, "0")
    fields = {"port": 11_150} if secret is None else {"port": 11_150, "secret": secret}
    with TcpTalk(fathers.core.ready["lines"]) as talk:
        assert talk.error("PORT", **fields) == "INVALID_MESSAGE"
        assert talk.say("USER", name="ann") == OK
    assert not fathers.is_in_tree(11_150)


def test_a3_who_was_not_sent_here_is_refused(fathers: Fathers) -> None:
    secret = fathers.secret
    with TcpTalk(fathers.core.ready["lines"]) as talk:
        assert talk.error("PORT", port=11_160, secret=secret) == "RESOURCE_NOT_FOUND"
        fathers.register(11_161, fathers.edge_id)
        assert talk.error("PORT", port=11_161, secret=secret) == "INVALID_REQUEST"
        assert error_in(talk.say("PORT", port=70_000, secret=secret)) == "INVALID_MESSAGE"
    assert not fathers.is_in_tree(11_161)
    with Gateway(fathers.cluster.bootstrap) as nobodys, TcpTalk(nobodys.ready["lines"]) as talk:
        assert talk.error("PORT", port=11_161, secret=secret) == "INVALID_REQUEST"
