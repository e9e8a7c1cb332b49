"""The nodes that live under one directory of this machine: where they are and how they are."""

import os
from pathlib import Path
from typing import NamedTuple

from sapwood.node import ready
from sapwood.node.layout import (
    OUTBOX_NAME,
    edge_directory,
    edge_indexes,
    node_directory,
    node_ids,
)
from sapwood.node.lock import holder, is_locked

SUPERVISOR_LOCK = "supervisor.lock"
CONNECT_TIMEOUT_S = 2.0


class NodeState(NamedTuple):
    id: int
    kind: str
    addresses: dict[str, str]
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
        return [_node_state(directory, 0, supervised=False)]
    supervised = supervisor_pid(directory) is not None
    return [
        _node_state(node_directory(directory, node_id), node_id, supervised=supervised)
        for node_id in node_ids(directory)
    ]


def edge_states(directory: Path) -> list[NodeState]:
    """Every edge under the directory."""
    supervised = supervisor_pid(directory) is not None
    return [
        _node_state(edge_directory(directory, index), index, supervised=supervised)
        for index in edge_indexes(directory)
    ]


def outbox_addresses(directory: Path) -> list[str]:
    """Where the edges under the directory listen that run and have an outbox."""
    found = []
    for index in edge_indexes(directory):
        folder = edge_directory(directory, index)
        told = ready.read(folder) if is_locked(folder / ready.LOCK_NAME) else None
        if told is not None and (folder / OUTBOX_NAME).exists():
            found.append(ready.local_address(next(iter(told["listeners"].values()))))
    return found


def _node_state(directory: Path, index: int, *, supervised: bool) -> NodeState:
    lock = directory / ready.LOCK_NAME
    found = ready.read(directory)
    if not is_locked(lock):
        # A supervisor whose node has ended is about to start it again.
        return NodeState(index, "core", {}, None, "starting" if supervised else "stopped")
    if found is None or not all(map(_answers, found["listeners"].values())):
        return NodeState(index, "core", {}, holder(lock), "starting")
    return NodeState(found["node_id"], found["kind"], found["listeners"], found["pid"], "running")


def _answers(address: str) -> bool:
    import socket  # only `status` needs it, and the start of a supervisor shouldn't wait for it

    host, _, port = ready.local_address(address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
