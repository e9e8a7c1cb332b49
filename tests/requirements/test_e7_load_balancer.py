"""E7: a gateway in front knows who leads. Kill the leader under load: only retryable answers."""

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

import sapwood
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually, unique

CLIENTS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3) as cluster:
        yield cluster


class Client(threading.Thread):
    """Produces until told to stop, each message again until it is stored."""

    def __init__(self, url: str, topic: str, name: str) -> None:
        super().__init__()
        self._http = httpx.Client(base_url=url, timeout=30, verify=False)
        self._topic = topic
        self._prefix = name
        self.stopping = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.stored: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            message = f"{self._prefix}-{len(self.stored)}"
            body = {"topic": self._topic, "message": message, "id": message}
            response = self._http.post("/producer/produce", json=body)
            self.statuses[response.status_code] += 1
            if response.status_code == 200:
                self.stored.append(message)
            elif response.status_code == 503:
                self.stopping.wait(float(response.headers["retry-after"]) / 10)


def test_e7_only_retryable_answers_while_leaders_and_managers_die(
    cluster: sapwood.Cluster,
) -> None:
    topic = unique("e7")
    with Gateway(cluster.bootstrap) as gateway:
        ok(gateway.post("/topics", topic=topic, partitions=3), 201)
        clients = [Client(gateway.url, topic, f"client-{it}") for it in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            for _ in range(2):
                controller = ok(gateway.get("/status"))["controller"]
                await_more(clients)
                cluster.kill(controller)
                await_more(clients)
                eventually(partial(has_controller_beside, gateway, controller), 30)
                cluster.restart(controller)
                cluster.wait_healthy()
        finally:
            for client in clients:
                client.stopping.set()
            for client in clients:
                client.join()
        statuses = sum((it.statuses for it in clients), Counter())
        assert set(statuses) <= {200, 503}, statuses
        stored = {each for it in clients for each in it.stored}
        assert len(stored) == sum(len(it.stored) for it in clients)
        size = ok(gateway.get("/size", topic=topic))["size"]
        assert size == len(stored), "what was acknowledged is there, once"


def await_more(clients: list[Client]) -> None:
    """Until each of them has stored some more."""
    wanted = [len(it.stored) + 5 for it in clients]
    eventually(lambda: all(len(it.stored) > n for it, n in zip(clients, wanted, strict=True)), 60)


def has_controller_beside(gateway: Gateway, gone: int) -> bool:
    found = gateway.get("/status")
    return found.status_code == 200 and found.json()["controller"] not in (None, gone)


def test_e7_without_a_quorum_changes_are_refused_and_can_be_tried_again(tmp_path: object) -> None:
    topic = unique("e7-quorum")
    with sapwood.Cluster(nodes=3) as cluster, Gateway(cluster.bootstrap) as gateway:
        ok(gateway.post("/topics", topic=topic, partitions=1), 201)
        gateway.produce(topic, "before")
        leader = cluster.leader(topic, 0)
        for node in cluster.nodes:
            if node != leader:
                cluster.kill(node)
        for response in (
            gateway.post("/producer/produce", topic=topic, message="lost?", id="lost"),
            gateway.post("/topics", topic=f"{topic}-2"),
        ):
            assert response.status_code == 503, response.text
            assert int(response.headers["retry-after"]) > 0
        for node in cluster.nodes:
            if node != leader:
                cluster.restart(node, wait=False)
        again = {"topic": topic, "message": "lost?", "id": "lost"}
        eventually(lambda: gateway.post("/producer/produce", **again).status_code == 200, 60)
        assert ok(gateway.get("/size", topic=topic))["size"] == 2


def test_e7_the_command_serves_in_front_of_a_cluster(cluster: sapwood.Cluster) -> None:
    import json
    import sys

    command = [sys.executable, "-c", "from sapwood.cli import main; main()", "gateway"]
    flags = ["-b", cluster.bootstrap, "--rest", "127.0.0.1:0", "--lines", "127.0.0.1:0"]
    flags.append("--announce")
    process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        found = httpx.get(f"http://{ready['rest']}/status").json()
        assert found["status"] == "broker running"
    finally:
        process.terminate()
        assert process.wait(20) == 0
        if process.stdout is not None:
            process.stdout.close()
