"""What is told of a tree is held against where everybody hangs, and each lie is found."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from chaos.orphans import too_slow
from chaos.tree_words import Own, differences
from sapwood.tree.drawing import drawn


def server(port: int, *children: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "edge",
        "id": port,
        "host": "h",
        "port": port,
        "load": 0,
        "children": list(children),
    }


def cluster(*cores: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c", "children": list(cores), "pending": []}


@dataclass
class Good:
    """Core nodes 1 and 2; edge 11 below 1, edges 12 and 13 below 11."""

    told: dict[str, Any] = field(
        default_factory=lambda: cluster(server(1, server(11, server(12), server(13))), server(2))
    )
    drawing: str = ""
    edges: dict[int, Own] = field(
        default_factory=lambda: {
            11: Own(1, 2, frozenset({1, 2})),
            12: Own(2, 0, frozenset({11})),
            13: Own(2, 0, frozenset({11, 1})),
        }
    )

    def differences(self) -> list[str]:
        return differences(self.told, self.drawing or drawn(self.told), self.edges, {1, 2})


def test_a_tree_that_is_as_it_is_told_is_fine() -> None:
    assert Good().differences() == []


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (cluster(server(1, server(11, server(12))), server(2, server(13))), "said to hang from 2"),
        (cluster(server(1, server(11, server(12), server(13)))), "2 isn't in the tree"),
        (cluster(server(1, server(11, server(12))), server(2)), "13 isn't in the tree"),
        (
            cluster(server(1, server(11, server(12), server(13)), server(14)), server(2)),
            "14 is in the tree, and dead",
        ),
        (
            cluster(server(1, server(11, server(12), server(13))), server(2, server(13))),
            "13 is in the tree twice",
        ),
        (cluster(server(1, server(11), server(12), server(13)), server(2)), "at depth 1"),
    ],
)
def test_a_tree_that_is_told_otherwise_is_found(told: dict[str, Any], what: str) -> None:
    assert any(what in it for it in Good(told=told).differences())


def test_an_edge_that_hangs_elsewhere_than_it_is_told_is_found() -> None:
    good = Good()
    good.edges[12] = Own(2, 0, frozenset({1}))
    assert good.differences() == ["12 is said to hang from 11, and isn't connected to it"]


def test_a_drawing_of_another_tree_is_found() -> None:
    other = cluster(server(1, server(11, server(12, server(13)))), server(2))
    assert "the drawing and the document differ" in Good(drawing=drawn(other)).differences()[0]


def test_slow_healing_is_found_by_its_median() -> None:
    assert too_slow([]) == too_slow([20, 300, 5000]) == []
    assert too_slow([20, 1100, 1200]) == [
        "orphans attached again after 1100 ms in the median, the limit is 1000 ms"
    ]
