"""`sapwood tree` draws who hangs where; `sapwood trace` tells when a record came where."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import sapwood
from tests.cli.command import said
from tests.cli.command import sapwood as command
from tests.helpers import eventually
from tests.requirements.trees import Tree


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    with sapwood.Cluster(topics={"news": 1}) as cluster:
        tree = Tree(cluster)
        tree.grow(p="0", q="p")
        yield tree


def test_the_tree_is_drawn_with_load_and_round_trip_time_and_lag_of_each_link(tree: Tree) -> None:
    def drawn() -> str:
        out, _ = command("tree", bootstrap=tree.cluster.bootstrap)
        return "" if "doesn't answer" in out else out

    cluster, core, p, q = eventually(drawn).splitlines()
    assert cluster.startswith("cluster ")
    assert tree.address("0") in core
    assert "controller" in core
    for line, name in ((p, "p"), (q, "q")):
        assert tree.address(name) in line
        assert "clients" in line
        assert "ms to its parent and back" in line
        assert "0 records behind" in line
    assert p.index("edge") < q.index("edge"), "deeper"


def test_the_same_for_programs(tree: Tree) -> None:
    def edges() -> list[dict[str, Any]]:
        out, _ = command("tree", "-o", "json", bootstrap=tree.address("q"))
        (core,) = json.loads(out)["children"]
        (p,) = core["children"]
        (q,) = p["children"]
        return [] if None in (p["round_trip_ms"], q["round_trip_ms"]) else [p, q]

    p, q = eventually(edges)
    assert p["round_trip_ms"] > 0
    assert q["lag"] == 0


def traced(*flags: str, bootstrap: str) -> list[dict[str, Any]]:
    out, _ = command("trace", "news", "-o", "json", *flags, bootstrap=bootstrap)
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_a_record_is_traced_from_its_leader_down_to_each_edge(tree: Tree) -> None:
    hops = traced("-m", "hello", bootstrap=tree.cluster.bootstrap)
    assert [it["hop"] for it in hops] == [0, 1, 2]
    assert [it["address"] for it in hops] == [tree.address(it) for it in ("0", "p", "q")]
    assert [it["from"] for it in hops] == ["-", hops[0]["node"], hops[1]["node"]]
    assert all(it["ms"] > 0 for it in hops)
    out, _ = command("trace", "news", "-m", "hello", bootstrap=tree.cluster.bootstrap)
    assert out.splitlines()[0].split() == ["HOP", "NODE", "ADDRESS", "FROM", "MS"]


def test_what_is_not_there_is_not_traced(tree: Tree) -> None:
    bootstrap = tree.cluster.bootstrap
    assert "no topic" in said("trace", "nothing", bootstrap=bootstrap)
    assert "no partition 7" in said("trace", "news", "-p", "7", bootstrap=bootstrap)
