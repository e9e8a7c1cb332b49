"""`python -m bench.spark`: `format("sapwood")` against Spark's own Kafka connector.

Both read and write the same topics of the same Sapwood cluster, and the connector does so with
Kafka, too; in one Spark session, in turns, so that a slow minute of the machine hits all of them.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench import peers
from bench.connector import connector_jars, session
from bench.peers import Peer
from bench.processes import OthersWatch, free_ports
from sapwood.bulk import BulkClient
from sapwood.client.admin import NewTopic

PARTITIONS = 4
WARM_UP = 50_000
PACED_PER_S = 1000
PACED_S = 30.0


@dataclass(frozen=True)
class Way:
    """How Spark comes to a broker."""

    title: str
    format: str
    bootstrap: str

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        reader = spark.read.format(self.format).option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).load()


class Bench:
    def __init__(self, spark: SparkSession, directory: Path, size: int) -> None:
        self._spark = spark
        self._directory = directory
        self._size = size
        self._number = 0

    def _fresh(self, way: Way) -> str:
        self._number += 1
        name = f"fresh-{self._number}"
        with BulkClient(way.bootstrap) as client:
            client.client.create_topics([NewTopic(name, PARTITIONS)])
        return name

    def fill(self, way: Way, topic: str, count: int) -> None:
        value = os.urandom(self._size)
        batch = pa.record_batch({"value": pa.array([value] * 100_000)})
        with BulkClient(way.bootstrap) as client:
            client.client.create_topics([NewTopic(topic, PARTITIONS)])
            left = count
            while left:
                left -= client.produce_arrow(topic, batch.slice(0, min(left, batch.num_rows)))

    def count(self, way: Way, topic: str, count: int) -> float:
        """Rows a second, as all of these."""
        return _rate(count, lambda: _check(way.read(self._spark, topic).count(), count))

    def parquet(self, way: Way, topic: str, count: int) -> float:
        table = self._directory / "table"
        frame = way.read(self._spark, topic)
        found = _rate(count, lambda: frame.write.mode("overwrite").parquet(str(table)))
        _check(self._spark.read.parquet(str(table)).count(), count)
        return found

    def write(self, way: Way, _: str, count: int) -> float:
        topic = self._fresh(way)
        frame = self._spark.range(0, count, 1, PARTITIONS).selectExpr(
            f"cast(rpad(cast(id as string), {self._size}, 'x') as binary) as value"
        )
        writer = frame.write.format(way.format).option("kafka.bootstrap.servers", way.bootstrap)
        found = _rate(count, lambda: writer.option("topic", topic).mode("append").save())
        _check(way.read(self._spark, topic).count(), count)
        return found

    def stream(self, way: Way, topic: str, count: int) -> float:
        """From topic to topic, in micro-batches of a tenth."""
        target = self._fresh(way)
        with self._copying(way, topic, target, most=max(1, count // 10), once=True) as query:
            found = _rate(count, query.awaitTermination)
        _check(way.read(self._spark, target).count(), count)
        return found

    def latency(self, way: Way, _: str, __: int) -> float:
        """Milliseconds of a micro-batch, in the median, while 1,000 messages a second come."""
        source, target = self._fresh(way), self._fresh(way)
        over = threading.Event()

        def feed() -> None:
            producer = Producer({"bootstrap.servers": way.bootstrap})
            while not over.wait(1 / 20):
                for _ in range(PACED_PER_S // 20):
                    producer.produce(source, bytes(self._size))
                producer.poll(0)
            producer.flush(30)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            with self._copying(way, source, target, most=1_000_000, once=False) as query:
                time.sleep(PACED_S)
                progress = [it for it in query.recentProgress if it["numInputRows"]]
        finally:
            over.set()
            feeder.join()
        settled = [it["durationMs"] for it in progress[len(progress) // 3 :]]
        if not settled:
            raise click.ClickException(f"{way.title}: no micro-batch within {PACED_S:g} s")
        spent = {it: statistics.median(each.get(it, 0) for each in settled) for it in settled[0]}
        parts = ", ".join(f"{it} {ms:.0f}" for it, ms in spent.items())
        print(f"micro-batch, ms: {way.title}: {parts}", file=sys.stderr, flush=True)
        return float(spent["triggerExecution"])

    @contextmanager
    def _copying(
        self, way: Way, source: str, target: str, *, most: int, once: bool
    ) -> Iterator[StreamingQuery]:
        frame = (
            self._spark.readStream.format(way.format)
            .option("kafka.bootstrap.servers", way.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", most)
            .load()
        )
        # Nobody else's: topics of the same name are at another broker, too.
        checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=self._directory)
        writer = (
            frame.select("value")
            .writeStream.format(way.format)
            .option("kafka.bootstrap.servers", way.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", checkpoint)
        )
        query = (writer.trigger(availableNow=True) if once else writer).start()
        try:
            yield query
        finally:
            query.stop()


# What is measured, and with which part of the messages.
PARTS: dict[str, tuple[Callable[[Bench, Way, str, int], float], float]] = {
    "read and count, rows/s": (Bench.count, 1.0),
    "read to Parquet, rows/s": (Bench.parquet, 1.0),
    "write, rows/s": (Bench.write, 0.2),
    "stream from topic to topic, rows/s": (Bench.stream, 0.2),
    "micro-batch, ms": (Bench.latency, 0.0),
}


@contextmanager
def running(name: str, nodes: int, directory: Path) -> Iterator[str]:
    peer: Peer = peers.peer(name)
    if missing := peer.missing():
        raise click.ClickException(f"without {peer.title}: {missing}")
    peer.prepare()
    ports = free_ports(nodes)
    try:
        peer.start(directory, ports, synced=name == "sapwood")
        peers.load(name, ports, synced=name == "sapwood").first()
        yield ",".join(f"127.0.0.1:{port}" for port in ports)
    finally:
        peer.stop()


@click.command()
@click.option("--messages", default=10_000_000, show_default=True)
@click.option("--value-bytes", default=100, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--nodes", default=1, show_default=True)
@click.option("--kafka/--no-kafka", default=True, show_default=True, help="The connector on Kafka.")
@click.option("--only", multiple=True, help="Parts whose names begin so.  [all]")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON.")
def main(
    messages: int,
    value_bytes: int,
    rounds: int,
    nodes: int,
    kafka: bool,
    only: Sequence[str],
    output: Path | None,
) -> None:
    """Compare the two ways of Spark to a topic: medians of the rounds."""
    jars = connector_jars()
    chosen = {it: PARTS[it] for it in PARTS if not only or it.startswith(tuple(only))}
    found: dict[str, dict[str, list[float]]] = {it: {} for it in chosen}
    directory = Path(tempfile.mkdtemp(prefix="sapwood-bench-spark-"))
    others = OthersWatch()
    try:
        with running("sapwood", nodes, _made(directory / "sapwood")) as address:
            ways = [
                Way("sapwood", "sapwood", address),
                Way("connector on Sapwood", "kafka", address),
            ]
            measure(ways, chosen, found, directory, jars, messages, value_bytes, rounds)
        if kafka:
            with running("kafka", nodes, _made(directory / "kafka")) as address:
                ways = [Way("connector on Kafka", "kafka", address)]
                measure(ways, chosen, found, directory, jars, messages, value_bytes, rounds)
        used = others.share([it.pid for it in psutil.Process().children()])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    show(found)
    print(f"\nOthers used {used:.0%} of the machine.")
    if output is not None:
        output.write_text(json.dumps(found, indent=1))


def measure(
    ways: Sequence[Way],
    chosen: dict[str, tuple[Callable[[Bench, Way, str, int], float], float]],
    found: dict[str, dict[str, list[float]]],
    directory: Path,
    jars: Path,
    messages: int,
    value_bytes: int,
    rounds: int,
) -> None:
    spark = session(jars)
    try:
        bench = Bench(spark, directory, value_bytes)
        sizes = {max(WARM_UP, int(messages * share)) for _, share in chosen.values()} | {WARM_UP}
        for size in sizes:
            bench.fill(ways[0], f"topic-{size}", size)
        for part, (work, share) in chosen.items():
            size = max(WARM_UP, int(messages * share))
            if share:
                for way in ways:
                    work(bench, way, f"topic-{WARM_UP}", WARM_UP)
            for _ in range(rounds):
                for way in ways:
                    value = work(bench, way, f"topic-{size}", size)
                    found[part].setdefault(way.title, []).append(value)
                    print(f"{part}: {way.title} {value:,.0f}", file=sys.stderr, flush=True)
    finally:
        spark.stop()


def show(found: dict[str, dict[str, list[float]]]) -> None:
    titles = list(next(iter(found.values())))
    print(f"| | {' | '.join(titles)} |")
    print("|---|" + "---:|" * len(titles))
    for part, by_way in found.items():
        values = (f"{statistics.median(by_way[it]):,.0f}" for it in titles)
        print(f"| {part} | {' | '.join(values)} |")


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return count / (time.monotonic() - began)


def _check(found: int, count: int) -> None:
    if found != count:
        raise click.ClickException(f"{found} rows instead of {count}")


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


if __name__ == "__main__":
    main()
