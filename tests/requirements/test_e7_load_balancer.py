"""E7: a gateway in front knows who leads. Kill the leader under load: only retryable answers.

`python -m tests.gateway.failover` is the same for longer, and judges for how long.
"""

import subprocess
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

import sapwood
from tests.gateway.failover import Answer, Outcome, controller, longest_refusal_s, run
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually, unique


@pytest.fixture(scope="module")
def cluster() -> Iterator[sapwood.Cluster]:
    with sapwood.Cluster(nodes=3) as cluster:
        yield cluster


def test_e7_only_retryable_answers_while_leaders_and_managers_die(
    cluster: sapwood.Cluster,
) -> None:
    outcome = run(cluster, unique("e7"), [controller, controller])
    print(outcome)  # how long it took: the command judges that
    assert outcome.complaints == []
    assert outcome.statuses[200] > 0


def test_e7_answers_of_another_kind_and_messages_that_are_lost_or_doubled_are_found() -> None:
    assert Outcome(Counter({200: 5, 503: 2}), 5, 5).complaints == []
    assert Outcome(Counter({200: 5, 500: 1}), 5, 5).complaints == ["1 answers 500"]
    assert Outcome(Counter({200: 5}), 5, 4).complaints == ["5 were acknowledged, 4 are there"]
    assert Outcome(Counter({200: 5}), 5, 6).complaints == ["5 were acknowledged, 6 are there"]


def test_e7_a_long_row_of_refusals_is_found() -> None:
    answers = [Answer(1, 200), Answer(2, 503), Answer(2.5, 503), Answer(3.5, 200), Answer(9, 503)]
    assert longest_refusal_s(answers) == 1.5
    assert not Outcome(longest_refusals_s=[0, 1.5]).is_slow
    assert longest_refusal_s([*answers, Answer(12, 503)]) == 3.0
    assert Outcome(longest_refusals_s=[0, 3.0]).is_slow


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
        found = httpx.get(f"http://{ready['rest']}/status", timeout=30).json()
        assert found["status"] == "broker running"
    finally:
        process.terminate()
        assert process.wait(20) == 0
        if process.stdout is not None:
            process.stdout.close()
