"""The tree for people, and for programs: the cluster, its core nodes, and the edges below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sapwood.metadata.edges import Edge
from sapwood.metadata.image import Image
from sapwood.tree.supervisor import IsAlive

CORE, EDGE = "core", "edge"
PENDING, CONFIRMED = "PENDING", "CONFIRMED"


def document(
    image: Image, is_alive: IsAlive, loads: Mapping[int, int], controller: int = -1
) -> dict[str, Any]:
    """The cluster as a tree of dictionaries."""
    below: dict[int, list[Edge]] = {}
    for edge in image.edges.known.values():
        if edge.confirmed:
            below.setdefault(edge.father, []).append(edge)

    def children(node_id: int) -> list[dict[str, Any]]:
        return [
            {**_edge(it, loads), "children": children(it.edge_id)} for it in below.get(node_id, ())
        ]

    cores = []
    for node_id, node in sorted(image.nodes.items()):
        if is_alive(node_id):
            host, port = next(iter(node.listeners.values()))
            cores.append(
                {
                    "id": node_id,
                    "kind": CORE,
                    "host": host,
                    "port": port,
                    "state": CONFIRMED,
                    "controller": node_id == controller,
                    "load": loads.get(node_id, 0),
                    "children": children(node_id),
                }
            )
    pending = [_edge(it, loads) for it in image.edges.known.values() if not it.confirmed]
    return {
        "id": image.cluster_id,
        "kind": "cluster",
        "children": cores,
        "pending": pending,
    }


def _edge(edge: Edge, loads: Mapping[int, int]) -> dict[str, Any]:
    return {
        "id": edge.edge_id,
        "kind": EDGE,
        "host": edge.host,
        "port": edge.port,
        "ports": dict(edge.ports),
        "state": CONFIRMED if edge.confirmed else PENDING,
        "father": edge.father,
        "load": loads.get(edge.edge_id, 0),
    }


def drawn(tree: Mapping[str, Any]) -> str:
    """A document, drawn with lines."""
    lines = [f"cluster {tree['id']}", *_branches(tree["children"], "")]
    lines += [
        f"(pending: {_named(it)}, sent to {it['father']})"
        for it in tree["pending"]
        if it["father"] >= 0
    ]
    return "\n".join(lines) + "\n"


def _branches(children: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for index, it in enumerate(children):
        is_last = index == len(children) - 1
        yield f"{indent}{'└── ' if is_last else '├── '}{_named(it)}"
        yield from _branches(it["children"], indent + ("    " if is_last else "│   "))


def _named(it: Mapping[str, Any]) -> str:
    leads = ", controller" if it.get("controller") else ""
    load = f", {it['load']} clients" if it["load"] else ""
    return f"{it['kind']} {it['id']} at {it['host']}:{it['port']}{leads}{load}"
