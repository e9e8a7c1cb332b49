"""`sapwood tree` and `sapwood trace`: where everybody hangs, and how records come down."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sapwood.cli import CommandFailed
from sapwood.cli.connect import bootstrap_option, client_for, topic_argument
from sapwood.cli.output import Screen, output_option, print_json, print_table, say
from sapwood.cli.topic import existing_topic

if TYPE_CHECKING:
    from rich.tree import Tree

WATCH_S = 1.0
STATUS_TIMEOUT_S = 2.0
FETCH_WAIT_MS = 500
READY_S = 5.0
MOST_AT_ONCE = 32

LINK_METRICS = {
    "round_trip_ms": "sapwood_tree_parent_round_trip_ms",
    "lag": "sapwood_edge_lag_records",
}
"""What an edge says of the link to its parent."""


@click.command()
@bootstrap_option
@click.option("-w", "--watch", is_flag=True, help="Go on showing it until Ctrl-C.")
@output_option
def tree(bootstrap: str | None, watch: bool, output: str) -> None:
    """Draw the tree of core nodes and edges.

    With the clients of each, and for each link how long the way up and back takes just now and how
    many records the edge is known to be behind.
    """
    with client_for(bootstrap) as client, Screen(watch and output != "json") as screen:
        while True:
            found = client.tree().document
            _ask_edges(found)
            if output == "json":
                print_json(found)
            else:
                screen.show(_drawn(found))
            if not watch:
                return
            time.sleep(WATCH_S)


def _ask_edges(found: dict[str, Any]) -> None:
    """Add what each edge says itself; those that say nothing are left as they are."""
    from sapwood.node.asking import NoAnswer, NodeConnection

    def ask(edge: dict[str, Any]) -> None:
        try:
            with NodeConnection(_address(edge), timeout_s=STATUS_TIMEOUT_S) as connection:
                said = {it.name: it.value for it in connection.status().metrics}
        except NoAnswer:
            said = {}
        edge.update({name: said.get(metric) for name, metric in LINK_METRICS.items()})

    edges = [it for it, _ in _all(found["children"]) if it["kind"] == "edge"]
    with ThreadPoolExecutor(MOST_AT_ONCE) as together:
        list(together.map(ask, edges))


def _address(node: dict[str, Any]) -> str:
    return f"{node['host']}:{node['port']}"


Path = tuple[dict[str, Any], ...]


def _all(nodes: Sequence[dict[str, Any]], path: Path = ()) -> Iterator[tuple[dict[str, Any], Path]]:
    """Each node, with those above it, the core node first."""
    for each in nodes:
        yield each, path
        yield from _all(each["children"], (*path, each))


def _drawn(found: dict[str, Any]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    def grow(branch: Tree, nodes: Sequence[dict[str, Any]]) -> None:
        for each in nodes:
            grow(branch.add(Text(_named(each))), each["children"])

    root = Tree(Text(f"cluster {found['id']}", style="bold"))
    grow(root, found["children"])
    for each in found["pending"]:
        if each["father"] >= 0:
            root.add(Text(f"{_title(each)}, pending, sent to {each['father']}", style="yellow"))
    return root


def _title(node: dict[str, Any]) -> str:
    return f"{node['kind']} {node['id']} at {_address(node)}"


def _named(node: dict[str, Any]) -> str:
    parts = [_title(node)]
    if node.get("controller"):
        parts.append("controller")
    parts.append(f"{node['load']} clients")
    if node["kind"] == "edge":
        if node["lag"] is None:
            parts.append("doesn't answer")
        else:
            way = node["round_trip_ms"]
            up = (
                "its parent doesn't answer"
                if way is None
                else f"{way:.1f} ms to its parent and back"
            )
            parts += [up, f"{node['lag']:.0f} records behind"]
    return ", ".join(parts)


class Hop(NamedTuple):
    """A node that a record comes to."""

    node: dict[str, Any]
    depth: int
    above: str

    @property
    def name(self) -> str:
        return f"{self.node['kind']} {self.node['id']}"


@click.command()
@topic_argument
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the topic.",
)
@click.option("-m", "--message", help="Send this, instead of waiting for the next record.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@output_option
@bootstrap_option
def trace(
    topic: str,
    partition: int,
    message: str | None,
    timeout_s: float,
    output: str,
    bootstrap: str | None,
) -> None:
    """Show when a record arrives where in the tree.

    Reads at its leader and at every edge, and tells the time at each after it was there first.
    What is measured is what a client here sees, its own way to the nodes included.
    """
    with client_for(bootstrap, allow_auto_create=False) as client:
        known = existing_topic(client, topic).partitions
        if partition not in known:
            raise CommandFailed(f"{topic} has no partition {partition}: it has {len(known)}")
        tree_found = client.tree().document
        offset = client.list_offsets({(topic, partition): -1})[topic, partition].offset
        hops = _hops(tree_found, _leader(client, topic, partition))
        watch = _Watch(topic, partition, offset, timeout_s)
        threads = [threading.Thread(target=watch.follow, args=(it,), daemon=True) for it in hops]
        for thread in threads:
            thread.start()
        if not watch.await_ready(len(hops)):
            raise CommandFailed(f"not every node answers: {watch.trouble()}")
        sent_at = time.monotonic()
        if message is not None:
            client.send(topic, message.encode(), partition=partition)
            client.flush()
        else:
            say(f"waiting for a record of {topic}, partition {partition} …")
        for thread in threads:
            thread.join()
    _tell(hops, watch, sent_at if message is not None else None, output)


def _leader(client: Any, topic: str, partition: int) -> int:
    """Among core nodes. An edge says that it leads everything itself."""
    found: int = client.metadata([topic]).topics[topic].partitions[partition].leader
    return found


def _hops(found: dict[str, Any], leader: int) -> list[Hop]:
    hops = []
    for node, path in _all(found["children"]):
        if node["kind"] == "edge" or node["id"] == leader:
            above = f"{path[-1]['kind']} {path[-1]['id']}" if path else "-"
            hops.append(Hop(node, len(path), above))
    return sorted(hops, key=lambda it: (it.depth, it.node["id"]))


class _Watch:
    """When a record was there, node by node."""

    def __init__(self, topic: str, partition: int, offset: int, timeout_s: float) -> None:
        self._place = topic, partition, offset
        self._until = time.monotonic() + timeout_s
        self._ready = threading.Semaphore(0)
        self.arrived: dict[str, float] = {}
        self._errors: dict[str, str] = {}

    def follow(self, hop: Hop) -> None:
        from sapwood.client import KafkaError
        from sapwood.node.asking import NoAnswer, NodeConnection

        topic, partition, offset = self._place
        try:
            with NodeConnection(_address(hop.node)) as connection:
                connection.has_more(topic, partition, offset, 0)  # from now on it has it in view
                self._ready.release()
                while time.monotonic() < self._until:
                    if connection.has_more(topic, partition, offset, FETCH_WAIT_MS):
                        self.arrived[hop.name] = time.monotonic()
                        return
        except (NoAnswer, KafkaError) as error:
            self._errors[hop.name] = str(error)
            self._ready.release()

    def await_ready(self, count: int) -> bool:
        return all(self._ready.acquire(timeout=READY_S) for _ in range(count))

    def trouble(self) -> str:
        return "; ".join(self._errors.values()) or "no word in time"

    def state_of(self, hop: Hop) -> str:
        return self._errors.get(hop.name, "not in time")


def _tell(hops: Sequence[Hop], watch: _Watch, sent_at: float | None, output: str) -> None:
    if not watch.arrived:
        raise CommandFailed(f"no record came in time: {watch.trouble()}")
    began = min(watch.arrived.values()) if sent_at is None else sent_at
    rows = [
        {
            "hop": it.depth,
            "node": it.name,
            "address": _address(it.node),
            "from": it.above,
            "ms": 1000 * (watch.arrived[it.name] - began) if it.name in watch.arrived else None,
        }
        for it in hops
    ]
    if output == "json":
        print_json(rows)
        return
    print_table(
        ("HOP", "NODE", "ADDRESS", "FROM", "MS"),
        [
            (it["hop"], it["node"], it["address"], it["from"], shown)
            for it, hop in zip(rows, hops, strict=True)
            for shown in (it["ms"] if it["ms"] is not None else watch.state_of(hop),)
        ],
    )
