"""Read, process, write under kills: `python -m tests.faults.exactly_once --seconds 120`.

Workers of one group read numbers from one topic and write them to another, each with its position
in one transaction, while workers and nodes are killed and nodes stand still, as chance decides; so
does, to a third topic, a worker with Sapwood's own client. All the time somebody watches what is
committed, and somebody else asks which transactions are open for longer than they may be. In the
end every number is in each output once and in order, nobody has seen anything else, and whoever
was to be killed has been.

Run as `… worker BOOTSTRAP NAME` (or `own-worker`) it is one worker, which ends at whatever goes
wrong.
"""

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import sapwood
from sapwood.client import KafkaClient, KafkaError
from sapwood.client.calls import Node
from sapwood.coordinator.sharding import shard_of
from sapwood.coordinator.transaction import State
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from tests.helpers import eventually

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4
WORKERS = 3
NAMES = [f"worker-{number}" for number in range(WORKERS)]
GROUP = "workers"
OWN = "own-worker"
OUTPUTS = {"out": "worker", "own-out": OWN}
SHARDS = 16
TRANSACTION_TIMEOUT_S = 10
# Its coordinator may have died or stood still meanwhile, and the leaders of its partitions, too.
HANGING_S = TRANSACTION_TIMEOUT_S + 15
PATIENCE_S = 120
AT_ONCE = 50
# So long the coordinator waits for an own worker that was killed.
QUICK = {"group.consumer.session.timeout.ms": 6000}
OPEN = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
KILLS = ("worker killed", "own worker killed", "node killed", "coordinator killed")
HARMS = (*KILLS, "node stopped", "nothing")


def worker(bootstrap: str, name: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            # Who stands still in a call of the producer, its transaction long aborted, is not to
            # keep the others from its partitions for five minutes.
            "max.poll.interval.ms": 20_000,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1000,
        }
    )
    producer.init_transactions(PATIENCE_S)
    consumer.subscribe(["in"])
    while True:
        messages = [it for it in consumer.consume(AT_ONCE, 0.5) if it.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            partition = message.partition() or 0
            producer.produce("out", message.value(), b"%d" % partition, partition)
        positions = {
            it.partition(): TopicPartition("in", it.partition() or 0, (it.offset() or 0) + 1)
            for it in messages
        }
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(list(positions.values()), group, PATIENCE_S)
        while True:
            try:
                producer.commit_transaction(PATIENCE_S)
                break
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        print("committed", len(messages), flush=True)


def own_worker(bootstrap: str, name: str) -> int:
    with sapwood.Client(bootstrap, id=name) as client:
        client.subscribe("in", start="earliest")
        while True:
            with client.transaction(timeout=TRANSACTION_TIMEOUT_S) as transaction:
                for message in transaction.get_many("in", AT_ONCE, 0.5):
                    transaction.put("own-out", message.text, key=f"{message.partition}")


class Workers:
    """Keeps them going: whoever ends is started again."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.starts = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def tend(self) -> None:
        for name in (*NAMES, OWN):
            process = self._processes.get(name)
            if process is None or process.poll() is not None:
                self.starts += 1
                role = OWN if name == OWN else "worker"
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, role, self._bootstrap, name],
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )

    def kill(self, name: str) -> bool:
        """Whether it was alive."""
        process = self._processes[name]
        process.kill()
        return process.wait() == -signal.SIGKILL

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


class Overseer(threading.Thread):
    """Asks each node, all the time, for transactions that are open for too long."""

    def __init__(self, bootstrap: str, nodes: Iterable[int], limit_s: float = HANGING_S) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._nodes = list(nodes)
        self._limit_s = limit_s
        self.seen: set[str] = set()
        """Who ever had a transaction open: not nobody, or it would see nothing of the others."""
        self.hanging: set[str] = set()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            for node in self._nodes:
                # A connection for each question: over one that a node's death broke none is told.
                with contextlib.suppress(KafkaError, OSError), KafkaClient(self._servers) as client:
                    self.seen |= self._open(client, node, -1)
                    self.hanging |= self._open(client, node, int(self._limit_s * 1000))

    def _open(self, client: KafkaClient, node: int, longer_than_ms: int) -> set[str]:
        message = Struct(
            state_filters=[state.label for state in OPEN],
            producer_id_filters=[],
            duration_filter=longer_than_ms,
            transactional_id_pattern=None,
        )
        answer = client.request(Api.LIST_TRANSACTIONS, message, Node(node))
        return {it.transactional_id for it in answer.transaction_states}

    @property
    def complaints(self) -> list[str]:
        if not self.seen:
            return ["no transaction was ever seen to be open"]
        return [f"{it} was open for more than {self._limit_s:g} s" for it in sorted(self.hanging)]

    def end(self) -> None:
        self._over.set()
        self.join()


class Watcher(threading.Thread):
    """Reads what is committed, all the time, and remembers the order per partition of the input,
    which is each record's key."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._topic = topic
        self.seen: dict[int, list[int]] = {it: [] for it in range(PARTITIONS)}
        self._over = threading.Event()

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "watcher",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        places = [TopicPartition(self._topic, it, OFFSET_BEGINNING) for it in range(PARTITIONS)]
        consumer.assign(places)
        while not self._over.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self.seen[int(message.key() or b"")].append(int(message.value() or b""))
        consumer.close()

    def end(self) -> None:
        self._over.set()
        self.join()


@dataclass
class Outcome:
    records: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items()))
        verdict = "; ".join(self.complaints) or "every one once, in order"
        return f"{self.records} records, {kills}: {verdict}"


class Run:
    def __init__(self, cluster: sapwood.Cluster, seed: int, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._say = say
        self._outcome = Outcome()
        self._written: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        """How many are acknowledged in each partition of the input."""
        self._harms: list[str] = []
        """Those to come, until all have come once."""
        self._workers = Workers(cluster.bootstrap)
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
        )

    def go(self, seconds: float) -> Outcome:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        new = [NewTopic(it, PARTITIONS, replication_factor=3) for it in ("in", *OUTPUTS)]
        for created in admin.create_topics(new).values():
            created.result(30)
        watchers = {topic: Watcher(self._cluster.bootstrap, topic) for topic in OUTPUTS}
        overseer = Overseer(self._cluster.bootstrap, self._cluster.nodes)
        threads: list[Watcher | Overseer] = [*watchers.values(), overseer]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + seconds
            latest = end + PATIENCE_S
            while time.monotonic() < end or (self._unharmed and time.monotonic() < latest):
                self._write(200)
                self._do_harm()
            for index in set(self._cluster.nodes) - set(self._cluster.running):
                self._cluster.restart(index)
            self._producer.flush(PATIENCE_S)
            eventually(partial(self._is_complete, watchers.values()), PATIENCE_S, every_s=0.5)
        except AssertionError as error:
            self._outcome.complaints.append(f"it never came to its end: {error}")
        finally:
            self._workers.end()
            for thread in threads:
                thread.end()
        self._outcome.records = sum(self._written.values())
        self._outcome.complaints += [f"nothing of this came: {it}" for it in self._unharmed]
        self._outcome.complaints += overseer.complaints
        for topic, watcher in watchers.items():
            found = judged(self._written, watcher.seen)
            self._outcome.complaints += [f"{OUTPUTS[topic]}: {it}" for it in found]
        return self._outcome

    @property
    def _unharmed(self) -> list[str]:
        return [it for it in KILLS if it not in self._outcome.kills]

    def _write(self, count: int) -> None:
        for _ in range(count):
            partition = self._chance.randrange(PARTITIONS)
            number = self._written[partition]
            self._written[partition] += 1
            self._producer.produce("in", b"%d" % number, partition=partition)
        self._producer.poll(0)

    def _do_harm(self) -> None:
        """Something happens, and then nothing for a while."""
        self._workers.tend()
        cluster, chance = self._cluster, self._chance
        dead = sorted(set(cluster.nodes) - set(cluster.running))
        if not self._harms:
            self._harms = chance.sample(HARMS, len(HARMS))
        what = "nothing" if dead else self._harms.pop()
        if dead:
            cluster.restart(dead[0], wait=False)
        elif what in ("worker killed", "own worker killed"):
            name = OWN if what.startswith("own") else chance.choice(NAMES)
            if not self._workers.kill(name):  # it has just ended by itself
                what = self._later(what)
        elif what == "node killed":
            cluster.kill(chance.choice(cluster.running))
        elif what == "coordinator killed":
            topic, key = chance.choice(
                [("__consumer_offsets", GROUP), *(("__transaction_state", it) for it in NAMES)]
            )
            try:
                cluster.kill(cluster.leader(topic, shard_of(key, SHARDS)))
            except Exception as error:  # it doesn't exist yet, or has no leader just now
                self._say(f"no leader of {topic}: {error}")
                what = self._later(what)
        elif what == "node stopped":
            index = chance.choice(cluster.running)
            cluster.pause(index)
            self._pass(chance.uniform(0.5, 4))
            cluster.resume(index)
        self._outcome.kills[what] = self._outcome.kills.get(what, 0) + 1
        self._say(f"{what}; {sum(self._written.values())} written")
        self._pass(chance.uniform(0.5, 3))

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        eventually(lambda: time.monotonic() > end, seconds + 10)

    def _later(self, harm: str) -> str:
        self._harms.append(harm)
        return "nothing"

    def _is_complete(self, watchers: Iterable[Watcher]) -> bool:
        self._workers.tend()
        written = sum(self._written.values())
        left = [written - sum(map(len, it.seen.values())) for it in watchers]
        self._say(f"{left} to come")
        return max(left) <= 0


def judged(written: Mapping[int, int], seen: Mapping[int, Sequence[int]]) -> list[str]:
    """What is wrong with an output: numbers by partition of the input, which counts up from 0."""
    complaints = []
    for partition, numbers in seen.items():
        expected = list(range(written[partition]))
        if numbers == expected:
            continue
        missing = len(set(expected) - set(numbers))
        doubled = len(numbers) - len(set(numbers))
        complaints.append(
            f"partition {partition}: {missing} missing, {doubled} doubled"
            + ("" if missing or doubled else ", out of order")
        )
    return complaints


def run(
    directory: Path, seconds: float, seed: int, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    with sapwood.Cluster(nodes=3, config=QUICK, data_dir=directory) as cluster:
        return Run(cluster, seed, say).go(seconds)


def main() -> int:
    if sys.argv[1:2] in (["worker"], [OWN]):
        work = own_worker if sys.argv[1] == OWN else worker
        return work(*sys.argv[2:4])
    parser = argparse.ArgumentParser(description="Exactly once, whoever is killed.")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)

    def say(line: str) -> Any:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="sapwood-once-") as directory:
        outcome = run(Path(directory), options.seconds, options.seed, say)
    print(outcome)
    return 1 if outcome.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
