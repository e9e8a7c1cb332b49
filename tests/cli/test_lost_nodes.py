"""What an operator does when nodes are lost for good, with real nodes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import sapwood as package
from tests.cli.command import sapwood
from tests.helpers import eventually


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[package.Cluster]:
    with package.Cluster(nodes=4, topics={"orders": 6}) as cluster:
        cluster.wait_healthy()
        monkeypatch.setenv("SAPWOOD_SECRET_FILE", str(cluster.layout.secret_file))
        yield cluster


def shown(cluster: package.Cluster, *arguments: str, fails: int | None = 0) -> Any:
    bootstrap = ",".join(cluster.address(index) for index in cluster.running)
    out, _ = sapwood(*arguments, "-o", "json", bootstrap=bootstrap, fails=fails)
    return json.loads(out)


def test_a_node_that_is_lost_for_good_is_drained_and_removed(four: package.Cluster) -> None:
    four.kill(3)
    # Until the others have noticed, all seems well.
    eventually(lambda: shown(four, "status", fails=None)["nodes"][3]["state"] == "dead", 60)
    rest = ",".join(four.address(index) for index in four.running)
    sapwood("node", "drain", "3", "--timeout", "60", bootstrap=rest)
    sapwood("node", "remove", "3", bootstrap=rest)
    found = shown(four, "status", "--exit-when-healthy", "--timeout", "60")
    assert [node["id"] for node in found["nodes"]] == [0, 1, 2]
    # Leaders may still be handed back to where they belong.
    eventually(lambda: not shown(four, "partition", "ls", "-u"), 60)


def test_with_most_nodes_lost_for_good_one_copy_is_made_the_truth(four: package.Cluster) -> None:
    for index in (1, 2, 3):
        four.kill(index)

    def lost() -> list[dict[str, Any]]:
        """What the last node holds, once it has noticed that it is the last."""
        found: list[dict[str, Any]] = shown(four, "partition", "ls")
        return [] if any(it["leader"] is not None for it in found) else found

    for it in eventually(lost, 60):
        place = [it["topic"], str(it["partition"])]
        sapwood(
            *("partition", "recover", "--unsafe", "--yes", "--node", "0", *place),
            bootstrap=four.address(0),
        )
        found = shown(four, "partition", "describe", *place)
        assert (found["leader"], found["voters"]) == (0, [0])
    eventually(lambda: shown(four, "status", fails=1)["controller"] == 0)
