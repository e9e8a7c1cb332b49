"""Load without faults: many clients at once, on threads of their own or one after the other.

Every worker does a bit of everything: bursts of records that it waits for, reading on from where
it was, asking for ends, looking topics up, creating and deleting one of its own.
"""

import itertools
import random
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from chaos.audited import audited
from chaos.copies import record_copies
from chaos.history import End, History, Recorder, Send, Trouble, from_the_wire, on_the_wire
from chaos.readers import Partition, read_finally, record_reads
from chaos.report import Report, report
from chaos.run import READ_PATIENCE_S, ROOT, Say, create_topics, run_directory, settle
from chaos.shape import Shape, drawn
from chaos.target import Target

TIMEOUT_S = 30.0
BURSTS = (1, 10, 100)
EVERY_S = 0.2
WORKERS_ON_ONE_THREAD = 4


@dataclass(frozen=True, slots=True)
class Options:
    seed: int
    nodes: int = 1
    seconds: float = 30.0
    threads: int = 0
    """0: no threads; a few workers take turns."""
    root: Path = ROOT
    keep: bool = False
    audit: bool = False

    @property
    def command(self) -> str:
        return (
            f"python -m chaos stress --seed {self.seed} --nodes {self.nodes} "
            f"--seconds {self.seconds:g} --threads {self.threads}"
            f"{' --audit' if self.audit else ''}"
        )


def stress(options: Options, say: Say = lambda _: None) -> Report:
    chance = random.Random(options.seed)
    shape = drawn(chance)
    replicas = min(3, options.nodes)
    about = {**shape.about(), "threads": options.threads}
    with run_directory(options.root, options.seed) as directory:
        with (
            Recorder(
                directory, seed=options.seed, nodes=options.nodes, replicas=replicas, about=about
            ) as recorder,
            Target(recorder, directory, options.nodes) as target,
        ):
            create_topics(target, shape, replicas)
            workers = [
                Worker(recorder, target.bootstrap, f"w{number}", shape, random.Random(seed))
                for number, seed in enumerate(
                    chance.getrandbits(32) for _ in range(options.threads or WORKERS_ON_ONE_THREAD)
                )
            ]
            if options.threads:
                _with_threads(workers, options.seconds, recorder, target, say)
            else:
                _without_threads(workers, options.seconds, recorder, target, say)
            for worker in workers:
                worker.close()
            say("reading everything")
            ends = read_finally(recorder, target.bootstrap, shape.partitions, READ_PATIENCE_S)
            record_copies(recorder, target, ends, READ_PATIENCE_S)
            recorder.close()
            say("judging")
            judged = {}
            if options.audit:
                judged["audit"] = audited(directory, target.bootstrap, shape.topics)
            history = History.load(directory)
            found = report(history, directory=directory, command=options.command, judged=judged)
        settle(found, directory, keep=options.keep)
    return found


def _with_threads(
    workers: list["Worker"], seconds: float, recorder: Recorder, target: Target, say: Say
) -> None:
    until = time.monotonic() + seconds

    def work(worker: Worker) -> None:
        while time.monotonic() < until:
            worker.step()

    threads = [threading.Thread(target=work, args=(it,), daemon=True) for it in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        target.notice_crashes()
        say(f"{recorder.acknowledged} acknowledged, {recorder.records_read} read")
        time.sleep(EVERY_S)


def _without_threads(
    workers: list["Worker"], seconds: float, recorder: Recorder, target: Target, say: Say
) -> None:
    until = time.monotonic() + seconds
    for worker in itertools.cycle(workers):
        if time.monotonic() >= until:
            return
        worker.step()
        target.notice_crashes()
        say(f"{recorder.acknowledged} acknowledged, {recorder.records_read} read")


class Worker:
    """One client's life; `step` does one thing and comes to its end."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, name: str, shape: Shape, chance: random.Random
    ) -> None:
        self._name = name
        self._recorder = recorder
        self._shape = shape
        self._chance = chance
        self._number = 0
        self._rounds = itertools.count()
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": min(shape.linger_ms, 5),
                "batch.size": shape.batch_bytes,
                "compression.type": shape.compression,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
                "log_level": 0,
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused: partitions are assigned by hand",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        places = [TopicPartition(*place, OFFSET_BEGINNING) for place in shape.partitions]
        self._consumer.assign(places)

    def step(self) -> None:
        acts = (self._write, self._write, self._write, self._read, self._read, self._ask_end)
        rare = (self._look_up, self._create_and_delete)
        act = self._chance.choice(rare if self._chance.random() < 0.05 else acts)
        try:
            act()
        except Exception as error:
            # Nothing is wrong with the cluster, so whatever goes wrong is worth a look.
            at = self._recorder.now()
            self._recorder.add(Trouble(client=self._name, at=at, error=repr(error), fatal=True))

    def close(self) -> None:
        self._consumer.close()

    def _write(self) -> None:
        topic, partition = self._chance.choice(self._shape.partitions)
        for _ in range(self._chance.choice(BURSTS)):
            send = Send(
                client=self._name,
                topic=topic,
                partition=partition,
                value=f"{self._name}:{self._number}",
                at=self._recorder.now(),
            )
            self._number += 1
            self._producer.produce(
                topic,
                on_the_wire(send.value, self._shape.size_bytes),
                partition=partition,
                on_delivery=partial(self._delivered, send),
            )
        self._producer.flush(TIMEOUT_S + 1)

    def _delivered(self, send: Send, error: KafkaError | None, message: Any) -> None:
        send.done = self._recorder.now()
        if error is None:
            send.outcome, send.offset = "ok", max(message.offset(), -1)
        else:
            send.outcome, send.error = "fail", error.name()
        self._recorder.add(send)

    def _read(self) -> None:
        at = self._recorder.now()
        records: dict[Partition, list[tuple[int, str]]] = {}
        messages: list[Any] = self._consumer.consume(1000, 0.05)
        for message in messages:
            if error := message.error():
                raise RuntimeError(error.str())
            record = (message.offset(), from_the_wire(message.value()))
            records.setdefault((message.topic(), message.partition()), []).append(record)
        record_reads(self._recorder, self._name, records, at)

    def _ask_end(self) -> None:
        topic, partition = self._chance.choice(self._shape.partitions)
        end = End(client=self._name, topic=topic, partition=partition, at=self._recorder.now())
        place = TopicPartition(topic, partition)
        try:
            _, end.offset = self._consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            end.outcome = "ok"
        except KafkaException as error:
            # Of all calls this one isn't repeated by the library if the leader has just changed.
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            end.outcome, end.error = "fail", error.args[0].name()
        end.done = self._recorder.now()
        self._recorder.add(end)

    def _look_up(self) -> None:
        found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        if missing := self._shape.topics.keys() - found.keys():
            raise RuntimeError(f"topics that exist aren't listed: {sorted(missing)}")

    def _create_and_delete(self) -> None:
        name = f"{self._name}-{next(self._rounds)}"
        new = NewTopic(name, num_partitions=2, replication_factor=-1)
        self._admin.create_topics([new])[name].result(TIMEOUT_S)
        self._producer.produce(name, b"soon to be gone")
        self._producer.flush(TIMEOUT_S + 1)
        self._admin.delete_topics([name])[name].result(TIMEOUT_S)
