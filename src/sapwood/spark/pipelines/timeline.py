"""`timeline`: the records of topics in one order of time, as a table and, if asked for, a topic.

The order is that of append times by the cluster's clock, then topic id, partition and offset: the
same for every reader, and causal. A micro-batch ends at a time that is over for every partition, so
what it holds precedes all that comes later, and partitions in which nothing happens hold nobody up.
It is sorted by one task, and added to the table, and to the topic, under the query's id and its own
number: a batch that Spark repeats after a crash is known by them.
"""

from __future__ import annotations

import functools
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.client import ErrorCode, KafkaClient, KafkaError
from sapwood.client.admin import NewTopic
from sapwood.spark.pipelines.words import (
    ALLOW_DATA_LOSS,
    BAD_INPUT_STATUS,
    Option,
    Pipeline,
    PipelineFailed,
    Run,
)
from sapwood.spark.sink_options import STREAM_TIMEOUT_MS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TABLE = "timeline"
ORDER = ("appendTime", "topicId", "partition", "offset")
FORMATS = ("parquet", "delta", "iceberg")
OWNER = "@timeline.json"
BATCH_ROWS = 500_000
_COUNTER_BITS = 16  # of a reading of the cluster's clock, below its milliseconds
_COMPACT_EVERY = 8


def timeline(frame: DataFrame) -> DataFrame:
    """Records as `format("sapwood")` has them with `appendTimes`, in their order.

    Of a batch. To the columns it adds `appended`, the append time as people read it.
    """
    appended = f"timestamp_millis(shiftright(appendTime, {_COUNTER_BITS})) as appended"
    ordered = frame.repartition(1).sortWithinPartitions(*ORDER)
    return ordered.selectExpr(appended, "*")


def as_records(ordered: DataFrame) -> DataFrame:
    """For a topic: as they were, with where they come from in headers."""
    origin = ", ".join(
        f"struct('sapwood-{name}' as key, cast(cast({column} as string) as binary) as value)"
        for name, column in (
            ("topic", "topic"),
            ("partition", "partition"),
            ("offset", "offset"),
            ("append-time", "appendTime"),
        )
    )
    return ordered.selectExpr(
        *("key", "value", "timestamp", "0 as partition"),
        f"concat(coalesce(headers, array()), array({origin})) as headers",
    )


class Timeline:
    """The table `timeline` in a folder of tables, and a topic: each batch is added to them once."""

    def __init__(self, root: Path, kind: str, *, is_text: bool, to: dict[str, str] | None) -> None:
        self._root, self._kind = root, kind
        self._is_text = is_text
        self._to = to

    def take(self, batch: DataFrame, number: int) -> None:
        """One micro-batch, as `foreachBatch` hands it over."""
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise RuntimeError("Spark doesn't say which query this is")
        ordered = timeline(batch)
        if self._to is not None:
            ordered.persist()
        try:
            self._to_table(ordered, query, number)
            if self._to is not None:
                self._to_topic(ordered, query, number, self._to)
        finally:
            ordered.unpersist()

    def _to_topic(self, ordered: DataFrame, query: str, number: int, to: dict[str, str]) -> None:
        writer = as_records(ordered).write.format("sapwood").options(**to)
        job = {"txnAppId": f"{TABLE}/{query}", "txnVersion": str(number)}
        writer.options(**job).mode("append").save()

    def _to_table(self, ordered: DataFrame, query: str, number: int) -> None:
        from sapwood.spark.archiving import claim
        from sapwood.spark.staging import LINES_DDL, read_lines
        from sapwood.spark.tables import open_table
        from sapwood.spark.tables.base import STAGING
        from sapwood.spark.tables.files import room_needed

        with room_needed(self._root):
            claim(self._root / OWNER, query, self._kind)
            table = open_table(self._root, TABLE, self._kind)
            if number <= table.last_batch(query):
                return
            staging = self._root / STAGING / query
            shutil.rmtree(staging, ignore_errors=True)  # of an attempt that came to nothing
            staging.mkdir(parents=True)
        if self._is_text:
            texts = {name: ordered[name].cast("string") for name in ("key", "value")}
            ordered = ordered.withColumns(texts)
        stage = functools.partial(_stage, folder=staging, with_date=table.keeps_date)
        staged = read_lines(ordered.mapInArrow(stage, LINES_DDL).toArrow())
        if staged:
            files = [each.file for each in staged]
            table.commit(query, number, files, staged[0].schema)
            if number % _COMPACT_EVERY == 0:
                for date in sorted({file.date for file in files}):
                    table.compact(date)
        shutil.rmtree(staging, ignore_errors=True)


def _stage(
    batches: Iterator[pa.RecordBatch], folder: Path, with_date: bool
) -> Iterator[pa.RecordBatch]:
    """In a task: all rows into files by the date of their append time; a line for each file."""
    import pyarrow as pa

    from sapwood.spark.staging import line_of
    from sapwood.spark.tables import Rows

    rows = Rows(folder, f"{uuid.uuid4()}", with_date=with_date, suffix=".staged")
    try:
        for batch in batches:
            if batch.num_rows:
                table = pa.Table.from_batches([batch])
                rows.add(TABLE, table, table.column("appended"))
        yield from map(line_of, rows.close())
    except BaseException:
        rows.discard()
        raise


def start(spark: SparkSession, run: Run) -> Sequence[StreamingQuery]:
    options = run.options
    topics, topic = options["topics"], options.get("topic")
    to = None
    if topic is not None:
        if topic in [name.strip() for name in topics.split(",")]:
            raise PipelineFailed(f"{topic} is where the result goes", status=BAD_INPUT_STATUS)
        _prepare(run.bootstrap, topic)
        timeout = {"kafka.transaction.timeout.ms": str(STREAM_TIMEOUT_MS)}
        to = {**run.source(topic=topic, includeTimestamp="true"), **timeout}
    frame = run.read_stream(
        spark,
        subscribe=topics,
        includeHeaders="true",
        appendTimes="true",
        maxOffsetsPerTrigger=options["batch_rows"],
    )
    tables = Path(options.get("tables", run.directory / "tables")).absolute()
    target = Timeline(tables, options["format"], is_text=options["text"], to=to)
    query = (
        frame.writeStream.queryName(run.name)
        .foreachBatch(target.take)
        .option("checkpointLocation", run.checkpoint("timeline"))
        .trigger(**run.trigger)
        .start()
    )
    return [query]


def _prepare(bootstrap: str, topic: str) -> None:
    """One partition: over several there would be no order."""
    with KafkaClient(bootstrap) as client:
        try:
            client.create_topics([NewTopic(topic, 1)])
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            if (count := len(client.metadata([topic]).topics[topic].partitions)) > 1:
                raise PipelineFailed(
                    f"topic {topic} has {count} partitions: an order needs one that has one",
                    status=BAD_INPUT_STATUS,
                ) from None


PIPELINE = Pipeline(
    name="timeline",
    summary="The records of topics in one order of time, as a table and a topic.",
    start=start,
    options=(
        Option(name="topics", required=True, help="Names with commas.", names_topics=True),
        Option(
            name="tables",
            kind=Path,
            help="The folder in which they become the table `timeline`.  [the run's own]",
        ),
        Option(name="format", help="Of the table.", default="parquet", choices=FORMATS),
        Option(name="topic", help="Where they go as well, into its one partition.  [none]"),
        Option(name="text", kind=bool, default=False, help="Keys and values are text."),
        Option(name="batch-rows", kind=int, default=BATCH_ROWS, help="The most records at a time."),
        ALLOW_DATA_LOSS,
    ),
)
