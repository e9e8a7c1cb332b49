"""B5: the queue over REST: what is consumed is acknowledged by the next call, or by its own."""

import socket
from collections.abc import Iterator

import pytest

import sapwood
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually, unique


@pytest.fixture(scope="module")
def cluster() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gateways(cluster: sapwood.Cluster) -> Iterator[list[Gateway]]:
    found = [Gateway(cluster.bootstrap, node_id=node) for node in cluster.nodes]
    yield found
    for each in found:
        assert "Traceback" not in each.stop()


@pytest.fixture
def topic(gateways: list[Gateway]) -> str:
    name = unique("b5")
    ok(gateways[0].post("/topics", topic=name), 201)
    return name


def test_b5_the_welcome_is_json_and_a_page_for_browsers(gateways: list[Gateway]) -> None:
    welcome = ok(gateways[1].get("/"))
    assert "Welcome" in welcome["message"]
    assert welcome["node"] == 1
    page = gateways[1].http.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert page.headers["content-type"].startswith("text/html")
    assert "<title>Sapwood</title>" in page.text


def test_b5_the_status_says_that_the_broker_runs_and_what_its_role_is(
    cluster: sapwood.Cluster, gateways: list[Gateway]
) -> None:
    cluster.wait_healthy()
    found = [ok(each.get("/status")) for each in gateways]
    assert {it["status"] for it in found} == {"broker running"}
    assert [it["node"] for it in found] == [0, 1, 2]
    primary = found[0]["controller"]
    roles = {it["node"]: it["role"] for it in found}
    assert roles[primary] == "primary manager"
    assert {role for node, role in roles.items() if node != primary} == {"manager copy"}


def test_b5_keyless_messages_through_one_node_go_round(gateways: list[Gateway], topic: str) -> None:
    for number in range(20):
        ok(gateways[2].post("/producer/produce", topic=topic, message=str(number)))
    sizes = [it["size"] for it in ok(gateways[0].get("/size", topic=topic))["partitions"]]
    assert len(sizes) == 3
    assert sum(sizes) == 20
    assert max(sizes) - min(sizes) <= 1


def test_b5_the_size_may_be_asked_of_one_partition(gateways: list[Gateway], topic: str) -> None:
    gateways[0].produce(topic, "a", "b", partition=1)
    found = ok(gateways[1].get("/size", topic=topic, partition=1))
    assert found["size"] == 2
    assert [it["partition"] for it in found["partitions"]] == [1]


def test_b5_what_was_registered_at_one_node_is_known_at_the_others(
    gateways: list[Gateway], topic: str
) -> None:
    name = unique("till")
    ok(gateways[0].post("/producers", topic=topic, producer=name, partition=2), 201)
    for gateway in gateways:
        known = {"producer": name, "topic": topic, "partition": 2}
        assert known in ok(gateway.get("/producers"))["producers"]
        (stored,) = gateway.produce(topic, "to its own partition", producer=name)
        assert stored["partition"] == 2


def test_b5_each_call_gives_the_next_message_wherever_it_is_made(
    gateways: list[Gateway], topic: str
) -> None:
    messages = [str(number) for number in range(9)]
    gateways[0].produce(topic, *messages)
    ok(gateways[0].post("/consumers", topic=topic, consumer="c"), 201)
    got = []
    for number in range(9):
        gateway = gateways[number % 3]
        got.append(ok(gateway.get("/consumer/consume", topic=topic, consumer="c"))["message"])
    assert sorted(got) == messages
    assert gateways[0].get("/consumer/consume", topic=topic, consumer="c").status_code == 204
    pending = ok(gateways[1].get("/pending", topic=topic))["pending"]
    assert [it["pending"] for it in pending] == [0, 0, 0]


def test_b5_one_partition_comes_in_its_order(gateways: list[Gateway], topic: str) -> None:
    messages = [str(number) for number in range(5)]
    gateways[0].produce(topic, *messages, partition=1)
    gateways[0].produce(topic, "elsewhere", partition=0)
    ok(gateways[0].post("/consumers", topic=topic, consumer="c"), 201)
    about = {"topic": topic, "consumer": "c", "partition": 1}
    got = [ok(gateways[0].get("/consumer/consume", **about))["message"] for _ in messages]
    assert got == messages
    assert gateways[0].get("/consumer/consume", **about).status_code == 204


def test_b5_an_acknowledgement_of_its_own_may_be_repeated(
    gateways: list[Gateway], topic: str
) -> None:
    first, second, _ = gateways
    first.produce(topic, "only")
    ok(first.post("/consumers", topic=topic, consumer="c"), 201)
    message = ok(first.get("/consumer/consume", topic=topic, consumer="c"))
    assert pending_of(second, topic) == 1
    about = {"topic": topic, "consumer": "c", "id": message["id"]}
    assert ok(second.post("/consumer/ack", **about)) == {"acknowledged": 1}
    assert ok(first.post("/consumer/ack", **about)) == {"acknowledged": 0}
    assert pending_of(second, topic) == 0


def pending_of(gateway: Gateway, topic: str) -> int:
    return sum(it["pending"] for it in ok(gateway.get("/pending", topic=topic))["pending"])


def test_b5_a_call_that_names_what_was_got_before_may_be_repeated_without_loss(
    gateways: list[Gateway], topic: str
) -> None:
    gateways[0].produce(topic, *"abcde", partition=0)
    ok(gateways[0].post("/consumers", topic=topic, consumer="c"), 201)
    got, last = [], ""
    for number in range(15):  # every answer but each third is lost on its way
        gateway = gateways[number % 3]
        found = ok(gateway.get("/consumer/consume", topic=topic, consumer="c", ack=last))
        if number % 3 == 2:
            got.append(found["message"])
            last = found["id"]
    assert got == list("abcde")


def ask_and_hang_up(gateway: Gateway, path: str, *, wait_for_answer: bool) -> None:
    """The answer is lost: nobody reads it."""
    with socket.create_connection(gateway.address, 10) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: {gateway.ready['rest']}\r\n\r\n".encode())
        if wait_for_answer:
            assert line.recv(1, socket.MSG_PEEK)


@pytest.mark.parametrize("wait_for_answer", [False, True], ids=["at once", "before reading"])
def test_b5_a_client_that_hangs_up_before_it_has_read_the_answer_loses_nothing(
    wait_for_answer: bool, gateways: list[Gateway], topic: str
) -> None:
    gateway = gateways[0]
    gateway.produce(topic, "first", "second", partition=0)
    ok(gateway.post("/consumers", topic=topic, consumer="c"), 201)
    path = f"/consumer/consume?topic={topic}&consumer=c"
    ask_and_hang_up(gateway, path, wait_for_answer=wait_for_answer)
    got = [ok(gateway.http.get(path))["message"] for _ in range(2)]
    assert got == ["first", "second"]


def test_b5_a_gateway_that_is_killed_loses_nothing(
    cluster: sapwood.Cluster, gateways: list[Gateway], topic: str
) -> None:
    gateways[0].produce(topic, *"abc", partition=0)
    ok(gateways[0].post("/consumers", topic=topic, consumer="c"), 201)
    path = f"/consumer/consume?topic={topic}&consumer=c"
    doomed = Gateway(cluster.bootstrap)
    assert ok(doomed.http.get(path))["message"] == "a"
    eventually(lambda: pending_of(gateways[0], topic) == 3)
    doomed.kill()
    got: list[str] = []
    while len(got) < 3 and (response := gateways[0].http.get(path)).status_code == 200:
        got.append(response.json()["message"])
    assert got[-2:] == ["b", "c"]


def test_b5_a_message_may_be_waited_for(gateways: list[Gateway], topic: str) -> None:
    ok(gateways[0].post("/consumers", topic=topic, consumer="c"), 201)
    import threading

    threading.Timer(0.2, lambda: gateways[1].produce(topic, "late")).start()
    about = {"topic": topic, "consumer": "c", "timeout_ms": 10_000}
    assert ok(gateways[0].get("/consumer/consume", **about))["message"] == "late"


def test_b5_a_message_with_an_id_is_stored_once_whichever_node_it_is_sent_to(
    gateways: list[Gateway], topic: str
) -> None:
    stored = [
        ok(each.post("/producer/produce", topic=topic, message="m", id="order-17"))
        for each in (*gateways, *gateways)
    ]
    assert len({(it["partition"], it["offset"]) for it in stored}) == 1
    assert ok(gateways[0].get("/size", topic=topic))["size"] == 1


def test_b5_bytes_that_are_no_text_go_in_and_out_as_base64(
    gateways: list[Gateway], topic: str
) -> None:
    ok(gateways[0].post("/consumers", topic=topic, consumer="c"), 201)
    gateways[0].produce(topic, "/wA=", encoding="base64")
    found = ok(gateways[0].get("/consumer/consume", topic=topic, consumer="c"))
    assert (found["message"], found["encoding"]) == ("/wA=", "base64")
