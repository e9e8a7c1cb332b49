"""E5: every path and method, asked rightly and wrongly, answers as its description says."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

import sapwood
from sapwood.gateway.routes import ROUTES, Route
from tests.gateway.rest import Gateway, problem
from tests.helpers import unique


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with sapwood.Cluster() as cluster, Gateway(cluster.bootstrap, node_id=0) as gateway:
        secret = cluster.layout.secret_file.read_text().strip()
        gateway.http.headers["authorization"] = f"Bearer {secret}"
        yield gateway


class World(NamedTuple):
    """What there is before each request."""

    topic: str
    producer: str
    consumer: str


@pytest.fixture
def world(gateway: Gateway) -> World:
    world = World(unique("e5"), unique("till"), unique("ledger"))
    assert gateway.post("/topics", topic=world.topic, partitions=2).status_code == 201
    for kind, name in (("producer", world.producer), ("consumer", world.consumer)):
        registered = gateway.post(f"/{kind}s", topic=world.topic, **{kind: name})
        assert registered.status_code == 201
    gateway.produce(world.topic, "one", "two")
    return world


class Case(NamedTuple):
    """How to ask rightly, how wrongly, and what wrong comes to."""

    right: Callable[[World], dict[str, Any]]
    wrong: Callable[[World], dict[str, Any]]
    status: int
    says: str


def nothing(_: World) -> dict[str, Any]:
    return {}


def unknown(_: World) -> dict[str, Any]:
    return {"topic": "no-such-topic"}


def stranger(_: World) -> dict[str, Any]:
    return {"nonsense": "1"}


CASES: dict[tuple[str, str], Case] = {
    ("GET", "/"): Case(nothing, nothing, 0, ""),
    ("GET", "/livez"): Case(nothing, nothing, 0, ""),
    ("GET", "/readyz"): Case(nothing, nothing, 0, ""),
    ("GET", "/status"): Case(nothing, nothing, 0, ""),
    ("GET", "/metrics"): Case(nothing, nothing, 0, ""),
    ("GET", "/producers"): Case(nothing, nothing, 0, ""),
    ("GET", "/consumers"): Case(nothing, nothing, 0, ""),
    ("GET", "/brokers"): Case(nothing, nothing, 0, ""),
    ("POST", "/brokers"): Case(nothing, nothing, 409, "sapwood up"),
    ("GET", "/topics"): Case(nothing, unknown, 404, "no-such-topic"),
    ("POST", "/topics"): Case(
        lambda _: {"topic": unique("e5-new"), "configs": {"retention.ms": "60000"}},
        lambda world: {"topic": world.topic},
        409,
        "exists",
    ),
    ("DELETE", "/topics"): Case(lambda world: {"topic": world.topic}, unknown, 404, "topic"),
    ("GET", "/partitions"): Case(
        lambda world: {"topic": world.topic, "partition": 1},
        lambda world: {"topic": world.topic, "partition": 2},
        404,
        "it has 0 to 1",
    ),
    ("POST", "/partitions"): Case(
        lambda world: {"topic": world.topic, "partitions": 4},
        lambda world: {"topic": world.topic, "partitions": 1},
        400,
        "partitions",
    ),
    ("GET", "/size"): Case(lambda world: {"topic": world.topic}, unknown, 404, "no-such-topic"),
    ("POST", "/producers"): Case(
        lambda world: {"topic": world.topic, "partition": 1}, unknown, 404, "no-such-topic"
    ),
    ("DELETE", "/producers"): Case(
        lambda world: {"topic": world.topic, "producer": world.producer},
        lambda world: {"topic": world.topic, "producer": "nobody"},
        404,
        "nobody is not registered",
    ),
    ("POST", "/consumers"): Case(
        lambda world: {"topic": world.topic, "start": "now"},
        lambda world: {"topic": world.topic, "consumer": world.consumer, "partition": 1},
        409,
        "all partitions",
    ),
    ("DELETE", "/consumers"): Case(
        lambda world: {"topic": world.topic, "consumer": world.consumer},
        lambda world: {"topic": world.topic, "consumer": "nobody"},
        404,
        "nobody is not registered",
    ),
    ("POST", "/producer/produce"): Case(
        lambda world: {"topic": world.topic, "message": "hi", "producer": world.producer},
        lambda world: {"topic": world.topic, "message": "hi", "producer": "nobody"},
        404,
        "nobody is not registered",
    ),
    ("GET", "/consumer/consume"): Case(
        lambda world: {"topic": world.topic, "consumer": world.consumer},
        lambda world: {"topic": world.topic, "consumer": "nobody"},
        404,
        "nobody is not registered",
    ),
    ("POST", "/consumer/ack"): Case(
        lambda world: {"topic": world.topic, "consumer": world.consumer},
        lambda world: {"topic": world.topic, "consumer": world.consumer, "id": "other"},
        409,
        "not out",
    ),
    ("GET", "/pending"): Case(lambda world: {"topic": world.topic}, unknown, 404, "topic"),
    ("GET", "/logs"): Case(
        lambda world: {"topic": world.topic, "partition": 0, "consumer": world.consumer},
        lambda world: {"topic": world.topic, "partition": 0, "consumer": "nobody"},
        404,
        "nobody is no consumer",
    ),
    ("POST", "/logs"): Case(
        lambda world: {"topic": world.topic, "partition": 1, "message": "hi"},
        lambda world: {"topic": world.topic, "partition": 7, "message": "hi"},
        404,
        "no partition 7",
    ),
    ("GET", "/tree"): Case(nothing, nothing, 0, ""),
    ("GET", "/jtree"): Case(nothing, nothing, 0, ""),
    ("GET", "/tree/events"): Case(nothing, nothing, 0, ""),
    ("GET", "/broker"): Case(nothing, nothing, 0, ""),
    ("POST", "/node/register"): Case(
        lambda _: {"host": "127.0.0.1", "port": 7, "wish": "0"},
        lambda _: {"host": "127.0.0.1", "port": 8, "wish": "99"},
        404,
        "99",
    ),
    ("POST", "/node/confirm"): Case(
        lambda _: {"father": "0", "child": "127.0.0.1:7"},
        lambda _: {"father": "0", "child": "127.0.0.1:9"},
        404,
        "127.0.0.1:9",
    ),
    ("POST", "/node/down"): Case(
        lambda _: {"reporter": "0", "node": "127.0.0.1:7"},
        lambda _: {"reporter": "0", "node": "127.0.0.1:9"},
        404,
        "127.0.0.1:9",
    ),
    ("GET", "/pipelines"): Case(nothing, nothing, 0, ""),
    ("POST", "/pipelines"): Case(
        lambda _: {"pipeline": "latest"}, lambda _: {"pipeline": "latest"}, 409, "sapwood up"
    ),
    ("GET", "/raft_status"): Case(
        lambda world: {"topic": world.topic, "partition": 0}, unknown, 404, "no-such-topic"
    ),
}


# Beside a supervisor (the tests of `sapwood up`), in the order of a life (A1), without an end (A2).
TRIED_ELSEWHERE = {
    ("POST", "/brokers"),
    ("POST", "/pipelines"),
    ("POST", "/node/confirm"),
    ("POST", "/node/down"),
    ("GET", "/tree/events"),
}


def ask(gateway: Gateway, route: Route, given: dict[str, Any]) -> httpx.Response:
    if route.hint("body") is not None:
        return gateway.http.request(route.method, route.path, json=given)
    return gateway.http.request(route.method, route.path, params=given)


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_e5_every_row_of_the_table_is_tried_here() -> None:
    assert {(it.method, it.path) for it in ROUTES} == set(CASES)


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_e5_a_right_request_gets_the_answer_that_is_described(
    route: Route, gateway: Gateway, world: World
) -> None:
    if (route.method, route.path) in TRIED_ELSEWHERE:
        return
    response = ask(gateway, route, CASES[route.method, route.path].right(world))
    assert response.status_code == route.status, response.text
    assert response.headers.get("content-type", route.media_type).startswith(route.media_type)
    if (answer := route.answers.get(route.status)) is not None:
        msgspec.json.decode(response.content, type=answer)


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_e5_a_wrong_request_gets_a_problem_that_says_what_is_wrong(
    route: Route, gateway: Gateway, world: World
) -> None:
    case = CASES[route.method, route.path]
    if case.status:
        assert case.says in problem(ask(gateway, route, case.wrong(world)), case.status)
    other = next(it for it in ("PUT", "PATCH") if it != route.method)
    response = gateway.http.request(other, route.path)
    assert route.method in problem(response, 405)
    assert route.method in response.headers["allow"]


@pytest.mark.parametrize(
    "route",
    [it for it in ROUTES if it.hint("query") or it.hint("body")],
    ids=name_of,
)
def test_e5_what_is_not_in_the_description_is_refused_by_name(
    route: Route, gateway: Gateway, world: World
) -> None:
    case = CASES[route.method, route.path]
    given = {**case.right(world), **stranger(world)}
    assert "nonsense" in problem(ask(gateway, route, given), 400)


def test_e5_partitions_are_listed_by_broker_and_brokers_by_partition(
    gateway: Gateway, world: World
) -> None:
    (partition,) = gateway.get("/partitions", topic=world.topic, partition=1).json()["partitions"]
    assert (partition["leader"], partition["replicas"]) == (0, [0])
    of_broker = gateway.get("/partitions", broker=0).json()["partitions"]
    assert [it["partition"] for it in of_broker if it["topic"] == world.topic] == [0, 1]
    assert gateway.get("/partitions", broker=7).json()["partitions"] == []


def test_e5_raft_status_tells_which_replica_holds_what(gateway: Gateway, world: World) -> None:
    (group,) = gateway.get("/raft_status", topic=world.topic, partition=0).json()["groups"]
    assert (group["leader"], group["peers"], group["log_end"], group["commit"]) == (0, [0], 1, 1)
    (replica,) = group["replicas"]
    assert (replica["role"], replica["term"]) == ("leader", group["term"])
    everything = gateway.get("/raft_status").json()["groups"]
    assert "__cluster_metadata" in {it["topic"] for it in everything}


def test_e5_a_log_shows_what_a_consumer_has_yet_to_acknowledge(
    gateway: Gateway, world: World
) -> None:
    gateway.post("/logs", topic=world.topic, partition=0, message="three")
    about = {"topic": world.topic, "partition": 0}
    assert [it["message"] for it in gateway.get("/logs", **about).json()["messages"]] == [
        "one",
        "three",
    ]
    gateway.get("/consumer/consume", topic=world.topic, consumer=world.consumer, partition=0)
    gateway.post("/consumer/ack", topic=world.topic, consumer=world.consumer)
    found = gateway.get("/logs", **about, consumer=world.consumer).json()
    assert (found["position"], found["end"]) == (1, 2)
    assert [it["message"] for it in found["messages"]] == ["three"]
    (limited,) = gateway.get("/logs", **about, offset=1, limit=1).json()["messages"]
    assert limited["offset"] == 1


def test_e5_from_afar_a_broker_is_started_for_whoever_has_the_secret(gateway: Gateway) -> None:
    def ask(**headers: str) -> httpx.Response:
        with httpx.Client(base_url=gateway.url, timeout=30) as afar:
            return afar.post("/brokers", headers={"host": "sapwood.example.org", **headers})

    right = gateway.http.headers["authorization"]
    assert "own host" in problem(ask(), 403)
    problem(ask(authorization="Bearer"), 401)
    problem(ask(authorization=f"Bearer {'00' * 32}"), 403)
    assert "sapwood up" in problem(ask(authorization=right), 409), "it isn't for want of a right"
