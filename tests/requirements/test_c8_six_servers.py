"""C8: six servers in a tree: in whatever order they die, orphans hang from the next ancestor."""

import itertools
from pathlib import Path

import pytest

import sapwood
from sapwood.client import KafkaClient
from tests.helpers import eventually
from tests.requirements.trees import HEALED_S, Tree

STEPS = {
    "d then b": (("d", "0(b(e f) c) 1 2"), ("b", "0(c e f) 1 2")),
    "b then d": (("b", "0(c d(e f)) 1 2"), ("d", "0(c e f) 1 2")),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_c8_six_servers_heal_in_either_order_and_readers_at_each_see_everything_once(
    steps: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    sent: list[bytes] = []
    with sapwood.Cluster(nodes=3, data_dir=tmp_path, topics={"news": 1}) as cluster:
        tree = Tree(cluster)
        tree.grow(b="0", c="0", d="b", e="d", f="d")
        tree.becomes("0(b(d(e f)) c) 1 2")
        with KafkaClient(cluster.bootstrap) as publisher:
            numbers = itertools.count()

            def publish() -> None:
                for number in itertools.islice(numbers, 50):
                    sent.append(b"%d" % number)
                    publisher.send("news", sent[-1])
                publisher.flush()

            publish()
            for name, shape in steps:
                tree.kill(name)
                publish()
                tree.becomes(shape)
                for edge in tree.edges:
                    assert tree.read("news", edge) == sent
            cluster.kill(0)
            publish()
            eventually(lambda: tree.below() == {"1", "2", "c", "e", "f"}, HEALED_S)
            for edge in tree.edges:
                assert tree.read("news", edge) == sent
