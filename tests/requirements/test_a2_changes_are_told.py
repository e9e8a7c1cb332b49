"""A2: the supervisor notices when a node at the root dies; and whoever listens is told of all."""

import json
from pathlib import Path
from typing import Any

import sapwood
from sapwood.client import KafkaClient
from tests.helpers import eventually
from tests.requirements.trees import HEALED_S, Tree


def events(cluster: sapwood.Cluster) -> list[dict[str, Any]]:
    living = [cluster.address(it) for it in cluster.running]
    with KafkaClient(living) as client:
        found = client.consume({("__sapwood_tree", 0): 0}, stop_at="end")
        return [json.loads(it.value or b"") for it in found]


def test_a2_a_core_node_that_dies_leaves_the_tree_and_every_change_is_told(tmp_path: Path) -> None:
    with sapwood.Cluster(nodes=3, data_dir=tmp_path) as cluster:
        tree = Tree(cluster)
        tree.grow(p="0", q="p")
        tree.becomes("0(p(q)) 1 2")
        cluster.kill(0)
        tree.becomes("1(p(q)) 2", "1 2(p(q))")

        def told() -> set[str]:
            return {it["event"] for it in events(cluster)}

        eventually(lambda: {"registered", "attached", "core_down"} <= told(), HEALED_S)

        def with_healing() -> list[dict[str, Any]]:
            return [it for it in events(cluster) if it.get("healing_ms")]

        healed = eventually(with_healing, HEALED_S)
        assert [it["event"] for it in healed] == ["attached"], "p alone had to move"
