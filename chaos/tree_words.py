"""Whether what is told of a tree over REST is where everybody really hangs.

The supervisor's words are `/jtree` and `/tree`. Against them stand what each edge says of itself,
and whom its process is connected to: that nobody can be mistaken about.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import psutil

from chaos.audience import GatewayProcess
from chaos.trees import ASK_S, HEALED_S, Tree
from sapwood.node.asking import NoAnswer, NodeConnection

EVERY_S = 0.2
REST_TIMEOUT_S = 20.0
_BRANCH = re.compile(r"(?P<indent>(?:│   |    )*)[├└]── \w+ \d+ at \S*:(?P<port>\d+)")


class Own(NamedTuple):
    """An edge, by its own word and by its connections."""

    depth: int
    children: int
    connected: frozenset[int]
    """The ports that its process is connected to."""


class Told(NamedTuple):
    """A server in the tree. All go by their ports."""

    port: int
    parent: int
    """0 for a core node: the cluster."""
    depth: int
    children: int


def in_document(document: Mapping[str, Any], parent: int = 0, depth: int = -1) -> Iterator[Told]:
    for it in document["children"]:
        yield Told(it["port"], parent, depth + 1, len(it["children"]))
        yield from in_document(it, it["port"], depth + 1)


def in_drawing(text: str) -> Iterator[tuple[int, int]]:
    """Each port with its parent's."""
    path = [0]
    for match in filter(None, map(_BRANCH.match, text.splitlines())):
        depth, port = len(match["indent"]) // 4, int(match["port"])
        path[depth + 1 :] = [port]
        yield port, path[depth]


def differences(
    document: Mapping[str, Any], drawing: str, edges: Mapping[int, Own], cores: set[int]
) -> list[str]:
    """What is told that isn't so: everybody is there once, and hangs where it is said to hang."""
    all_told = list(in_document(document))
    twice = [port for port, count in Counter(it.port for it in all_told).items() if count > 1]
    found = [f"{port} is in the tree twice" for port in twice]
    told = {it.port: it for it in all_told}
    living = edges.keys() | cores
    found += [f"{port} isn't in the tree" for port in sorted(living - told.keys())]
    found += [f"{port} is in the tree, and dead" for port in sorted(told.keys() - living)]
    for port in sorted(edges.keys() & told.keys()):
        own, word = edges[port], told[port]
        if word.parent not in own.connected:
            found.append(f"{port} is said to hang from {word.parent}, and isn't connected to it")
        if (word.depth, word.children) != (own.depth, own.children):
            found.append(
                f"{port} is said to be at depth {word.depth} with {word.children} children, and is "
                f"at {own.depth} with {own.children}"
            )
    if sorted(in_drawing(drawing)) != sorted((it.port, it.parent) for it in all_told):
        found.append(f"the drawing and the document differ: {drawing!r}")
    return found


def wrong(tree: Tree, patience_s: float = HEALED_S) -> list[str]:
    """What is still told wrongly when all has had time to come to rest."""
    deadline = time.monotonic() + patience_s
    gateway = GatewayProcess(tree.living)
    try:
        with httpx.Client(base_url=f"http://{gateway.rest}", timeout=REST_TIMEOUT_S) as rest:
            while True:
                found = _asked(tree, rest)
                if not found or time.monotonic() > deadline:
                    return found
                time.sleep(EVERY_S)
    finally:
        gateway.stop()


def _asked(tree: Tree, rest: httpx.Client) -> list[str]:
    answers = [rest.get(path) for path in ("/jtree", "/tree")]
    if failed := [str(it.status_code) for it in answers if it.status_code != 200]:
        return [f"REST tells nothing of the tree: {', '.join(failed)}"]
    document, drawing = answers
    cores = {_port(address) for address in tree.living}
    try:
        edges = {_port(tree.address(name)): _own(tree, name) for name in tree.edges}
    except (NoAnswer, psutil.Error) as error:
        return [f"an edge doesn't answer: {error}"]
    return differences(document.json(), drawing.text, edges, cores)


def _own(tree: Tree, name: str) -> Own:
    with NodeConnection(tree.address(name), timeout_s=ASK_S) as connection:
        said = {it.name: it.value for it in connection.status().metrics}
    process = psutil.Process(tree.cluster.edge_pid(tree.edges[name]))
    open_ones = [it for it in process.net_connections("tcp") if it.status == "ESTABLISHED"]
    return Own(
        int(said["sapwood_tree_depth"]),
        int(said["sapwood_tree_children"]),
        frozenset(it.raddr.port for it in open_ones if it.raddr),
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
