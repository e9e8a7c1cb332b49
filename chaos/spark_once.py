"""A Spark stream from topic to topic while its processes and the brokers' nodes are killed.

Numbers go into one topic; `spark_driver` copies them to another one. Drivers, executors, Python
workers and nodes are killed with SIGKILL as chance decides. At the end the numbers that a reader of
committed records finds in both topics are the same, each once, and in order within every key.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import sapwood

ROOT = Path(__file__).resolve().parent.parent
# An executor with both cores: on a small machine most of the time goes into starting JVMs.
MASTER = "local-cluster[1,2,1024]"
PARTITIONS = 4
KEYS = 50
RATE_PER_S = 1000
# How far what is written may be ahead of what is copied: however slow the machine, and however
# often the stream is held up, it comes to its end soon after the last fault.
MOST_AHEAD = 50_000
MOST_AT_ONCE = 20_000
FEED_EVERY_S = 0.1
FED_AT_ONCE = int(RATE_PER_S * FEED_EVERY_S)
EVERY_S = 0.2
NODE_EVERY_S = 10.0
NODE_DOWN_S = 3.0
WORKER_EVERY_S = 3.0
LONGEST_S = 1200.0
PATIENCE_S = 600.0
FINAL_EVERY_S = 3.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    seed: int
    seconds: float = 120.0
    drivers: int = 5
    """So many of them are killed, however long it takes."""

    @property
    def command(self) -> str:
        return (
            f"python -m chaos spark-once --seed {self.seed} --seconds {self.seconds:g} "
            f"--drivers {self.drivers}"
        )


@dataclass
class Outcome:
    records: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.complaints

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items()))
        verdict = "; ".join(self.complaints) or "each once, and in order within its key"
        return f"{self.records} records; killed: {kills or 'nobody'}; {verdict}"


class Driver:
    """Spark's driver and whatever it has started; none of it stays behind."""

    def __init__(
        self, arguments: Iterable[str], log: Path, module: str = "chaos.spark_driver"
    ) -> None:
        self._seen: dict[int, psutil.Process] = {}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([*_paths(), str(ROOT)])},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._root = psutil.Process(self._process.pid)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def family(self) -> list[psutil.Process]:
        """All living descendants, those too whose parents are gone."""
        # One look at all processes: one for each of these took a fifth of a core.
        children: dict[int, list[psutil.Process]] = {}
        for one in psutil.process_iter(["ppid"]):
            children.setdefault(one.info["ppid"], []).append(one)
        living = [it for it in self._seen.values() if it.is_running()]
        found = [self._root, *living]
        for one in found:
            found += (it for it in children.get(one.pid, []) if it.pid not in self._seen)
            self._seen.update((it.pid, it) for it in children.get(one.pid, []))
        return [it for it in self._seen.values() if it.is_running()]

    def executors(self) -> list[psutil.Process]:
        return [it for it in self.family() if "CoarseGrainedExecutorBackend" in _command(it)]

    def workers(self) -> list[psutil.Process]:
        """Python's, without the daemons that they are forked from."""
        daemons = [it for it in self.family() if "pyspark.daemon" in _command(it)]
        return [it for it in daemons if "pyspark.daemon" in _command(_parent(it))]

    def kill(self) -> None:
        """The driver alone, script and JVM. What it has started finds that out by itself."""
        self.family()
        jvm = self._root.children()
        self._process.kill()
        for one in jvm:
            _kill(one)
        self._process.wait()

    def end(self) -> None:
        """Everybody, at once."""
        family = self.family()
        self._process.kill()
        self._process.wait()
        for one in family:
            _kill(one)


class Run:
    module = "chaos.spark_driver"

    def __init__(self, options: Options, directory: Path, say: Say) -> None:
        self._options = options
        self._directory = directory
        self._say = say
        self._chance = random.Random(options.seed)
        self._cluster = sapwood.Cluster(nodes=3, data_dir=directory / "cluster")
        self._outcome = Outcome()
        self._written = 0
        self._is_over = threading.Event()
        self._drivers: list[Driver] = []
        self._batches_before: Counter[str] = Counter()
        """How many were in the checkpoint when the present driver started, or one was killed last.

        Who is killed before the stream has gone on has nothing to lose, and on a slow machine the
        stream would never go on.
        """

    def go(self) -> Outcome:
        with self._cluster:
            admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
            new = [NewTopic(it, PARTITIONS, replication_factor=3) for it in ("in", "out")]
            for created in admin.create_topics(new).values():
                created.result(30)
            feeder = threading.Thread(target=self._feed, daemon=True)
            feeder.start()
            try:
                self._harm()
                self._is_over.set()
                feeder.join()
                self._finish()
            finally:
                self._is_over.set()
                for driver in self._drivers:
                    driver.end()
            self._judge()
        return self._outcome

    def _feed(self) -> None:
        """Acknowledged or not doesn't matter here: what is in the topic has to come out again.

        As many a second as are wanted, unless the stream can't follow.
        """
        producer = Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )
        try:
            while not self._is_over.wait(FEED_EVERY_S):
                room = self._copied() + MOST_AHEAD - self._written
                for number in range(self._written, self._written + min(room, FED_AT_ONCE)):
                    producer.produce("in", b"%d" % number, key=b"%d" % (number % KEYS))
                    self._written = number + 1
                producer.poll(0)
            producer.flush(PATIENCE_S)
        except KafkaException as error:
            self._outcome.complaints.append(f"no more could be written: {error}")

    def _harm(self) -> None:
        """From the first batch until the time is up; drivers until enough of them have died."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._batches() and time.monotonic() < deadline:
            self._driver()
            time.sleep(EVERY_S)
        began = time.monotonic()
        kill_node_at, kill_worker_at = began + NODE_EVERY_S, began + WORKER_EVERY_S
        kill_driver_at = float("inf")
        restart_at: dict[int, float] = {}
        while (now := time.monotonic()) < began + LONGEST_S:
            is_late = now > began + self._options.seconds
            if is_late and self._outcome.kills["drivers"] >= self._options.drivers:
                break
            driver = self._driver()
            for node in [it for it, at in restart_at.items() if now >= at]:
                self._cluster.restart(node, wait=False)
                del restart_at[node]
            if now >= kill_node_at and not restart_at and not is_late:
                node = self._chance.choice(self._cluster.running)
                self._cluster.kill(node)
                self._count("nodes")
                restart_at[node] = now + NODE_DOWN_S
                kill_node_at = now + NODE_EVERY_S
            if kill_driver_at == float("inf") and self._has_moved("driver"):
                kill_driver_at = now + self._chance.uniform(0, 6)
            if now >= kill_driver_at and self._outcome.kills["drivers"] < self._options.drivers:
                driver.kill()
                self._count("drivers")
                kill_driver_at = float("inf")
            elif now >= kill_worker_at and self._has_moved("worker"):
                kills = self._outcome.kills
                what = "workers" if kills["workers"] <= kills["executors"] else "executors"
                victims = driver.executors() if what == "executors" else driver.workers()
                if victims:
                    _kill(self._chance.choice(victims))
                    self._count(what)
                    kill_worker_at = now + WORKER_EVERY_S
                    self._batches_before["worker"] = self._batches()
            time.sleep(EVERY_S)
        for node in restart_at:
            self._cluster.restart(node)

    def _driver(self) -> Driver:
        """The one that runs; another if the last one has ended, by our hands or by an error."""
        if not self._drivers or not self._drivers[-1].is_running:
            if self._drivers and (self._drivers[-1].status or 0) > 0:
                self._outcome.kills["drivers that gave up"] += 1
            self._batches_before["driver"] = self._batches()
            arguments = [*self._arguments(), "--master", MASTER, "--most", str(MOST_AT_ONCE)]
            log = self._directory / "spark.log"
            self._drivers.append(Driver(arguments, log, self.module))
        self._drivers[-1].family()
        return self._drivers[-1]

    def _arguments(self) -> list[str]:
        return [self._cluster.bootstrap, "in", "out", str(self._checkpoint)]

    def _found(self) -> dict[str, dict[bytes, list[int]]]:
        """What has come out at each place, by key and in its order."""
        return {"out": _read(self._cluster.bootstrap, "out")}

    @property
    def _checkpoint(self) -> Path:
        return self._directory / "checkpoint"

    def _checkpoints(self) -> list[Path]:
        """One for each place that the numbers are copied to."""
        return [self._checkpoint]

    def _batches(self) -> int:
        """How many are done, of the slowest if there are several."""
        return min(map(_batches_done, self._checkpoints()))

    def _copied(self) -> int:
        """How many numbers, at the least, are behind the last batch that is done."""
        return min(map(_numbers_done, self._checkpoints()))

    def _has_moved(self, what: str) -> bool:
        return self._batches() > self._batches_before[what]

    def _finish(self) -> None:
        """Let the stream come to the end of its input, and stop it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self._driver()
            self._tell(f"{self._copied()} copied, waiting for the rest")
            # Only then are both read, which takes from the stream what it needs to get there.
            if self._copied() >= self._stored():
                given = _read(self._cluster.bootstrap, "in")
                if all(_size(it) >= _size(given) for it in self._found().values()):
                    return
            time.sleep(FINAL_EVERY_S)
        self._outcome.complaints.append(f"the rest did not come within {PATIENCE_S:g} s")

    def _stored(self) -> int:
        """Where the partitions of the input end, together."""
        consumer = _consumer(self._cluster.bootstrap)
        try:
            partitions = [TopicPartition("in", it) for it in range(PARTITIONS)]
            ends = [consumer.get_watermark_offsets(it, PATIENCE_S) for it in partitions]
            return sum(end for _, end in ends)
        finally:
            consumer.close()

    def _judge(self) -> None:
        given = _read(self._cluster.bootstrap, "in")
        outcome = self._outcome
        outcome.records = _size(given)
        for place, found in self._found().items():
            for key in sorted(given.keys() | found.keys()):
                wanted, got = given.get(key, []), found.get(key, [])
                if wanted == got:
                    continue
                missing = sum((Counter(wanted) - Counter(got)).values())
                doubled = sum((Counter(got) - Counter(wanted)).values())
                outcome.complaints.append(
                    f"{place}, key {key!r}: {missing} missing, {doubled} too many"
                    + ("" if missing or doubled else ", out of order")
                )

    def _count(self, what: str) -> None:
        self._outcome.kills[what] += 1
        self._tell(f"killed one of the {what}")

    def _tell(self, what: str) -> None:
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self._outcome.kills.items()))
        self._say(f"{self._written} written, killed {kills}; {what}")


def spark_once(options: Options, directory: Path, say: Say = lambda _: None) -> Outcome:
    return Run(options, directory, say).go()


def _batches_done(checkpoint: Path) -> int:
    """As long as the checkpoint keeps them: Spark keeps the last."""
    commits = checkpoint / "commits"
    names = os.listdir(commits) if commits.exists() else []
    return max((int(name) + 1 for name in names if name.isdigit()), default=0)


def _numbers_done(checkpoint: Path) -> int:
    try:
        lines = (checkpoint / "offsets" / f"{_batches_done(checkpoint) - 1}").read_text()
        return sum(json.loads(lines.splitlines()[-1])["in"].values())
    except (OSError, ValueError, KeyError, IndexError):
        return 0  # not there yet, or not there any more


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def _size(numbers: dict[bytes, list[int]]) -> int:
    return sum(map(len, numbers.values()))


def _read(bootstrap: str, topic: str) -> dict[bytes, list[int]]:
    """All committed numbers, by key and in the order of the log."""
    consumer = _consumer(bootstrap)
    found: dict[bytes, list[int]] = {}
    try:
        consumer.assign([TopicPartition(topic, it, OFFSET_BEGINNING) for it in range(PARTITIONS)])
        ended: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(ended) < PARTITIONS and time.monotonic() < deadline:
            for message in consumer.consume(5000, 0.5):
                if message.error() is not None:
                    ended.add(message.partition() or 0)
                else:
                    numbers = found.setdefault(message.key() or b"", [])
                    numbers.append(int(message.value() or b""))
    finally:
        consumer.close()
    return found


def _paths() -> list[str]:
    given = os.environ.get("PYTHONPATH", "")
    return [it for it in given.split(os.pathsep) if it]


def _command(process: psutil.Process | None) -> str:
    try:
        return "" if process is None else " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:
        return None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        pass  # it was faster
