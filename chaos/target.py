"""The cluster under test: its processes, their files, and the ways between them and to clients."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

import sapwood
from chaos.direct import Direct, Known, NoAnswer, Refused
from chaos.disk import SmallDisk
from chaos.history import Recorder, Trouble
from chaos.proxy import Direction, Proxy
from sapwood.cluster import Unhealthy
from sapwood.node import secret
from sapwood.node.asking import NoAnswer as NodeAway
from sapwood.node.asking import NodeConnection
from sapwood.replica.replicas import DAMAGED
from sapwood.wire.codec import Struct
from sapwood.wire.errors import KafkaError

STOP_TIMEOUT_S = 30.0
EVERY_S = 0.05
SMALL_DISK_MIB = 256
DRAIN_PATIENCE_S = 30.0
MOVING_PATIENCE_S = 90.0
REFILLING_PATIENCE_S = 20.0
LAST_LINES = 5


Place = tuple[str, int]


class Unhealed(Exception):
    """The cluster didn't come to rest after the faults were over."""


class _Cluster(sapwood.Cluster):
    """One whose nodes tell clients to come through the proxy."""

    hops: dict[int, str] = {}

    def _launch(self, index: int) -> None:
        if index in self.hops:
            os.environ["SAPWOOD_ADVERTISED"] = self.hops[index]
        try:
            super()._launch(index)
        finally:
            os.environ.pop("SAPWOOD_ADVERTISED", None)


class Target:
    """Nodes are counted from 0. Each is up (or about to be), paused, or down."""

    def __init__(
        self,
        recorder: Recorder,
        directory: Path,
        nodes: int,
        *,
        small_disk: int | None = None,
        linked: bool = False,
        hops: bool = False,
    ) -> None:
        """`small_disk`: the node whose disk can be filled. `linked`: ways between nodes can be cut
        and slowed down; `hops`: those of the clients to the nodes."""
        self.paused: set[int] = set()
        self.down: set[int] = set()
        self.disk: SmallDisk | None = None
        self.small_disk = small_disk
        self.keep = True
        """Whether what lies on a small disk is kept at the end."""
        self.proxy: Proxy | None = None
        self._recorder = recorder
        self._directory = directory / "cluster"
        self._has_hops = hops
        self._lock = threading.RLock()  # the nemesis strikes while the run looks for crashes
        self._drained: set[int] = set()
        self._bad_links: list[Callable[[], None]] = []
        linked = nodes > 1 and (linked or hops)  # nodes must not come to each other through hops
        self._cluster = _Cluster(nodes, data_dir=self._directory, proxied=linked)
        self._first_nodes = range(nodes)

    def __enter__(self) -> "Target":
        try:
            if self.small_disk is not None:
                for node in self._first_nodes:  # a directory alone would count as the only node
                    self.files(node).mkdir(parents=True)
                self.disk = SmallDisk(self.files(self.small_disk), SMALL_DISK_MIB)
            if self._has_hops:
                self.proxy = Proxy()
                opened = self.proxy.open(str(node) for node in self._first_nodes)
                self._cluster.hops = {int(node): address for node, address in opened.items()}
            self._cluster.start()
            if self.proxy is not None:
                nodes = self._first_nodes
                self.proxy.lead({str(node): self._cluster.address(node) for node in nodes})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()
        if self.proxy is not None:
            self.proxy.close()
        if self.disk is not None:
            disk, self.disk = self.disk, None
            disk.close(keep=self.keep)

    # What it is like

    @property
    def nodes(self) -> list[int]:
        return self._cluster.nodes

    @property
    def up(self) -> list[int]:
        return [node for node in self.nodes if node not in self.paused | self.down]

    @property
    def bootstrap(self) -> str:
        """For clients: over the hops, if there are any."""
        return ",".join(self._cluster.hops.values()) or self._cluster.bootstrap

    def address(self, node: int) -> str:
        """The node's own."""
        return self._cluster.address(node)

    def files(self, node: int) -> Path:
        return self._directory / f"node-{node}"

    def leader(self, topic: str, partition: int) -> int:
        """Who leads it by what a living node says; -1 if nobody knows."""
        known = self.partitions([topic]).get((topic, partition))
        return -1 if known is None else known.leader

    def partitions(self, topics: list[str]) -> dict[tuple[str, int], Known]:
        for node in self.up:
            try:
                with Direct(self.address(node), timeout_s=1.0) as direct:
                    return direct.partitions(topics)
            except (NoAnswer, Refused):
                continue
        return {}

    def unknown(self, partitions: list[tuple[str, int]]) -> list[tuple[int, str, int]]:
        """(node, topic, partition) where a node doesn't know who leads."""
        topics = list({topic for topic, _ in partitions})
        found = []
        for node in self.up:
            known: dict[Place, Known] = {}
            with contextlib.suppress(NoAnswer, Refused), Direct(self.address(node)) as direct:
                known = direct.partitions(topics)
            found += [
                (node, *place)
                for place in partitions
                if place not in known or known[place].leader < 0
            ]
        return found

    def controller(self) -> int:
        for node in self.up:
            try:
                return int(self._cluster.status(node).controller)
            except NodeAway:
                continue
        return -1

    def offline(self) -> list[str]:
        """Partitions that a node refuses to serve, with its reason."""
        found = []
        for node in self.up:
            try:
                status = self._cluster.status(node)
            except NodeAway:
                continue
            found += [
                f"{it.topic}-{it.partition} at node {node}: {it.reason}"
                for it in status.offline_partitions
            ]
        return found

    def mended(self) -> list[tuple[int, str, int]]:
        """(node, topic, partition) of each damaged copy that was put aside, to be filled again."""
        found = []
        for node in self.nodes:
            for path in sorted(self.files(node).glob(f"logs/*{DAMAGED}*")):
                topic, _, partition = path.name.partition(".")[0].rpartition("-")
                found.append((node, topic, int(partition)))
        return found

    def committed(self, nodes: Iterable[int]) -> dict[Place, int]:
        """Up to where the newest of these nodes knows each partition to be."""
        found: dict[Place, int] = {}
        for it in self._replicas(nodes):
            key = it.topic, it.partition
            found[key] = max(found.get(key, 0), it.high_watermark)
        return found

    def lacks(self, node: int, ends: dict[Place, int]) -> dict[Place, int]:
        """Of the partitions that it has begun to fill, how many offsets it hasn't got yet."""
        has = {(it.topic, it.partition): it.log_end for it in self._replicas([node])}
        return {key: end - has[key] for key, end in ends.items() if has.get(key, end) < end}

    def await_refilling(self, node: int, ends: dict[Place, int]) -> Place | None:
        """Where it lacks most, as soon as it has begun; None if it is never seen to lack any."""
        deadline = time.monotonic() + REFILLING_PATIENCE_S
        while time.monotonic() < deadline:
            if lacks := self.lacks(node, ends):
                return max(lacks, key=lacks.__getitem__)
            time.sleep(EVERY_S)
        return None

    def _replicas(self, nodes: Iterable[int]) -> Iterator[Struct]:
        words = secret.read(self._cluster.layout.secret_file)
        for node in nodes:
            with (
                contextlib.suppress(NodeAway, KafkaError),
                NodeConnection(self.address(node), words) as connection,
            ):
                yield from connection.describe_replicas()

    def _shares(self) -> tuple[dict[int, int], bool]:
        for node in self.up:
            try:
                status = self._cluster.status(node)
            except NodeAway:
                continue
            return {it.node_id: it.replicas for it in status.nodes}, status.reassigning > 0
        return {}, True

    def describe(self) -> dict[str, object]:
        """What each node says of itself and of its replicas, to be looked at by people."""
        words = secret.read(self._cluster.layout.secret_file)
        found: dict[str, object] = {}
        for node in self.up:
            try:
                with NodeConnection(self.address(node), words) as connection:
                    replicas = [repr(it) for it in connection.describe_replicas()]
                    found[f"node {node}"] = {"status": repr(connection.status()), "has": replicas}
            except (NodeAway, KafkaError) as error:
                found[f"node {node}"] = str(error)
        return found

    def await_health(self, patience_s: float) -> None:
        """A lone node is well if it answers: what it lost nobody can give back."""
        if len(self.nodes) > 1:
            try:
                self._cluster.wait_healthy(patience_s)
            except Unhealthy as error:
                raise Unhealed(str(error)) from error
            return
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._cluster.status(0)
                return
            except NodeAway as error:
                if time.monotonic() > deadline:
                    raise Unhealed(f"after {patience_s} s: {error}") from error
            time.sleep(EVERY_S)

    # What is done to its processes

    def kill(self, node: int) -> None:
        with self._lock:
            self._cluster.kill(node)
            self._went_down(node)

    def stop(self, node: int) -> None:
        """SIGTERM."""
        with self._lock:
            if self._cluster.stop(node) == -signal.SIGKILL:
                self.complain(f"node {node}", f"didn't stop within {STOP_TIMEOUT_S} s")
            self._went_down(node)

    def interrupt(self, node: int) -> None:
        """SIGINT, as Ctrl-C does."""
        with self._lock:
            process = psutil.Process(self._cluster.pid(node))
            process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(EVERY_S)
            self.stop(node)

    def pause(self, node: int) -> None:
        with self._lock:
            self._cluster.pause(node)
            self.paused.add(node)

    def resume(self, node: int) -> None:
        with self._lock:
            if node in self.paused:
                self._cluster.resume(node)
                self.paused.discard(node)

    def start(self, node: int) -> None:
        """Begin to: a node may need others to be ready, so nobody waits for it here."""
        with self._lock:
            if node in self.down:
                self._cluster.restart(node, wait=False)
                self.down.discard(node)

    def wipe(self, node: int) -> None:
        with self._lock:
            self._cluster.wipe(node)
            self._went_down(node)

    def add(self) -> int:
        with self._lock:
            return self._cluster.add_node()

    def drain(self, node: int) -> bool:
        """Whether the cluster has taken it on."""
        done = self._order(lambda connection: connection.drain(node))
        if done:
            self._drained.add(node)
        return done

    def await_shares(self, is_so: Callable[[dict[int, int]], bool]) -> dict[int, int]:
        """How many replicas each node holds, when that is so and nothing moves any more."""
        deadline = time.monotonic() + MOVING_PATIENCE_S
        while True:
            held, is_moving = self._shares()
            if (is_so(held) and not is_moving) or time.monotonic() > deadline:
                return held
            time.sleep(EVERY_S)

    def undrain(self, node: int) -> bool:
        done = self._order(lambda connection: connection.undrain(node))
        if done:
            self._drained.discard(node)
        return done

    # What is done to its links

    def cut(self, node: int, others: Iterable[int], direction: Direction) -> Callable[[], None]:
        """Between a node and others; returns how to mend it."""
        there = list(others)
        return self._spoil(lambda: self._cluster.partition(node, there, direction))

    def slow(self, node: int, others: Iterable[int], delay_ms: float) -> Callable[[], None]:
        there = list(others)
        return self._spoil(lambda: self._cluster.delay(node, there, delay_ms))

    # What helps it

    def heal(self) -> None:
        """Everybody runs again, reaches everybody and has room."""
        if self.disk is not None:
            self.disk.free()
        if self.proxy is not None:
            self.proxy.heal(str(node) for node in self._first_nodes)
        if self._bad_links:
            self._bad_links.clear()
            self._cluster.heal()
        for node in list(self.paused):
            self.resume(node)
        for node in list(self.down):
            self.start(node)
        deadline = time.monotonic() + DRAIN_PATIENCE_S
        while self._drained and time.monotonic() < deadline:
            for node in list(self._drained):
                self.undrain(node)

    def notice_crashes(self) -> None:
        """A node that ended by itself is a bug, whatever was done to it; it is started again.

        Unless its disk is full to the last byte: then to give up is no crime, and it has to wait.
        """
        with self._lock:
            for node in self.up:
                if psutil.Process(self._cluster.pid(node)).status() != psutil.STATUS_ZOMBIE:
                    continue
                words = self._cluster.log(node).splitlines()[-LAST_LINES:]
                has_room = node != self.small_disk or self.disk is None or not self.disk.is_full
                self.complain(
                    f"node {node}", f"ended by itself: {' / '.join(words)}", fatal=has_room
                )
                self.kill(node)
                if has_room:
                    self.start(node)

    def complain(self, who: str, text: str, *, fatal: bool = True) -> None:
        at = self._recorder.now()
        self._recorder.add(Trouble(client=who, at=at, error=text, fatal=fatal))

    def _went_down(self, node: int) -> None:
        self.paused.discard(node)
        self.down.add(node)

    def _spoil(self, spoil: Callable[[], None]) -> Callable[[], None]:
        def mend() -> None:
            with self._lock:
                if spoil not in self._bad_links:  # healed meanwhile
                    return
                self._bad_links.remove(spoil)
                self._cluster.heal()
                for other in self._bad_links:
                    other()

        with self._lock:
            self._bad_links.append(spoil)
            spoil()
        return mend

    def _order(self, command: Callable[[NodeConnection], None]) -> bool:
        words = secret.read(self._cluster.layout.secret_file)
        for node in self.up:
            try:
                with NodeConnection(self.address(node), words) as connection:
                    command(connection)
                return True
            except (NodeAway, KafkaError):
                continue
        return False
