"""`python -m bench.fanout`: what it costs the origin to reach ever more readers.

One partition, messages at a steady rate, and readers at the origin itself or at the leaves of a
tree of relays two levels deep: Sapwood's edges, or NATS's leaf nodes. Every broker has one core
node, synced. Readers are the same raw connections everywhere, and each has to get every message.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from bench import peers
from bench.peers import LoadFailed, Peer, PeerFailed, wait
from bench.peers.confluent import ConfluentLoad
from bench.peers.nats import server as nats_server
from bench.peers.sapwood import COMMAND
from bench.processes import Children, OthersWatch, cpu_seconds, free_ports
from sapwood.node import secret

FANOUT = 2
WARM_UP_S = 2
LINGER_MS = 5
"""librdkafka's own choice; NATS's client sends each message at once."""
MB = 1e6
CPU = "origin, % of a core"

NATS_RELAY = """\
server_name: "relay-{number}"
listen: "127.0.0.1:{port}"
leafnodes {{
  listen: "127.0.0.1:{leaf_port}"
  remotes: [{{ url: "nats-leaf://127.0.0.1:{parent}" }}]
}}
"""

Found = dict[str, float]


class Shape(ABC):
    """A broker, and from where its readers read."""

    title: str
    peer_name: str
    dialect = "kafka"

    def __init__(self) -> None:
        self.peer: Peer = peers.peer(self.peer_name)
        self.origin: list[int] = []
        """Its processes."""
        self.origin_ports: list[int] = []
        """From which it sends."""
        self.reader_ports: list[int] = []
        self.relays = Children()

    @abstractmethod
    def start(self, directory: Path) -> None: ...

    def subject(self, topic: str) -> str:
        return topic

    def publish(self, topic: str, message: bytes, rate: int, count: int) -> list[float]:
        """As its client does by default. The milliseconds that each message took."""
        load = self.load()
        if isinstance(load, ConfluentLoad):
            return load.paced(topic, 1, message, rate, count, linger_ms=LINGER_MS)
        return load.paced(topic, 1, message, rate, count)

    def stop(self) -> None:
        self.relays.stop()
        self.peer.stop()

    def load(self) -> peers.Load:
        return peers.load(self.peer_name, self.origin_ports[:1], synced=True)

    def _start_origin(self, directory: Path) -> int:
        (port,) = free_ports(1)
        self.peer.start(directory, [port], synced=True)
        self.origin_ports = [port]
        self.load().first()
        self.origin = self.peer.roots()
        return port


class Direct(Shape):
    """Readers at the origin."""

    def start(self, directory: Path) -> None:
        self.reader_ports = [self._start_origin(directory)]


class KafkaDirect(Direct):
    title = "Kafka"
    peer_name = "kafka"


class SapwoodDirect(Direct):
    title = "Sapwood, direct"
    peer_name = "sapwood"

    def start(self, directory: Path) -> None:
        self.reader_ports = [self._start_node(directory)]

    def _start_node(self, directory: Path) -> int:
        """By itself: what else `up` runs beside a node reads nothing, but isn't its."""
        (port,) = free_ports(1)
        secret.ensure(directory / secret.FILE_NAME)
        self._run(self.peer.children, directory, "origin", port, "--bootstrap", "--id", "0")
        self.origin_ports = [port]
        self.load().first()
        self.origin = self.peer.roots()
        return port

    def _run(self, children: Children, directory: Path, name: str, port: int, *way: str) -> None:
        command = [COMMAND, "node", "--dir", str(directory / name), *way]
        command += ["--listen", f"127.0.0.1:{port}", "--set", "discoverable=false"]
        command += ["--secret-file", str(directory / secret.FILE_NAME)]
        children.start(command, directory / f"{name}.log")


class SapwoodTree(SapwoodDirect):
    title = "Sapwood, tree"

    def start(self, directory: Path) -> None:
        origin = self._start_node(directory)
        self.reader_ports = _grow(origin, lambda *it: self._start_edge(directory, origin, *it))

    def _start_edge(self, directory: Path, origin: int, parent: int, port: int, number: int) -> int:
        way = ("--edge", "--join", f"127.0.0.1:{origin}", "--parent", f"127.0.0.1:{parent}")
        self._run(self.relays, directory, f"edge-{number}", port, *way)
        edge = ConfluentLoad([port], synced=True)
        wait("edge", lambda: edge.is_whole("first", 1))
        return port


class NatsDirect(Direct):
    title = "NATS, direct"
    peer_name = "nats"
    dialect = "nats"

    def subject(self, topic: str) -> str:
        return f"{topic}.0"


class NatsLeaves(NatsDirect):
    title = "NATS, leaf nodes"

    def start(self, directory: Path) -> None:
        port = self._start_origin(directory)
        leaf_port = port + 1
        self.origin_ports.append(leaf_port)
        # The hub was started without a place for leaves.
        self.peer.stop()
        (config,) = directory.glob("nats-0.conf")
        with config.open("a") as text:
            text.write(f'leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}\n')
        self.peer.children.start([str(nats_server()), "-c", str(config)], directory / "hub.log")
        self.load().delete("first", 1)
        self.origin = self.peer.roots()
        self.reader_ports = [
            it - 1 for it in _grow(leaf_port, lambda *it: self._start_leaf(directory, *it))
        ]

    def _start_leaf(self, directory: Path, parent: int, port: int, number: int) -> int:
        text = NATS_RELAY.format(number=number, port=port, leaf_port=port + 1, parent=parent)
        config = directory / f"relay-{number}.conf"
        config.write_text(text)
        log = directory / f"relay-{number}.log"
        self.relays.start([str(nats_server()), "-c", str(config)], log)
        wait("leaf", lambda: "Leafnode connection created" in log.read_text())
        return port + 1


def _grow(origin: int, start: Any) -> list[int]:
    """Two levels of relays below it; the ports of the lower ones."""
    ports = iter(free_ports(FANOUT + FANOUT**2))
    upper = [start(origin, next(ports), number) for number in range(FANOUT)]
    return [
        start(upper[number // FANOUT], next(ports), FANOUT + number) for number in range(FANOUT**2)
    ]


SHAPES: dict[str, type[Shape]] = {
    "sapwood": SapwoodDirect,
    "sapwood-tree": SapwoodTree,
    "nats": NatsDirect,
    "nats-leaves": NatsLeaves,
    "kafka": KafkaDirect,
}


class Readers:
    """The process with the listeners."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._heard()

    def mark(self) -> dict[str, Any]:
        return self._asked("mark")

    def until(self, count: int) -> dict[str, Any]:
        return self._asked(f"until {count}")

    def _asked(self, words: str) -> dict[str, Any]:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{words}\n")
            self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise LoadFailed(f"the readers gave up: {self._process.communicate()[1].strip()}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def listening(job: dict[str, Any]) -> Iterator[Readers]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.listeners", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Readers(process)
        finally:
            process.kill()


def egress_bytes(ports: Sequence[int]) -> int:
    """Acknowledged by whoever is connected to these ports."""
    which = " or ".join(f"sport = :{port}" for port in ports)
    found = subprocess.run(
        ["ss", "-tinH", "state", "established", f"( {which} )"],
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(map(int, re.findall(r"bytes_acked:(\d+)", found.stdout)))


def measured(shape: Shape, readers: int, rate: int, size: int, seconds: int) -> Found:
    topic, message = f"fanout-{readers}", b"x" * size
    load = shape.load()
    load.create(topic, 1)
    count = rate * (WARM_UP_S + seconds)
    job = {"dialect": shape.dialect, "topic": shape.subject(topic), "size": size}
    job |= {"count": readers, "ports": shape.reader_ports}
    latencies_ms: list[float] = []
    with listening(job) as listeners:
        publisher = threading.Thread(
            target=lambda: latencies_ms.extend(shape.publish(topic, message, rate, count))
        )
        publisher.start()
        time.sleep(WARM_UP_S)
        before, cpu_s = listeners.mark(), cpu_seconds(shape.origin)
        sent = egress_bytes(shape.origin_ports)
        time.sleep(seconds - 1)
        after, cpu_s = listeners.mark(), cpu_seconds(shape.origin) - cpu_s
        sent = egress_bytes(shape.origin_ports) - sent
        publisher.join()
        if len(latencies_ms) != count:
            raise LoadFailed(f"{len(latencies_ms)} of {count} messages were acknowledged")
        listeners.until(count)
    took_s = after["at"] - before["at"]
    delivered = after["messages"] - before["messages"]
    return {
        "delivered, messages/s": delivered / took_s,
        CPU: cpu_s / took_s * 100,
        "origin sends, MB/s": sent / took_s / MB,
        "delivered per second of the origin's CPU": delivered / max(cpu_s, 0.01),
    }


def turn(shape: Shape, readers: Sequence[int], rate: int, size: int, seconds: int) -> list[Found]:
    """One broker's: fresh, and gone with its data afterwards."""
    if missing := shape.peer.missing():
        raise click.ClickException(f"without {shape.title}: {missing}")
    shape.peer.prepare()
    directory = Path(tempfile.mkdtemp(prefix="sapwood-bench-fanout-"))
    others = OthersWatch()
    try:
        shape.start(directory)
        found = [measured(shape, count, rate, size, seconds) for count in readers]
        used = others.share([*shape.peer.roots(), *shape.relays.pids])
        click.echo(f"{shape.title}: others used {used:.0%} of the machine", err=True)
        return found
    except (PeerFailed, LoadFailed) as error:
        raise click.ClickException(f"{shape.title}: {error}") from error
    finally:
        shape.stop()
        shutil.rmtree(directory, ignore_errors=True)


def plot(results: dict[str, list[Found]], readers: Sequence[int], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = list(next(iter(results.values()))[0])
    figure, axes = pyplot.subplots(1, len(rows), figsize=(5 * len(rows), 4))
    for row, axis in zip(rows, axes, strict=True):
        for title, found in results.items():
            axis.plot(readers, [it[row] for it in found], marker="o", label=title)
        axis.set(xscale="log", yscale="linear" if row == CPU else "log", xlabel="readers")
        axis.set_xticks(readers, [str(it) for it in readers])
        axis.minorticks_off()
        axis.set_title(row, loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def tables(results: dict[str, list[Found]], readers: Sequence[int]) -> str:
    lines = []
    for row in next(iter(results.values()))[0]:
        lines += [f"| {row} | {' | '.join(results)} |", "|---|" + "---:|" * len(results)]
        for number, count in enumerate(readers):
            cells = (f"{found[number][row]:,.2f}" for found in results.values())
            lines.append(f"| {count} reader{'' if count == 1 else 's'} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


@click.command()
@click.option("--shapes", default=",".join(SHAPES), show_default=True)
@click.option("--readers", default="1,8,64,512", show_default=True)
@click.option("--rate", default=400, show_default=True, help="Messages a second.")
@click.option("--size", default=1000, show_default=True, help="Bytes of a message.")
@click.option("--seconds", default=10, show_default=True, help="Of each measurement.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="JSON and PNG.")
def main(
    shapes: str, readers: str, rate: int, size: int, seconds: int, output: Path | None
) -> None:
    """Measure what readers cost the origin, directly and through a tree."""
    counts = [int(it) for it in readers.split(",")]
    results = {}
    for name in shapes.split(","):
        if name not in SHAPES:
            raise click.BadParameter(f"{name}: choose from {', '.join(SHAPES)}")
        shape = SHAPES[name]()
        results[shape.title] = turn(shape, counts, rate, size, seconds)
    click.echo(tables(results, counts))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "fanout.json").write_text(json.dumps(results, indent=1))
        plot(results, counts, output / "fanout.png")


if __name__ == "__main__":
    main()
