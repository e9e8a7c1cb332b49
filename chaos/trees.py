"""A tree of real processes, and what any node tells of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import sapwood
from sapwood.client import KafkaClient
from sapwood.node.asking import NoAnswer, NodeConnection

HEALED_S = 60.0
POLL_S = 0.05
ASK_S = 2.0
EVENTS = "__sapwood_tree"


class NotHealed(AssertionError):
    """The tree didn't become what it should be."""


class Tree:
    """Edges by name, below the core nodes of a cluster, which go by their numbers."""

    def __init__(self, cluster: sapwood.Cluster) -> None:
        self.cluster = cluster
        self.edges: dict[str, int] = {}
        self.paused: set[int] = set()

    def grow(self, **fathers: str) -> None:
        """Each edge below the father that it wishes for: another edge, or a core node."""
        for name, father in fathers.items():
            wish = self.edges.get(father)
            self.edges[name] = self.cluster.add_edge(
                self.cluster.address(int(father)) if wish is None else wish
            )
            await_true(lambda name=name: name in self.below(), f"{name} hangs nowhere")  # type: ignore[misc]

    def address(self, name: str) -> str:
        """Of an edge by its name, or of a core node by its number."""
        if name in self.edges:
            return self.cluster.edge_address(self.edges[name])
        return self.cluster.address(int(name))

    def kill(self, *names: str) -> None:
        for name in names:
            self.cluster.kill_edge(self.edges.pop(name))

    def pause(self, core: int) -> None:
        self.cluster.pause(core)
        self.paused.add(core)

    def resume(self, core: int) -> None:
        """Unless it was killed meanwhile."""
        self.paused.discard(core)
        if core in self.cluster.running:
            self.cluster.resume(core)

    @property
    def living(self) -> list[str]:
        """Addresses of core nodes."""
        awake = [it for it in self.cluster.running if it not in self.paused]
        return [self.cluster.address(it) for it in awake]

    def are_edges_attached(self) -> bool:
        """By their own word, which has to go up to the core: no supervisor is needed for that."""
        for name in self.edges:
            try:
                with NodeConnection(self.address(name), timeout_s=ASK_S) as connection:
                    said = {it.name: it.value for it in connection.status().metrics}
            except NoAnswer:
                return False
            if said["sapwood_tree_depth"] < 1:
                return False
        return True

    def document(self) -> dict[str, Any]:
        """From a node that runs."""
        with KafkaClient(self.living) as client:
            return client.tree().document

    def shape(self) -> str:
        """`0(b(d) c) 1 2`: core nodes that live, and below them who hangs there."""
        ports = {
            self.cluster.edge_address(it).rpartition(":")[2]: n for n, it in self.edges.items()
        }

        def branch(node: dict[str, Any]) -> str:
            below = sorted(map(branch, node["children"]))
            name = ports.get(str(node["port"]), str(node["id"]))
            return name + (f"({' '.join(below)})" if below else "")

        return " ".join(map(branch, self.document()["children"]))

    def below(self) -> set[str]:
        """Everybody who is in the tree."""
        return set(self.shape().replace("(", " ").replace(")", " ").split())

    def becomes(self, *shapes: str) -> None:
        await_true(lambda: self.shape() in shapes, lambda: f"{self.shape()} isn't {shapes}")

    def events(self) -> list[dict[str, Any]]:
        """All that was told of the tree."""
        with KafkaClient(self.living) as client:
            found = client.consume({(EVENTS, 0): 0}, stop_at="end")
            return [json.loads(it.value or b"") for it in found]

    def healing_ms(self) -> list[int]:
        """How long those who lost their parents were without one."""
        return [it["healing_ms"] for it in self.events() if it.get("healing_ms")]

    def read(self, topic: str, name: str) -> list[bytes | None]:
        """All that is there of a topic, read at an edge."""
        with KafkaClient(self.address(name)) as client:
            return [it.value for it in client.consume({(topic, 0): 0}, stop_at="end")]


def await_true(
    condition: Callable[[], bool], otherwise: str | Callable[[], str], deadline_s: float = HEALED_S
) -> None:
    for _ in _until(deadline_s):
        if condition():
            return
    raise NotHealed(otherwise if isinstance(otherwise, str) else otherwise())


def _until(deadline_s: float) -> Iterator[None]:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        yield
        time.sleep(POLL_S)
    yield
