"""C3: everybody knows whom to turn to; the three cases in which the original design failed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import sapwood
from sapwood.client import KafkaClient
from tests.helpers import eventually
from tests.requirements.trees import HEALED_S, Tree

CHAIN = "0(p(q(r))) 1 2"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with sapwood.Cluster(nodes=3, data_dir=tmp_path) as cluster:
        found = Tree(cluster)
        found.grow(p="0", q="p", r="q")
        found.becomes(CHAIN)
        yield found


def kill_the_supervisor(tree: Tree) -> None:
    """Core node 0 has to live: it is whom they turn to."""
    controller = tree.cluster.status(0).controller
    if controller != 0:
        tree.cluster.kill(controller)


@pytest.mark.parametrize("supervisor", ["there", "killed"])
def test_c3_the_second_and_then_the_first_server_die(tree: Tree, supervisor: str) -> None:
    if supervisor == "killed":
        kill_the_supervisor(tree)
    tree.kill("q")
    tree.becomes("0(p(r)) 1 2", "0(p(r)) 1", "0(p(r)) 2")
    tree.kill("p")
    tree.becomes("0(r) 1 2", "0(r) 1", "0(r) 2")


def test_c3_a_server_and_its_backup_die_together(tree: Tree) -> None:
    tree.kill("p", "q")
    tree.becomes("0(r) 1 2")


def test_c3_the_root_dies_at_a_bad_time(tree: Tree) -> None:
    tree.kill("p")
    tree.cluster.kill(0)
    tree.becomes("1(q(r)) 2", "1 2(q(r))")

    def named() -> set[str]:
        """Where clients of q are told that they may turn to."""
        with KafkaClient(tree.address("q")) as client:
            return {f"{it.host}:{it.port}" for it in client.metadata([]).brokers.values()}

    eventually(lambda: named() == {tree.address("q")}, HEALED_S)
