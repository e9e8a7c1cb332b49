"""The nodes that live under one directory of this machine: where they are and how they are."""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from sapwood.node import ready
from sapwood.node.layout import (
    EDGE_PREFIX,
    OUTBOX_NAME,
    LayoutUnusable,
    edge_directory,
    edge_identity,
    edge_indexes,
    gateway_addresses,
    node_directory,
    node_ids,
)
from sapwood.node.lock import holder, is_locked

SUPERVISOR_LOCK = "supervisor.lock"
CONNECT_TIMEOUT_S = 2.0
GATEWAYS_AS = {"rest": "http", "lines": "lines"}
"""What a gateway serves, as a node's addresses name it."""


class NodeState(NamedTuple):
    id: int | None
    """None for an edge that the cluster hasn't given one yet."""
    kind: str
    addresses: dict[str, str]
    """Where it listens, and where the gateway that the supervisor keeps beside it does."""
    pid: int | None
    state: str
    """running, starting or stopped"""


def default_directory() -> Path:
    given = os.environ.get("SAPWOOD_DIR")
    return Path(given).expanduser() if given else Path.home() / ".sapwood"


def supervisor_pid(directory: Path) -> int | None:
    """The process that supervises the nodes of this directory; None if none does."""
    lock = directory / SUPERVISOR_LOCK
    return holder(lock) if is_locked(lock) else None


def node_states(directory: Path) -> list[NodeState]:
    """Every node under the directory, or the one whose own data directory it is."""
    if (directory / ready.LOCK_NAME).exists():
        return [_node_state(directory, 0, "core", {}, supervised=False)]
    supervised = supervisor_pid(directory) is not None
    beside = _beside(directory, "")
    return [
        _node_state(
            node_directory(directory, node_id),
            node_id,
            "core",
            beside.get(node_id, {}),
            supervised=supervised,
        )
        for node_id in node_ids(directory)
    ]


def edge_states(directory: Path) -> list[NodeState]:
    """Every edge under the directory that runs, or belonged to the cluster when it was last up."""
    supervised = supervisor_pid(directory) is not None
    beside = _beside(directory, EDGE_PREFIX)
    found = []
    for index in edge_indexes(directory):
        folder = edge_directory(directory, index)
        if index in beside or is_locked(folder / ready.LOCK_NAME):
            edge_id, _ = edge_identity(folder) or (None, 0)
            gateway = beside.get(index, {})
            found.append(_node_state(folder, edge_id, "edge", gateway, supervised=supervised))
    return found


def _beside(directory: Path, prefix: str) -> dict[int, dict[str, str]]:
    """Node id, or an edge's index → the addresses of the gateway beside it."""
    found: dict[int, dict[str, str]] = {}
    with contextlib.suppress(LayoutUnusable):
        for name, addresses in gateway_addresses(directory, prefix).items():
            for index, address in addresses.items():
                found.setdefault(index, {})[GATEWAYS_AS[name]] = address
    return found


def outbox_addresses(directory: Path) -> list[str]:
    """Where the edges under the directory listen that run and have an outbox."""
    found = []
    for index in edge_indexes(directory):
        folder = edge_directory(directory, index)
        told = ready.read(folder) if is_locked(folder / ready.LOCK_NAME) else None
        if told is not None and (folder / OUTBOX_NAME).exists():
            found.append(ready.local_address(next(iter(told["listeners"].values()))))
    return found


def _node_state(
    directory: Path, node_id: int | None, kind: str, gateway: dict[str, str], *, supervised: bool
) -> NodeState:
    lock = directory / ready.LOCK_NAME
    found = ready.read(directory)
    if not is_locked(lock):
        # A supervisor whose node has ended is about to start it again.
        return NodeState(node_id, kind, {}, None, "starting" if supervised else "stopped")
    if found is None or not all(map(_answers, found["listeners"].values())):
        return NodeState(node_id, kind, {}, holder(lock), "starting")
    addresses = found["listeners"] | (gateway if supervised else {})
    return NodeState(found["node_id"], found["kind"], addresses, found["pid"], "running")


def _answers(address: str) -> bool:
    import socket  # only `status` needs it, and the start of a supervisor shouldn't wait for it

    host, _, port = ready.local_address(address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
