"""A cluster's directory on this machine: `cluster.json`, `secret`, one directory per node and edge.

`cluster.json` says that the cluster exists, and where its nodes listen. Before it is there the
first node founds the cluster; from then on nodes only ever join, even one whose data is gone.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from sapwood.node import secret

FILE_NAME = "cluster.json"
VERSION = 1
IDENTITY_NAME = "identity.json"
HOST = "127.0.0.1"
DEFAULT_PORT = 9092
GATEWAY_PORTS = {"rest": 8080, "lines": 7000}
OUTBOX_NAME = "outbox"
EDGE_PREFIX = "edge_"
"""Of the names of tables in `cluster.json` that are about edges."""
EDGE_FILE_NAME = "edge.json"
EDGES_FROM = 100
"""So far above the first node's port, edges listen."""


class LayoutUnusable(Exception):
    """The directory isn't one that such a cluster can be started in; says what to do."""


def node_directory(directory: Path, node_id: int) -> Path:
    return directory / f"node-{node_id}"


def edge_directory(directory: Path, index: int) -> Path:
    return directory / f"edge-{index}"


def edge_indexes(directory: Path) -> list[int]:
    """The edges that there have been; they are counted from 0."""
    names = [path.name.removeprefix("edge-") for path in directory.glob("edge-*")]
    return sorted(int(name) for name in names if name.isdigit())


def known_nodes(directory: Path) -> dict[int, str]:
    """Node id → the address it had last; empty if no cluster was founded here."""
    return _stored(directory).get("nodes", {})


def edge_identity(directory: Path) -> tuple[int, int] | None:
    """Id and incarnation of the edge with this directory; None if the cluster has given it none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads((directory / EDGE_FILE_NAME).read_text(encoding="utf-8"))
        return int(stored["id"]), int(stored["incarnation"])
    return None


def gateway_addresses(directory: Path, prefix: str = "") -> dict[str, dict[int, str]]:
    """What the gateways serve → node id → the address that the one beside it had last.

    With EDGE_PREFIX those beside edges, by the edges' indexes."""
    stored = _stored(directory)
    return {name: stored[prefix + name] for name in GATEWAY_PORTS if prefix + name in stored}


def _stored(directory: Path) -> dict[str, dict[int, str]]:
    path = directory / FILE_NAME
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        version = stored["version"]
        if version == VERSION:
            return {
                name: {int(node_id): str(address) for node_id, address in stored[name].items()}
                for name in ("nodes", *GATEWAY_PORTS, *(EDGE_PREFIX + it for it in GATEWAY_PORTS))
                if name in stored or name == "nodes"
            }
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

    def __init__(
        self,
        directory: Path,
        count: int | None,
        port: int | None,
        edges: int = 0,
        *,
        outbox: bool = False,
    ) -> None:
        """`count`: how many nodes, or None for those that there are. `port`: of node 0, the others
        follow; 0 for free ones; None for those that they had. `outbox`: whether edges have one;
        those that had one keep it."""
        self.directory = directory
        self._has_outbox = outbox
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
        self.edges = {
            index: f"{HOST}:{port + EDGES_FROM + index if port else free_port()}"
            for index in range(edges)
        }
        self._takes_free_ports = port == 0
        self.gateways = gateway_addresses(directory)
        self.edge_gateways: dict[str, dict[int, str]] = {}
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

    def edge_flags(
        self, index: int, parent: str | None = None, routes: Mapping[int, str] | None = None
    ) -> list[str]:
        """`routes`: node id → where this edge is to reach it."""
        flags = ["--edge", "--dir", str(edge_directory(self.directory, index))]
        flags += ["--listen", self.edges[index], "--secret-file", str(self.secret_file)]
        for node_id, address in self.addresses.items():
            flags += ["--join", (routes or {}).get(node_id, address)]
        for node_id, route in (routes or {}).items():
            flags += ["--set", f"peer_routes.{node_id}={route}"]
        if self._has_outbox or (edge_directory(self.directory, index) / OUTBOX_NAME).exists():
            flags.append("--outbox")
        return flags if parent is None else [*flags, "--parent", parent]

    def add_edge(self) -> int:
        """A place for one more edge."""
        index = max(self.edges, default=-1) + 1
        self.edges[index] = f"{HOST}:{free_port()}"
        return index

    def place_gateways(self, ports: Mapping[str, int | None]) -> None:
        """Give each node's gateway its addresses: those it had, if no port is named. Those beside
        edges are as far above as edges are."""
        for name, port in ports.items():
            had = {} if port else self.gateways.get(name, {})
            first = GATEWAY_PORTS[name] if port is None and not self._takes_free_ports else port
            self.gateways[name] = {
                node_id: had.get(node_id) or f"{HOST}:{first + node_id if first else free_port()}"
                for node_id in self.addresses
            }
            self.edge_gateways[name] = {
                index: f"{HOST}:{first + EDGES_FROM + index if first else free_port()}"
                for index in self.edges
            }

    def save(self) -> None:
        """The cluster exists."""
        tables = {
            name: {str(node_id): address for node_id, address in sorted(addresses.items())}
            for name, addresses in {
                "nodes": self.addresses,
                **self.gateways,
                **{EDGE_PREFIX + name: it for name, it in self.edge_gateways.items() if it},
            }.items()
        }
        path = self.directory / FILE_NAME
        temporary = path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"version": VERSION, **tables}, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._is_founded = True

    def add(self) -> int:
        """A place for one more node."""
        node_id = max(self.addresses) + 1
        self.addresses[node_id] = f"{HOST}:{free_port()}"
        for addresses in self.gateways.values():
            addresses[node_id] = f"{HOST}:{free_port()}"
        self.save()
        return node_id

    def forget(self, node_id: int) -> None:
        """The node has left the cluster; its data stays."""
        del self.addresses[node_id]
        for addresses in self.gateways.values():
            addresses.pop(node_id, None)
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
