"""The work: which rows there are, and one broker's turn at all of them."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bench.jobs import Jobs
from bench.peers import SPEAK_KAFKA, LoadFailed, Peer
from bench.processes import MemoryWatch, OthersWatch, free_ports

CLUSTER = 3
MIB = 1024 * 1024


class Metric(NamedTuple):
    name: str
    title: str
    unit: str
    higher_is_better: bool


METRICS = {
    metric.name: metric
    for metric in (
        Metric("produce", "Produce", "messages/s", True),
        Metric("consume", "Consume", "messages/s", True),
        Metric("p50", "Produce latency at 1,000/s, p50", "ms", False),
        Metric("p99", "Produce latency at 1,000/s, p99", "ms", False),
        Metric("produce_cpu", "Broker's CPU, produce", "s per million messages", False),
        Metric("consume_cpu", "Broker's CPU, consume", "s per million messages", False),
        Metric("memory", "Memory, peak", "MiB", False),
        Metric("start", "Start to first acknowledged message", "s", False),
        Metric("failover", "Longest gap in acknowledgements, leader killed", "s", False),
        Metric("many_create", "Many partitions: created, all replicas in sync", "s", False),
        Metric("many_used", "Many partitions: and messages to all of them", "s", False),
        Metric("many_idle", "Many partitions: idle, CPU of the busiest node", "%", False),
        Metric("many_idle_all", "Many partitions: idle, CPU of all nodes", "%", False),
        Metric("many_memory", "Many partitions: memory of all nodes", "MiB", False),
        Metric("many_failover", "Many partitions: a node killed, new leaders", "s", False),
        Metric(
            "many_acknowledged", "Many partitions: and messages to all, a node less", "s", False
        ),
        Metric("many_return", "Many partitions: it restarts, all in sync", "s", False),
    )
}
# A name for all of a kind.
GROUPS = {"partitions": tuple(name for name in METRICS if name.startswith("many_"))}


class Row(NamedTuple):
    """What one number was measured on; a field that makes no difference is None."""

    metric: str
    synced: bool
    size: int | None = None
    partitions: int | None = None
    keyed: bool = False
    nodes: int = 1


@dataclass(frozen=True)
class Work:
    """How much of what. `messages` is for 100 bytes; larger ones come in smaller numbers."""

    sizes: tuple[int, ...] = (100, 1000)
    partitions: tuple[int, ...] = (1, 12, 60)
    durabilities: tuple[bool, ...] = (True, False)
    metrics: frozenset[str] = frozenset(METRICS)
    messages: int = 2_000_000
    limit_s: float = 5.0
    latency_s: int = 8
    warm_up_messages: int = 200_000
    nodes: tuple[int, ...] = (1, CLUSTER)
    kills: int = 5
    many: int = 3_000
    settle_s: int = 5
    idle_s: int = 20

    def quick(self) -> "Work":
        return replace(
            self, partitions=(12,), messages=500_000, limit_s=2.0, latency_s=3, kills=2, idle_s=5
        )

    def count(self, size: int) -> int:
        return self.messages if size <= 100 else self.messages * 3 // 10

    def throughput_rows(self) -> Iterator[tuple[int, int, bool]]:
        """Size, partitions, keyed. Without keys a client may fill one partition at a time."""
        if self.metrics & {"produce", "consume", "produce_cpu", "consume_cpu"}:
            for size in self.sizes:
                for partitions in self.partitions:
                    yield size, partitions, False
                    if partitions > 1:
                        yield size, partitions, True

    def latency_rows(self) -> Iterator[tuple[int, int]]:
        if self.metrics & {"p50", "p99"}:
            for size in self.sizes:
                for partitions in self.partitions:
                    yield size, partitions


Record = Callable[[Row, float], None]
Say = Callable[[str], None]


@dataclass
class Turn:
    """One broker's turn: fresh, and gone with its data afterwards."""

    name: str
    peer: Peer
    work: Work
    synced: bool
    nodes: int
    record: Record
    say: Say
    others: float = 0.0
    """The share of the machine that others used meanwhile."""

    def rows(self) -> None:
        """Every row but those of many partitions."""
        work = self.work
        with self._running() as jobs:
            watch = MemoryWatch(jobs.roots)
            watch.start()
            try:
                self._throughput(jobs)
                self._latency(jobs)
            finally:
                peak_bytes = watch.end()
            self.record(self._row("memory"), peak_bytes / MIB)
            if self.nodes > 1 and "failover" in work.metrics:
                self.say("failover")
                for gap_s in jobs.failover(self.peer, work.kills)["gaps_s"]:
                    self.record(self._row("failover"), gap_s)

    def many(self) -> None:
        """The rows of many partitions."""
        work = self.work
        with self._running() as jobs:
            self.say(f"{work.many} partitions")
            found = jobs.many(self.peer, work.many, work.idle_s, work.settle_s)
            values = {
                "many_create": found["create_s"],
                "many_used": found["used_s"],
                "many_idle": max(found["idle_cpu"]) * 100,
                "many_idle_all": sum(found["idle_cpu"]) * 100,
                "many_memory": sum(found["memory_bytes"]) / MIB,
                "many_failover": found["failover_s"],
                "many_acknowledged": found["acknowledged_s"],
                "many_return": found["return_s"],
            }
            for metric, value in values.items():
                self.record(self._row(metric, partitions=work.many), value)

    def _row(
        self,
        metric: str,
        size: int | None = None,
        partitions: int | None = None,
        keyed: bool = False,
    ) -> Row:
        return Row(metric, self.synced, size, partitions, keyed, self.nodes)

    @contextlib.contextmanager
    def _running(self) -> Iterator[Jobs]:
        directory = Path(tempfile.mkdtemp(prefix=f"sapwood-bench-{self.name}-"))
        ports = free_ports(self.nodes)
        jobs = Jobs(self.name, ports, self.synced)
        others = OthersWatch()
        try:
            self.say("starting")
            start_s = jobs.first(lambda: self.peer.start(directory, ports, synced=self.synced))
            self.record(self._row("start"), start_s)
            jobs.roots = self.peer.roots()
            yield jobs
            self.others = others.share(jobs.roots)
        except LoadFailed as error:
            raise LoadFailed(f"{error}\n{_last_words(directory)}") from error
        finally:
            self.peer.stop()
            shutil.rmtree(directory, ignore_errors=True)

    def _throughput(self, jobs: Jobs) -> None:
        work = self.work
        self.say("warming up")
        jobs.throughput(100, 1, work.warm_up_messages, work.limit_s, keyed=False)
        for size, partitions, keyed in work.throughput_rows():
            if keyed and self.name not in SPEAK_KAFKA:
                continue  # the others know no keys
            self.say(f"{size} B, {partitions} partitions{', keyed' if keyed else ''}")
            found = jobs.throughput(size, partitions, work.count(size), work.limit_s, keyed=keyed)
            count = found["count"]
            row = self._row("", size, partitions, keyed)
            self.record(row._replace(metric="produce"), count / found["produce_s"])
            self.record(row._replace(metric="produce_cpu"), found["produce_cpu_s"] / count * 1e6)
            if not keyed:
                consume_cpu_s = found["consume_cpu_s"]
                self.record(row._replace(metric="consume"), count / found["consume_s"])
                self.record(row._replace(metric="consume_cpu"), consume_cpu_s / count * 1e6)

    def _latency(self, jobs: Jobs) -> None:
        for size, partitions in self.work.latency_rows():
            self.say(f"{size} B, {partitions} partitions, latency")
            found = jobs.latency(size, partitions, self.work.latency_s)
            self.record(self._row("p50", size, partitions), found["p50_ms"])
            self.record(self._row("p99", size, partitions), found["p99_ms"])


def _last_words(directory: Path) -> str:
    """The end of what the broker logged, before it is removed with the rest."""
    logs = [*directory.glob("*.log"), *directory.glob("*/*.log")]  # no deeper: segments
    lines = [line for path in logs for line in _tail(path)]
    return "\n".join(lines)


def _tail(path: Path, lines: int = 5) -> list[str]:
    if not path.is_file():
        return []
    text = path.read_bytes()[-4096:].decode(errors="replace")
    return [f"{path.name}: {line}" for line in text.splitlines()[-lines:]]
