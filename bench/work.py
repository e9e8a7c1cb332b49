"""The work: which rows there are, and one broker's turn at all of them."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import LoadFailed, Peer
from bench.processes import MemoryWatch, OthersWatch, free_port

RATE_PER_S = 1_000
JOB_TIMEOUT_S = 300.0
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
    )
}


class Row(NamedTuple):
    """What one number was measured on; a field that makes no difference is None."""

    metric: str
    synced: bool
    size: int | None = None
    partitions: int | None = None
    keyed: bool = False


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

    def quick(self) -> "Work":
        return replace(self, partitions=(12,), messages=500_000, limit_s=2.0, latency_s=3)

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


def turn(name: str, peer: Peer, work: Work, *, synced: bool, record: Record, say: Say) -> float:
    """One fresh broker through every row; it and its data are gone afterwards.

    Returns the share of the machine that others used meanwhile.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"sapwood-bench-{name}-"))
    port = free_port()
    jobs = _Jobs(name, port, synced)
    others = OthersWatch()
    watch: MemoryWatch | None = None
    try:
        say("starting")
        record(Row("start", synced), jobs.first(lambda: peer.start(directory, port, synced=synced)))
        jobs.roots = peer.roots()
        watch = MemoryWatch(jobs.roots)
        watch.start()
        say("warming up")
        jobs.throughput(100, 1, work.warm_up_messages, work.limit_s, keyed=False)
        for size, partitions, keyed in work.throughput_rows():
            if keyed and name not in ("sapwood", "kafka"):
                continue  # the others know no keys
            say(f"{size} B, {partitions} partitions{', keyed' if keyed else ''}")
            found = jobs.throughput(size, partitions, work.count(size), work.limit_s, keyed=keyed)
            count = found["count"]
            row = Row("", synced, size, partitions, keyed)
            record(row._replace(metric="produce"), count / found["produce_s"])
            record(row._replace(metric="produce_cpu"), found["produce_cpu_s"] / count * 1e6)
            if not keyed:
                record(row._replace(metric="consume"), count / found["consume_s"])
                record(row._replace(metric="consume_cpu"), found["consume_cpu_s"] / count * 1e6)
        for size, partitions in work.latency_rows():
            say(f"{size} B, {partitions} partitions, latency")
            found = jobs.latency(size, partitions, work.latency_s)
            row = Row("", synced, size, partitions)
            record(row._replace(metric="p50"), found["p50_ms"])
            record(row._replace(metric="p99"), found["p99_ms"])
        record(Row("memory", synced), watch.end() / MIB)
        return others.share(jobs.roots)
    except LoadFailed as error:
        raise LoadFailed(f"{error}\n{_last_words(directory)}") from error
    finally:
        if watch is not None:
            watch.end()
        peer.stop()
        shutil.rmtree(directory, ignore_errors=True)


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


class _Jobs:
    """Measurements of one running broker, each in a process of its own."""

    def __init__(self, peer: str, port: int, synced: bool) -> None:
        self.roots: list[int] = []
        self._common = {"peer": peer, "port": port, "synced": synced}
        self._number = 0

    def first(self, start: Callable[[], float]) -> float:
        """Seconds from the start command to the first acknowledged message."""
        with _load({**self._common, "job": "first"}) as process:
            if process.stdout is None or process.stdin is None or not process.stdout.readline():
                raise LoadFailed(_error_of(process))
            process.stdin.write("\n")
            process.stdin.flush()
            started = start()
            return float(_result_of(process)["acknowledged"]) - started

    def throughput(
        self, size: int, partitions: int, count: int, limit_s: float, *, keyed: bool
    ) -> dict[str, Any]:
        return self._run("throughput", size, partitions, count=count, limit_s=limit_s, keyed=keyed)

    def latency(self, size: int, partitions: int, seconds: int) -> dict[str, Any]:
        return self._run("latency", size, partitions, rate=RATE_PER_S, count=RATE_PER_S * seconds)

    def _run(self, job: str, size: int, partitions: int, **more: object) -> dict[str, Any]:
        self._number += 1
        topic = f"bench-{self._number}"
        what = {"job": job, "topic": topic, "size": size, "partitions": partitions, **more}
        with _load({**self._common, **what, "roots": self.roots}) as process:
            return _result_of(process)


@contextlib.contextmanager
def _load(job: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.load", json.dumps(job)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # unless it has ended by itself


def _result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=JOB_TIMEOUT_S)
    if process.returncode:
        raise LoadFailed(_last_line(errors))
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _error_of(process: subprocess.Popen[str]) -> str:
    return _last_line(process.communicate(timeout=JOB_TIMEOUT_S)[1])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "the load ended without a word"
