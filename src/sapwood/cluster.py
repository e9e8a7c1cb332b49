"""A cluster for a program or a test: real nodes in their own processes, gone at the end."""

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from sapwood.node.layout import Layout
from sapwood.node.process import NodeFailed, NodeProcess, last_words

if TYPE_CHECKING:
    from sapwood.client import KafkaClient
    from sapwood.node.links import Links, Pair

# A node that somebody starts by hand must not find and join the cluster of a test.
OWN_SETTINGS = ["--set", "discoverable=false"]
# Links are laid before it is known how many nodes will join later.
SPARE_LINKS = 3
FIRST_EDGE_LINK = 10_000
STATUS_TIMEOUT_S = 2.0
POLL_S = 0.02

Nodes = int | Iterable[int]
Direction = Literal["both", "forth", "back"]


class Unhealthy(Exception):
    """The cluster didn't become whole in time; says what is missing."""


class Cluster:
    """`with sapwood.Cluster(nodes=3) as cluster:` starts nodes on free ports of this machine.

    `config` are node settings or Kafka broker configs (`{"num_partitions": 4,
    "log.retention.ms": 1000}`), `racks` those of the nodes. `topics` are created before the cluster
    is handed over: names, or names with their number of partitions. The data lies in a temporary
    directory, removed at the end, unless `data_dir` is given. With `proxied` the nodes reach each
    other through links that can be cut and slowed down. `edges` relay to clients of their own; with
    `outbox` they keep what they can't send now. If the program is killed, its nodes notice and
    stop. Nodes are counted from 0, and so are edges.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        edges: int = 0,
        outbox: bool = False,
        config: Mapping[str, Any] | None = None,
        topics: Iterable[str] | Mapping[str, int] = (),
        data_dir: str | Path | None = None,
        racks: Sequence[str] = (),
        proxied: bool = False,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: a cluster has at least one")
        self._settings = [f"{key}={_text(value)}" for key, value in (config or {}).items()]
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
        self._given_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._racks = racks
        self._proxied = proxied
        self._count = nodes
        self._edge_count = edges
        self._has_outbox = outbox
        sizes = [it for it in self._settings if it.startswith("outbox_")]
        self._edge_flags = [flag for it in sizes for flag in ("--set", it)]
        self._edges: dict[int, NodeProcess] = {}
        self._parents: dict[int, str] = {}
        self._dir: Path | None = None
        self._layout: Layout | None = None
        self._links: Links | None = None
        self._routes: dict[Pair, str] = {}
        self._nodes: dict[int, NodeProcess] = {}
        self._said_before: dict[int, int] = {}
        self._paused: set[int] = set()
        self._clock_offsets: dict[int, int] = {}

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """host:port of every node, for clients' bootstrap.servers."""
        return ",".join(self._layout.addresses.values()) if self._layout else ""

    @property
    def data_dir(self) -> Path:
        """Holds one directory per node, node-<i>, and its log beside it."""
        if self._dir is None:
            raise RuntimeError("the cluster isn't running: use it in a with statement, or start()")
        return self._dir

    @property
    def nodes(self) -> list[int]:
        """Every node, running or not."""
        return list(self.layout.addresses)

    @property
    def running(self) -> list[int]:
        """Those that were started and neither killed nor stopped since; a paused one runs."""
        return sorted(self._nodes)

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            raise RuntimeError("the cluster isn't running: use it in a with statement, or start()")
        return self._layout

    def address(self, index: int = 0) -> str:
        return self.layout.addresses[index]

    def start(self) -> None:
        """Start every node and create the topics; returns when all is ready."""
        self._dir = self._given_dir or Path(tempfile.mkdtemp(prefix="sapwood-"))
        self._dir.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        try:
            self._layout = Layout(self._dir, self._count, 0, outbox=self._has_outbox)
            if self._proxied:
                self._lay_links()
            for index in self.nodes:
                self._launch(index)
            if self._layout.founder is not None:
                self._await_ready(self._layout.founder)
            self._layout.save()
            for index in self.nodes:
                self._await_ready(index)
            if len(self.nodes) > 1:
                self.wait_healthy()
            if self._topics:
                self.create_topics(self._topics)
            edges = [self.layout.add_edge() for _ in range(self._edge_count)]
            for index in edges:
                self._launch_edge(index)
            for index in edges:
                self._await_edge(index)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop every node; remove the data unless its directory was given."""
        atexit.unregister(self.close)
        for index in list(self._paused):
            self.resume(index)
        # Edges first: they would look for other parents.
        for node in (*self._edges.values(), *self._nodes.values()):
            node.terminate()
        for node in (*self._edges.values(), *self._nodes.values()):
            node.stop()
        self._edges.clear()
        self._nodes.clear()
        if self._links is not None:
            self._links.close()
            self._links = None
        if self._dir is not None and self._given_dir is None:
            shutil.rmtree(self._dir, ignore_errors=True)
        self._dir = self._layout = None

    # Nodes

    def pid(self, index: int = 0) -> int:
        return self._node(index).pid

    def kill(self, index: int = 0) -> None:
        """SIGKILL: no good-bye, no last flush."""
        self._node(index).kill()
        del self._nodes[index]
        self._paused.discard(index)

    def stop(self, index: int = 0) -> int:
        """SIGTERM: an orderly stop, which hands leadership over; the exit status."""
        self.resume(index)
        status = self._node(index).stop()
        del self._nodes[index]
        return status

    def pause(self, index: int = 0) -> None:
        """SIGSTOP: as if its machine stood still."""
        os.kill(self.pid(index), signal.SIGSTOP)
        self._paused.add(index)

    def resume(self, index: int = 0) -> None:
        """SIGCONT: it goes on, and doesn't know that it was away."""
        if index in self._paused:
            os.kill(self.pid(index), signal.SIGCONT)
            self._paused.discard(index)

    def restart(
        self, index: int = 0, *, wait: bool = True, clock_offset_s: float | None = None
    ) -> None:
        """Start the node again, at the address it had; stop it first if it runs.

        `clock_offset_s`: from now on its clock is so much off.
        """
        if index in self._nodes:
            self.stop(index)
        if clock_offset_s is not None:
            self._clock_offsets[index] = int(clock_offset_s * 1000)
        self._launch(index)
        if wait:
            self._await_ready(index)

    def wipe(self, index: int) -> None:
        """Kill the node if it runs, and take all its data away; `restart` lets it join anew."""
        if index in self._nodes:
            self.kill(index)
        shutil.rmtree(self.layout.node_directory(index), ignore_errors=True)

    def add_node(self) -> int:
        """One more node joins; returns its number once it is ready."""
        if self._links is not None and (0, max(self.nodes) + 1) not in self._routes:
            raise ValueError(f"a proxied cluster has links for {SPARE_LINKS} more nodes at most")
        index = self.layout.add()
        if self._links is not None:
            self._links.place(index, self.address(index))
        self._launch(index)
        self._await_ready(index)
        return index

    # Edges

    def add_edge(self, parent: int | str | None = None) -> int:
        """One more edge; its number once it is ready.

        It wishes to hang from the edge of the number `parent`, or from whoever has that address.
        """
        index = self.layout.add_edge()
        if parent is not None:
            self._parents[index] = parent if isinstance(parent, str) else self.edge_address(parent)
        self.restart_edge(index)
        return index

    def edge_address(self, index: int = 0) -> str:
        return self.layout.edges[index]

    def edge_pid(self, index: int = 0) -> int:
        return self._edges[index].pid

    def kill_edge(self, index: int = 0) -> None:
        """SIGKILL."""
        self._edges.pop(index).kill()

    def stop_edge(self, index: int = 0) -> int:
        """SIGTERM: an orderly stop; the exit status."""
        return self._edges.pop(index).stop()

    def wipe_edge(self, index: int = 0) -> None:
        """Kill the edge if it runs, and take all its data away."""
        if index in self._edges:
            self.kill_edge(index)
        shutil.rmtree(self.data_dir / f"edge-{index}", ignore_errors=True)

    def restart_edge(self, index: int = 0) -> None:
        """Start the edge again, at the address it had; stop it first if it runs."""
        if index in self._edges:
            self._edges.pop(index).stop()
        self._launch_edge(index)
        self._await_edge(index)

    def _launch_edge(self, index: int) -> None:
        routes: dict[int, str] = {}
        parent = self._parents.get(index)
        if self._links is not None:
            # Links are laid to core nodes only: between edges there is nothing to cut.
            routes = self._links.open_from(self._link_of(index), self.nodes)
            at = {self.address(node): route for node, route in routes.items()}
            parent = None if parent is None else at.get(parent, parent)
        flags = [*self.layout.edge_flags(index, parent, routes), *OWN_SETTINGS, *self._edge_flags]
        with self._edge_log(index).open("ab") as log:
            self._edges[index] = NodeProcess(flags, log)

    def _await_edge(self, index: int) -> None:
        if self._edges[index].wait_until_ready() is None:
            self._edges.pop(index).stop()
            words = last_words(self._edge_log(index))
            raise NodeFailed(f"edge {index} didn't start: {words}")

    def edge_log(self, index: int = 0) -> str:
        """What the edge has logged so far, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return self._edge_log(index).read_text(encoding="utf-8", errors="replace")
        return ""

    def _edge_log(self, index: int) -> Path:
        return self.data_dir / f"edge-{index}.log"

    def log(self, index: int = 0) -> str:
        """What the node has logged so far, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return self._log_path(index).read_text(encoding="utf-8", errors="replace")
        return ""

    # Links

    def partition(self, a: Nodes, b: Nodes, direction: Direction = "both") -> None:
        """Cut nodes off from each other: nothing arrives, nothing is refused.

        `forth`: only what a sends is lost on its way to b; `back`: only what b sends."""
        self._need_links().cut(_ways(a, b, direction))

    def isolate(self, index: int) -> None:
        """Cut a node off from all others; clients still reach it."""
        self.partition(index, [other for other in self.nodes if other != index])

    def isolate_edge(self, index: int = 0) -> None:
        """Cut an edge off from all core nodes; clients and other edges still reach it."""
        self._need_links().cut(_ways(self._link_of(index), self.nodes, "both"))

    def delay(self, a: Nodes, b: Nodes, delay_ms: float, direction: Direction = "both") -> None:
        """What they send to each other arrives so much later."""
        self._need_links().delay(_ways(a, b, direction), delay_ms)

    def heal(self) -> None:
        """Every link is whole and fast again."""
        self._need_links().heal()

    # What it is like

    def status(self, index: int | None = None) -> Any:
        """What a node says of itself and the cluster; of the first that runs if none is named."""
        from sapwood.node.asking import NodeConnection

        if index is None:
            index = self._awake()[0]
        with NodeConnection(self.address(index), timeout_s=STATUS_TIMEOUT_S) as connection:
            return connection.status()

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads the partition by the newest that any node knows; -1 if nobody does."""
        from sapwood.node.asking import NoAnswer, NodeConnection

        newest = (-1, -1)
        for index in self._awake():
            with contextlib.suppress(NoAnswer):
                address = self.address(index)
                with NodeConnection(address, timeout_s=STATUS_TIMEOUT_S) as connection:
                    newest = max(newest, connection.leader(topic, partition))
        return newest[1]

    def wait_healthy(self, timeout_s: float = 60) -> None:
        """Until every node runs, and each says that nothing is amiss in the whole cluster."""
        deadline = time.monotonic() + timeout_s
        while complaints := self._complaints():
            if time.monotonic() > deadline:
                raise Unhealthy(f"after {timeout_s:g} s: {'; '.join(complaints)}")
            time.sleep(POLL_S)

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics with their numbers of partitions; -1 is the cluster's default."""
        from sapwood.client.admin import NewTopic

        with self._client() as client:
            client.create_topics([NewTopic(name, count) for name, count in topics.items()])

    def _complaints(self) -> list[str]:
        from sapwood.node.asking import NoAnswer

        found = []
        for index in self.nodes:
            if index not in self._nodes:
                found.append(f"node {index} isn't running")
                continue
            try:
                status = self.status(index)
            except NoAnswer as error:
                found.append(f"node {index}: {error}")
                continue
            alive = sum(node.alive for node in status.nodes)
            if not status.healthy or alive != len(self.nodes):
                found.append(
                    f"node {index} sees {alive} of {len(self.nodes)} nodes alive, and partitions: "
                    f"{status.under_replicated} under-replicated, {status.offline} offline, "
                    f"{status.leaderless} without a leader, {status.reassigning} moving"
                )
        return found

    def _client(self) -> "KafkaClient":
        from sapwood.client import KafkaClient

        return KafkaClient([self.address(index) for index in self._awake()])

    def _awake(self) -> list[int]:
        found = [index for index in self._nodes if index not in self._paused]
        if not found:
            raise RuntimeError("no node is running")
        return found

    def _node(self, index: int) -> NodeProcess:
        if index not in self._nodes:
            raise RuntimeError(f"node {index} isn't running")
        return self._nodes[index]

    def _log_path(self, index: int) -> Path:
        return self.data_dir / f"node-{index}.log"

    def _lay_links(self) -> None:
        from sapwood.node.links import Links

        self._links = Links()
        self._routes = self._links.open(range(max(self.nodes) + 1 + SPARE_LINKS))
        for index, address in self.layout.addresses.items():
            self._links.place(index, address)

    @staticmethod
    def _link_of(edge: int) -> int:
        """The number that an edge has among the links."""
        return FIRST_EDGE_LINK + edge

    def _need_links(self) -> "Links":
        if self._links is None:
            raise RuntimeError("links can't be cut unless the cluster is made with proxied=True")
        return self._links

    def _launch(self, index: int) -> None:
        flags = [*self.layout.flags(index), *OWN_SETTINGS]
        if index < len(self._racks):
            flags += ["--rack", self._racks[index]]
        for (a, b), address in self._routes.items():
            if a == index:
                flags += ["--set", f"peer_routes.{b}={address}"]
        if index in self._clock_offsets:
            flags += ["--set", f"clock_offset_ms={self._clock_offsets[index]}"]
        for setting in self._settings:
            flags += ["--set", setting]
        with self._log_path(index).open("ab") as log:
            self._said_before[index] = log.tell()
            self._nodes[index] = NodeProcess(flags, log)

    def _await_ready(self, index: int) -> None:
        node = self._node(index)
        if node.wait_until_ready() is None:
            node.stop()
            del self._nodes[index]
            words = last_words(self._log_path(index), self._said_before[index])
            raise NodeFailed(f"node {index} didn't start: {words}")


def _ways(a: Nodes, b: Nodes, direction: Direction) -> list["Pair"]:
    firsts, seconds = ([it] if isinstance(it, int) else list(it) for it in (a, b))
    forth = [(first, second) for first in firsts for second in seconds if first != second]
    back = [(second, first) for first, second in forth]
    return {"forth": forth, "back": back, "both": forth + back}[direction]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
