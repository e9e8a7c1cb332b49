"""A large log: `python -m tests.faults.big --gib 5`.

Writes that much to one topic and shows what it costs: the node's memory on the way, and the time
from kill -9 to the first record read and the first one acknowledged again.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import sapwood
from tests.helpers import MIB, resident_bytes
from tests.judges.confluent import Confluent
from tests.judges.judge import Message

TOPIC = "big"
VALUE_BYTES = 10_000
MOST_MEMORY_MIB = 150
LONGEST_RESTART_S = 3.0


@dataclass
class Figures:
    written_bytes: int
    write_s: float
    most_memory_bytes: int
    restart_s: float  # from the start of the process to its first answers
    restart_read_bytes: int  # what it read from its files to get there
    memory_after_restart_bytes: int
    last_value_is_there: bool

    def __str__(self) -> str:
        return (
            f"{self.written_bytes / 2**30:.1f} GiB written in {self.write_s:.1f} s "
            f"({self.written_bytes / self.write_s / MIB:.0f} MiB/s)\n"
            f"memory: at most {self.most_memory_bytes / MIB:.0f} MiB on the way, "
            f"{self.memory_after_restart_bytes / MIB:.0f} MiB after the restart\n"
            f"restart after kill -9: {self.restart_s:.2f} s, "
            f"{self.restart_read_bytes / MIB:.1f} MiB read"
        )


def run(directory: Path, total_bytes: int, say: Callable[[str], None] = lambda _: None) -> Figures:
    with sapwood.Cluster(data_dir=directory) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        new = NewTopic(TOPIC, num_partitions=1, replication_factor=1)
        admin.create_topics([new])[TOPIC].result(30)
        started = time.monotonic()
        most_memory = 0
        written = 0
        for memory, done in write(cluster, total_bytes):
            most_memory, written = max(most_memory, memory), done
            say(f"{done / 2**30:5.2f} GiB, {memory / MIB:4.0f} MiB of memory")
        write_s = time.monotonic() - started

        cluster.kill()
        started = time.monotonic()
        cluster.restart()
        judge = Confluent(cluster.bootstrap)
        last = written // VALUE_BYTES - 1
        received = judge.consume(TOPIC, 1, offset=last)
        judge.produce(TOPIC, [Message(b"after the restart")])
        restart_s = time.monotonic() - started
        node = psutil.Process(cluster.pid())
        return Figures(
            written_bytes=written,
            write_s=write_s,
            most_memory_bytes=most_memory,
            restart_s=restart_s,
            restart_read_bytes=node.io_counters().read_chars,
            memory_after_restart_bytes=resident_bytes(cluster.pid()),
            last_value_is_there=(received[0].value or b"")[:20] == b"%020d" % last,
        )


def write(cluster: sapwood.Cluster, total_bytes: int) -> Iterator[tuple[int, int]]:
    """Fill the topic; yields (memory, bytes written) every now and then."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 65_536,
            "linger.ms": 5,
        }
    )
    noise = random.Random(1).randbytes(VALUE_BYTES)
    failed: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    count = -(-total_bytes // VALUE_BYTES)
    for number in range(count):
        while True:
            try:
                producer.produce(
                    TOPIC, b"%020d" % number + noise[20:], partition=0, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 5000 == 0:
            yield resident_bytes(cluster.pid()), number * VALUE_BYTES
    producer.flush(120)
    if failed:
        raise RuntimeError(failed[0])
    yield resident_bytes(cluster.pid()), count * VALUE_BYTES


def main() -> int:
    parser = argparse.ArgumentParser(description="What a large log costs.")
    parser.add_argument("--gib", type=float, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sapwood-big-") as directory:
        figures = run(
            Path(directory),
            int(options.gib * 2**30),
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(figures)
    ok = (
        figures.last_value_is_there
        and figures.most_memory_bytes < MOST_MEMORY_MIB * MIB
        and figures.memory_after_restart_bytes < MOST_MEMORY_MIB * MIB
        and figures.restart_s < LONGEST_RESTART_S
    )
    print(f"goal: under {MOST_MEMORY_MIB} MiB, under {LONGEST_RESTART_S:.0f} s:", end=" ")
    print("reached" if ok else "missed")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
