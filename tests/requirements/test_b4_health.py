"""B4: nodes that die and nodes that are new are found by themselves."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sapwood
from sapwood.node import discovery, ready
from tests.helpers import eventually
from tests.judges.confluent import Confluent

WITHIN_S = 10
PARTITIONS = 12


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sapwood.Cluster]:
    """Three nodes that may be found on this host, by nobody but the test."""
    monkeypatch.setenv(discovery.VARIABLE, str(tmp_path / "runtime"))
    with sapwood.Cluster(
        nodes=3, data_dir=tmp_path / "cluster", config={"discoverable": True}
    ) as cluster:
        yield cluster


@contextmanager
def node_that_is_told_nothing(directory: Path) -> Iterator[str]:
    """Started on the same host with a directory and a port; its address once it serves."""
    with subprocess.Popen(
        [sys.executable, "-m", "sapwood.node", "--dir", str(directory), "--port", "0"],
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            found = eventually(lambda: ready.read(directory), WITHIN_S)
            assert found is not None
            yield found["listeners"]["kafka"]
        finally:
            process.terminate()


def test_b4_a_new_node_finds_the_cluster_serves_within_ten_seconds_and_gets_a_fair_share(
    cluster: sapwood.Cluster, tmp_path: Path
) -> None:
    cluster.create_topics({"b4": PARTITIONS})
    with node_that_is_told_nothing(tmp_path / "new") as address:
        judge = Confluent(address)
        eventually(lambda: sorted(judge.node_ids()) == [0, 1, 2, 3], WITHIN_S)

        def shares() -> list[int]:
            return [node.replicas for node in cluster.status().nodes]

        # Three copies of each partition, over four nodes.
        eventually(lambda: max(shares()) - min(shares()) <= 1 and len(shares()) == 4, 60)


def test_b4_a_killed_node_is_marked_dead_within_ten_seconds_and_alive_when_it_is_back(
    cluster: sapwood.Cluster,
) -> None:
    def alive() -> list[int]:
        return sorted(node.node_id for node in cluster.status(0).nodes if node.alive)

    cluster.kill(2)
    eventually(lambda: alive() == [0, 1], WITHIN_S)
    assert sorted(Confluent(cluster.address(0)).node_ids()) == [0, 1]
    cluster.restart(2)
    eventually(lambda: alive() == [0, 1, 2], WITHIN_S)
