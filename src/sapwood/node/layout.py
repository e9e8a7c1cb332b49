"""A cluster's directory on this machine: `cluster.json`, `secret`, and one directory per node.

`cluster.json` says that the cluster exists, and where its nodes listen. Before it is there the
first node founds the cluster; from then on nodes only ever join, even one whose data is gone.
"""

import contextlib
import json
import os
from pathlib import Path

from sapwood.node import secret

FILE_NAME = "cluster.json"
VERSION = 1
IDENTITY_NAME = "identity.json"
HOST = "127.0.0.1"
DEFAULT_PORT = 9092


class LayoutUnusable(Exception):
    """The directory isn't one that such a cluster can be started in; says what to do."""


def node_directory(directory: Path, node_id: int) -> Path:
    return directory / f"node-{node_id}"


def known_nodes(directory: Path) -> dict[int, str]:
    """Node id → the address it had last; empty if no cluster was founded here."""
    path = directory / FILE_NAME
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        version = stored["version"]
        if version == VERSION:
            return {int(node_id): str(address) for node_id, address in stored["nodes"].items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutUnusable(f"{path} is damaged ({error}): restore it from a backup") from error
    raise LayoutUnusable(f"{path} has version {version}: use a newer release")


def node_ids(directory: Path) -> list[int]:
    """The cluster's nodes, or those that have a directory if it has no file yet."""
    with contextlib.suppress(LayoutUnusable):
        if known := known_nodes(directory):
            return sorted(known)
    names = [path.name.removeprefix("node-") for path in directory.glob("node-*")]
    return sorted(int(name) for name in names if name.isdigit())


class Layout:
    """Which nodes there are, and the flags that each is started with."""

    def __init__(self, directory: Path, count: int | None, port: int | None) -> None:
        """`count`: how many nodes, or None for those that there are. `port`: of node 0, the others
        follow; 0 for free ones; None for those that they had."""
        self.directory = directory
        known = known_nodes(directory)
        ids = node_ids(directory)
        if count is not None and count < len(ids):
            raise LayoutUnusable(
                f"{directory} has a cluster of {len(ids)} nodes: start them all, and take one out "
                "with sapwood node drain ID and sapwood node remove ID"
            )
        if known and not any(self._has_identity(node_id) for node_id in known):
            raise LayoutUnusable(
                f"the data of all nodes in {directory} is gone: remove {directory / FILE_NAME} "
                "to begin anew"
            )
        self._is_founded = bool(known)
        while len(ids) < (count or 1):
            ids.append(ids[-1] + 1 if ids else 0)
        if port is None:
            first = min(known, default=0)
            port = _port(known[first]) - first if known else DEFAULT_PORT
            kept = known
        else:
            kept = known if port == 0 else {}
        self.addresses = {
            node_id: kept.get(node_id) or f"{HOST}:{port + node_id if port else free_port()}"
            for node_id in ids
        }
        directory.mkdir(parents=True, exist_ok=True)
        if not known:
            secret.ensure(self.secret_file)

    @property
    def secret_file(self) -> Path:
        return self.directory / secret.FILE_NAME

    @property
    def founder(self) -> int | None:
        """The node that is to found the cluster, which has to be ready before it counts."""
        return None if self._is_founded else next(iter(self.addresses))

    def node_directory(self, node_id: int) -> Path:
        return node_directory(self.directory, node_id)

    def flags(self, node_id: int) -> list[str]:
        """How to start the node, at this moment of the cluster's life."""
        flags = ["--id", str(node_id), "--dir", str(self.node_directory(node_id))]
        flags += ["--listen", self.addresses[node_id], "--secret-file", str(self.secret_file)]
        if node_id == self.founder:
            return [*flags, "--bootstrap"]
        others = [address for other, address in self.addresses.items() if other != node_id]
        for address in others or [self.addresses[node_id]]:  # never any other cluster
            flags += ["--join", address]
        return flags

    def save(self) -> None:
        """The cluster exists."""
        nodes = {str(node_id): address for node_id, address in sorted(self.addresses.items())}
        path = self.directory / FILE_NAME
        temporary = path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"version": VERSION, "nodes": nodes}, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._is_founded = True

    def add(self) -> int:
        """A place for one more node."""
        node_id = max(self.addresses) + 1
        self.addresses[node_id] = f"{HOST}:{free_port()}"
        self.save()
        return node_id

    def forget(self, node_id: int) -> None:
        """The node has left the cluster; its data stays."""
        del self.addresses[node_id]
        self.save()

    def _has_identity(self, node_id: int) -> bool:
        return (self.node_directory(node_id) / IDENTITY_NAME).exists()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def free_port() -> int:
    """A port that nobody is given by chance for the next minute.

    A connection that its server's side has closed keeps the port from being picked for others,
    but not from being bound by whoever asks for it.
    """
    import socket  # the start of a supervisor whose ports are given shouldn't wait for it

    with socket.socket() as listening, socket.socket() as client:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, 0))
        listening.listen(1)
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
        port: int = listening.getsockname()[1]
        accepted.close()
        client.recv(1)
    return port
