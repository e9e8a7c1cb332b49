"""`python -m compat spark`: Spark's own Kafka connector, batch and stream, source and sink."""

import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import click
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

import sapwood
from bench.connector import connector_jars, session
from bench.peers import PeerFailed

PARTITIONS = 3
COUNT = 5000
BATCH = 1000
NUMBER = "cast(cast(value as string) as bigint)"


class Surprise(Exception):
    """Something else came than what every Kafka client would get."""


class Connector:
    """Each check is a method that raises if something isn't as it should be."""

    def __init__(self, spark: SparkSession, cluster: sapwood.Cluster, directory: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._directory = directory
        self._number = 0

    def writes_a_batch(self) -> None:
        topic = self._topic()
        header = "array(struct('h' as key, cast('v' as binary) as value)) as headers"
        rows = self._spark.range(COUNT).selectExpr(
            "cast(id % 100 as string) as key", "cast(id as string) as value", header
        )
        self._save(rows, topic=topic, includeHeaders="true")
        found = self._read("sapwood", subscribe=topic, includeHeaders="true")
        self._is_whole(found)
        same(found.where("headers[0].key = 'h' and headers[0].value = X'76'").count(), COUNT)
        # Kafka's own way to place keys, as all clients have it.
        same(found.groupBy("key").agg(f.countDistinct("partition").alias("n")).where("n > 1"), 0)

    def places_rows_where_their_columns_say(self) -> None:
        one, two = self._topic(), self._topic()
        rows = self._spark.range(COUNT).selectExpr(
            "cast(id as string) as value",
            f"if(id % 2 = 0, '{one}', '{two}') as topic",
            f"cast(id % {PARTITIONS} as int) as partition",
        )
        self._save(rows)
        found = self._read("sapwood", subscribe=f"{one},{two}")
        self._is_whole(found)
        wrong = f"topic != if({NUMBER} % 2 = 0, '{one}', '{two}') or partition != {NUMBER} % 3"
        same(found.where(wrong), 0)

    def reads_a_batch_as_our_own_source_does(self) -> None:
        topic = self._filled()
        ours, theirs = (self._read(it, subscribe=topic) for it in ("sapwood", "kafka"))
        self._is_whole(theirs)
        same(ours.exceptAll(theirs), 0)
        same(theirs.exceptAll(ours), 0)

    def reads_between_offsets_and_times(self) -> None:
        topic = self._filled()
        every = self._read("kafka", subscribe=topic)
        first = json.dumps({topic: {str(it): 10 for it in range(PARTITIONS)}})
        last = json.dumps({topic: {str(it): 110 for it in range(PARTITIONS)}})
        part = self._read("kafka", subscribe=topic, startingOffsets=first, endingOffsets=last)
        same(part, 100 * PARTITIONS)
        (middle,) = every.selectExpr("unix_millis(max(timestamp))").first() or (None,)
        since = self._read("kafka", subscribe=topic, startingTimestamp=str(middle))
        same(since, every.where(f"unix_millis(timestamp) >= {middle}").count())

    def sees_no_aborted_record_if_it_asks_for_committed_ones(self) -> None:
        topic = self._topic()
        bootstrap = self._cluster.bootstrap
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
        producer.init_transactions(30)
        for value, ends in (("gone", producer.abort_transaction), ("0", None)):
            producer.begin_transaction()
            producer.produce(topic, value)
            if ends is not None:
                producer.flush(30)
            (ends or producer.commit_transaction)(30)
        committed = {"kafka.isolation.level": "read_committed"}
        found = self._read("kafka", subscribe=topic, **committed)
        same([bytes(row.value) for row in found.collect()], [b"0"])

    def copies_a_stream_and_goes_on_where_it_was(self) -> None:
        source, target = self._filled(), self._topic()
        self._copy(source, target)
        self._produce(source, COUNT, COUNT + BATCH)
        self._copy(source, target)
        self._is_whole(self._read("sapwood", subscribe=target), COUNT + BATCH)

    def reads_what_our_sink_writes_and_our_source_what_its_sink_writes(self) -> None:
        source, between, target = self._filled(), self._topic(), self._topic()
        self._copy(source, between, "kafka", "sapwood")
        self._copy(between, target, "sapwood", "kafka")
        self._is_whole(self._read("kafka", subscribe=target))

    def follows_a_leader_that_was_killed(self) -> None:
        source, target = self._filled(), self._topic()
        query = self._start(source, target, "kafka", "kafka")
        while query.isActive and not query.recentProgress:
            query.awaitTermination(1)
        victim = self._cluster.leader(source, 0)
        self._cluster.kill(victim)
        try:
            query.awaitTermination()
            # At least once is what the connector's sink promises.
            found = self._read("sapwood", subscribe=target)
            same(found.selectExpr(NUMBER).distinct(), COUNT)
        finally:
            self._cluster.restart(victim)

    def subscribes_by_pattern(self) -> None:
        topic = self._filled()
        self._is_whole(self._read("kafka", subscribePattern=f"{topic[:-1]}[{topic[-1]}]"))

    def _topic(self) -> str:
        self._number += 1
        name = f"connector-{self._number}"
        self._cluster.create_topics({name: PARTITIONS})
        return name

    def _filled(self) -> str:
        topic = self._topic()
        self._produce(topic, 0, COUNT)
        return topic

    def _produce(self, topic: str, start: int, stop: int) -> None:
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap})
        for number in range(start, stop):
            producer.produce(topic, str(number), key=str(number), partition=number % PARTITIONS)
        same(producer.flush(60), 0)

    def _read(self, form: str, **options: str) -> DataFrame:
        reader = self._spark.read.format(form)
        reader = reader.option("kafka.bootstrap.servers", self._cluster.bootstrap)
        return reader.options(**options).load()

    def _save(self, rows: DataFrame, **options: str) -> None:
        writer = rows.write.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", self._cluster.bootstrap)
        writer.options(**options).mode("append").save()

    def _copy(self, source: str, target: str, reads: str = "kafka", writes: str = "kafka") -> None:
        self._start(source, target, reads, writes).awaitTermination()

    def _start(self, source: str, target: str, reads: str, writes: str) -> StreamingQuery:
        bootstrap = self._cluster.bootstrap
        rows = (
            self._spark.readStream.format(reads)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", BATCH)
            .load()
            .select("key", "value")
        )
        writer = (
            rows.writeStream.format(writes)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(self._directory / f"{source}-{target}"))
        )
        return writer.trigger(availableNow=True).start()

    def _is_whole(self, frame: DataFrame, count: int = COUNT) -> None:
        """Each number is there, and once."""
        found = frame.selectExpr(
            "count(*)", f"count(distinct {NUMBER})", f"max({NUMBER}) + 1"
        ).first()
        same(tuple(found or ()), (count, count, count))


def same(found: object, wanted: object) -> None:
    found = found.count() if isinstance(found, DataFrame) else found
    if found != wanted:
        raise Surprise(f"{found!r} came instead of {wanted!r}")


def checks(connector: Connector) -> dict[str, Callable[[], None]]:
    names = (it for it in vars(Connector) if not it.startswith("_"))
    return {name.replace("_", " "): getattr(connector, name) for name in names}


@click.command()
@click.option("-k", "only", metavar="WORDS", default="", help="Only the checks with these in it.")
def spark(only: str) -> None:
    """Let Spark's own Kafka connector read and write a cluster of three nodes."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise click.ClickException(
                f"{program} is missing (Debian: default-jdk-headless, maven)"
            )
    try:
        jars = connector_jars()
    except PeerFailed as error:
        raise click.ClickException(str(error)) from error
    found: dict[str, str | None] = {}
    with tempfile.TemporaryDirectory(prefix="sapwood-compat-") as directory:
        running = session(
            jars, **{"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
        )
        try:
            with sapwood.Cluster(nodes=3) as cluster:
                connector = Connector(running, cluster, Path(directory))
                for name, check in checks(connector).items():
                    if only in name:
                        found[name] = problem_of(check)
        finally:
            running.stop()
    sys.exit(1 if show(found) else 0)


def problem_of(check: Callable[[], None]) -> str | None:
    try:
        check()
    except Exception as error:
        if not isinstance(error, Surprise):
            traceback.print_exc()
        return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return None


def show(found: dict[str, str | None]) -> int:
    """The number of those that failed."""
    table = Table(Column("Spark's Kafka connector", no_wrap=True), "result")
    for name, problem in found.items():
        table.add_row(name, Text(problem, "red") if problem else Text("passed", "green"))
    console = Console()
    console.print(table)
    failed = sum(problem is not None for problem in found.values())
    console.print(f"{len(found) - failed} passed, {failed} failed")
    return failed
