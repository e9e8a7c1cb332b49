"""An edge with an outbox that is cut off from the core while its clients go on publishing.

Some send lines through a gateway, some are Kafka producers that ask for one acknowledgement. With
`kill`, the edge is killed and started again meanwhile. At the end a reader of committed records at
the core finds everything that was answered, once, and each sender's in its order; what was not
answered is there once or not at all.
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sapwood
from chaos.direct import Direct, NoAnswer, Refused
from sapwood.client import KafkaClient
from sapwood.client.config import READ_COMMITTED
from sapwood.node.asking import NodeConnection

TOPIC = "cut-off"
PARTITIONS = 2
SENDERS = 3
"""Of each kind."""
PAUSE_S = 0.01
AROUND_S = 1.5
"""Of publishing before the cut, and after it."""
ANSWER_S = 60.0
BACK_S = 180.0
LOOK_S = 0.1
OK, QUEUED = "[RESULT] OK", "[RESULT] QUEUED"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float = 30.0
    kill: bool = False

    @property
    def command(self) -> str:
        return f"python -m chaos cut-off --seconds {self.seconds:g}{' --kill' if self.kill else ''}"


@dataclass
class Outcome:
    answers: Counter[str] = field(default_factory=Counter)
    arrived: int = 0
    queued_at_most: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.complaints

    def __str__(self) -> str:
        answers = ", ".join(f"{count} {what}" for what, count in sorted(self.answers.items()))
        verdict = "; ".join(self.complaints) or "each once, and in its sender's order"
        most = f"up to {self.queued_at_most} in the outbox"
        return f"{answers}; {most}; {self.arrived} arrived; {verdict}"


class Sender(ABC):
    """Numbers its messages, and notes what it was answered to each."""

    def __init__(self, name: str, stop: threading.Event) -> None:
        self.name = name
        self.answers: dict[int, str] = {}
        self._stop = stop
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE_S):
            self._send(number)
            number += 1

    @abstractmethod
    def _send(self, number: int) -> None: ...


class LineSender(Sender):
    def __init__(self, name: str, stop: threading.Event, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)
        self._lines = self._socket.makefile("rw", encoding="utf-8", newline="\n")
        self._answer()
        self._say("USER", name=name)
        super().__init__(name, stop)

    def _send(self, number: int) -> None:
        self.answers[number] = self._say("SEND", topic=TOPIC, message=f"{self.name} {number}")

    def _say(self, command: str, **fields: str) -> str:
        self._lines.write(f"[{command}] {json.dumps(fields)}\n")
        self._lines.flush()
        return self._answer()

    def _answer(self) -> str:
        while not (line := self._lines.readline().strip()).startswith("[RESULT]"):
            if not line:
                raise ConnectionError("the gateway has gone")
        return line if line in (OK, QUEUED) else "[RESULT] ERROR"


class KafkaSender(Sender):
    """Never sends anything twice, as producers do that hear nothing: so it would be its own fault
    if something came twice."""

    def __init__(self, name: str, stop: threading.Event, address: str, partition: int) -> None:
        self._node = Direct(address, ANSWER_S)
        self._partition = partition
        super().__init__(name, stop)

    def _send(self, number: int) -> None:
        value = f"{self.name} {number}".encode()
        try:
            self._node.produce(TOPIC, self._partition, value, acks=1)
            self.answers[number] = "acknowledged"
        except (Refused, NoAnswer):
            self.answers[number] = "failed"


def cut_off(options: Options, directory: Path, say: Say = lambda _: None) -> Outcome:
    found = Outcome()
    with (
        sapwood.Cluster(
            nodes=3,
            edges=1,
            outbox=True,
            proxied=True,
            topics={TOPIC: PARTITIONS},
            data_dir=directory / "cluster",
        ) as cluster,
        _gateway(cluster.edge_address(), directory) as lines,
    ):
        stop = threading.Event()
        senders: list[Sender] = [LineSender(f"l{it}", stop, lines) for it in range(SENDERS)]
        senders += [
            KafkaSender(f"k{it}", stop, cluster.edge_address(), it % PARTITIONS)
            for it in range(SENDERS)
        ]
        try:
            _watch(cluster, AROUND_S, found, say)
            cluster.isolate_edge()
            _watch(cluster, options.seconds / 2, found, say)
            if options.kill:
                cluster.kill_edge()
                cluster.restart_edge()
            _watch(cluster, options.seconds / 2, found, say, lambda: _has_queued(senders, found))
            cluster.heal()
            _watch(cluster, AROUND_S, found, say)
        finally:
            stop.set()
            for sender in senders:
                sender.join()
        if _await_delivery(cluster):
            _judge(senders, _read(cluster), found)
        else:
            found.complaints.append(f"the outbox isn't empty after {BACK_S:g} s")
    return found


@contextlib.contextmanager
def _gateway(bootstrap: str, directory: Path) -> Iterator[str]:
    """Where it takes lines."""
    command = [sys.executable, "-P", "-m", "sapwood.gateway", "--bootstrap", bootstrap]
    command += ["--rest", "127.0.0.1:0", "--lines", "127.0.0.1:0", "--announce", "--with-parent"]
    with (directory / "gateway.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
    if process.stdout is None or process.stdin is None:
        raise RuntimeError("no pipes")
    try:
        yield json.loads(process.stdout.readline())["lines"]
    finally:
        process.stdin.close()
        process.wait(ANSWER_S)
        process.stdout.close()


def _queued(cluster: sapwood.Cluster) -> int:
    with NodeConnection(cluster.edge_address()) as connection:
        return sum(it.records for it in connection.outbox().partitions)


def _watch(
    cluster: sapwood.Cluster,
    seconds: float,
    found: Outcome,
    say: Say,
    is_enough: Callable[[], bool] = lambda: True,
) -> None:
    """For so long, and on a busy machine until it is enough."""
    until = time.monotonic() + seconds
    latest = until + ANSWER_S
    while (now := time.monotonic()) < until or (now < latest and not is_enough()):
        queued = _queued(cluster)
        found.queued_at_most = max(found.queued_at_most, queued)
        say(f"{queued} in the outbox")
        time.sleep(LOOK_S)


def _has_queued(senders: Sequence[Sender], found: Outcome) -> bool:
    """Whether something was seen in the outbox, and a sender told that what it sent is there."""
    told = any(QUEUED in list(it.answers.values()) for it in senders)
    return told and found.queued_at_most > 0


def _await_delivery(cluster: sapwood.Cluster) -> bool:
    until = time.monotonic() + BACK_S
    while _queued(cluster):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


def _read(cluster: sapwood.Cluster) -> dict[str, list[int]]:
    """By sender, the numbers in the order in which they lie."""
    found: dict[str, list[int]] = {}
    with KafkaClient(cluster.bootstrap, isolation_level=READ_COMMITTED) as client:
        places = {(TOPIC, it): 0 for it in range(PARTITIONS)}
        for record in client.consume(places, stop_at="end"):
            name, _, number = (record.value or b"").decode().partition(" ")
            found.setdefault(name, []).append(int(number))
    return found


def _judge(senders: list[Sender], read: dict[str, list[int]], found: Outcome) -> None:
    for sender in senders:
        numbers = read.get(sender.name, [])
        found.arrived += len(numbers)
        found.answers.update(sender.answers.values())
        safe = {
            number
            for number, answer in sender.answers.items()
            if answer in (OK, QUEUED, "acknowledged")
        }
        if lost := sorted(safe - set(numbers)):
            found.complaints.append(f"{sender.name} lost {len(lost)}, the first is {lost[0]}")
        if doubled := [it for it, count in Counter(numbers).items() if count > 1]:
            found.complaints.append(f"{sender.name} doubled {len(doubled)}: {doubled[:5]}")
        # What wasn't answered may have been on its way for as long as the cut took.
        answered = [it for it in numbers if it in safe]
        if answered != sorted(answered):
            found.complaints.append(f"{sender.name} is out of order")
    if not found.answers[QUEUED]:
        found.complaints.append("nothing was queued, so nothing is shown")
