"""Read, process, write under kills: `python -m tests.faults.exactly_once --seconds 120`.

Workers of one group read numbers from one topic and write them to another, each with its position
in one transaction, while workers and nodes are killed and nodes stand still, as chance decides.
Afterwards every number is in the output once and in order, and a reader that watched all the time
has seen nothing else.

Run as `… worker BOOTSTRAP NAME` it is one worker, which ends at whatever goes wrong.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import sapwood
from tests.helpers import eventually

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4
WORKERS = 3
TRANSACTION_TIMEOUT_S = 10
PATIENCE_S = 120
AT_ONCE = 50


def worker(bootstrap: str, name: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "workers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
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
            producer.produce("out", message.value(), partition=message.partition() or 0)
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


class Workers:
    """Keeps them going: whoever ends is started again."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.starts = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def tend(self) -> None:
        for number in range(WORKERS):
            name = f"worker-{number}"
            process = self._processes.get(name)
            if process is None or process.poll() is not None:
                self.starts += 1
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, "worker", self._bootstrap, name],
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )

    def kill(self, chance: random.Random) -> None:
        self._processes[chance.choice(sorted(self._processes))].kill()

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


class Watcher(threading.Thread):
    """Reads what is committed, all the time, and remembers the order per partition."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
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
        consumer.assign([TopicPartition("out", it, OFFSET_BEGINNING) for it in range(PARTITIONS)])
        while not self._over.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self.seen[message.partition() or 0].append(int(message.value() or b""))
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
        self._workers = Workers(cluster.bootstrap)
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
        )

    def go(self, seconds: float) -> Outcome:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        new = [NewTopic(it, PARTITIONS, replication_factor=3) for it in ("in", "out")]
        for created in admin.create_topics(new).values():
            created.result(30)
        watcher = Watcher(self._cluster.bootstrap)
        watcher.start()
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._write(200)
                self._do_harm()
            for index in set(self._cluster.nodes) - set(self._cluster.running):
                self._cluster.restart(index)
            self._producer.flush(PATIENCE_S)
            eventually(partial(self._is_complete, watcher), PATIENCE_S, every_s=0.5)
        except AssertionError as error:
            self._outcome.complaints.append(f"it never came to its end: {error}")
        finally:
            self._workers.end()
            watcher.end()
        self._judge(watcher.seen)
        return self._outcome

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
        what = chance.choice(
            ("worker killed", "node killed", "node stopped", "nothing", "coordinator killed")
        )
        dead = sorted(set(cluster.nodes) - set(cluster.running))
        if dead:
            cluster.restart(dead[0], wait=False)
            what = "nothing"
        elif what == "worker killed":
            self._workers.kill(chance)
        elif what == "node killed":
            cluster.kill(chance.choice(cluster.running))
        elif what == "coordinator killed":
            topic = chance.choice(("__transaction_state", "__consumer_offsets"))
            try:
                cluster.kill(cluster.leader(topic, chance.randrange(16)))
            except Exception as error:  # it doesn't exist yet, or has no leader just now
                self._say(f"no leader of {topic}: {error}")
                what = "nothing"
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

    def _is_complete(self, watcher: Watcher) -> bool:
        self._workers.tend()
        left = sum(self._written.values()) - sum(map(len, watcher.seen.values()))
        self._say(f"{left} to come")
        return left <= 0

    def _judge(self, seen: dict[int, list[int]]) -> None:
        outcome = self._outcome
        outcome.records = sum(self._written.values())
        for partition, numbers in seen.items():
            expected = list(range(self._written[partition]))
            if numbers == expected:
                continue
            missing = len(set(expected) - set(numbers))
            doubled = len(numbers) - len(set(numbers))
            outcome.complaints.append(
                f"partition {partition}: {missing} missing, {doubled} doubled"
                + ("" if missing or doubled else ", out of order")
            )


def run(
    directory: Path, seconds: float, seed: int, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    with sapwood.Cluster(nodes=3, data_dir=directory) as cluster:
        return Run(cluster, seed, say).go(seconds)


def main() -> int:
    if sys.argv[1:2] == ["worker"]:
        return worker(*sys.argv[2:4])
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
