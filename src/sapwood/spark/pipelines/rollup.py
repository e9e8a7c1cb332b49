"""`rollup`: how much came into each topic in each window of time, and how old it was by then.

A window is told once, when no record of it is expected any more. It goes to a topic, and from
there, by a second query that has next to nothing to do, into a table: so both agree.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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

TOPIC = "__sapwood_rollup"
TABLE = "rollup"
OWNER = "@rollup.json"
# The header that tells whose windows these are: several rollups may share a topic.
QUERY_HEADER = "sapwood-query"
_QUERY_ID = "sql.streaming.queryId"
PERCENTILES = (50, 95, 99)
FORMATS = ("parquet", "delta", "iceberg")
# A percentile's rank is right to one record in so many.
_ACCURACY = 1000
_ROWS_AT_ONCE = 100_000
_SCHEMA = ", ".join(
    [
        "topic string",
        "start timestamp",
        "stop timestamp",
        "records bigint",
        "records_per_s double",
        "bytes bigint",
        "keys bigint",
        *(f"latency_p{percent}_ms bigint" for percent in PERCENTILES),
        "latency_max_ms bigint",
    ]
)


def rollup(frame: DataFrame, size: str = "1 minute", late: str = "10 seconds") -> DataFrame:
    """One row per topic and window, of a stream or of a batch, as the source has its columns.

    `keys` counts different keys, within 5 %. Latency is the time from a record's timestamp (its
    producer's, or the broker's where the topic says so) to the micro-batch that took it, by this
    machine's clock: Spark notes that in the checkpoint, so a batch that is repeated tells the same.
    A record that comes more than `late` behind the youngest one is left out.
    """
    from pyspark.sql.functions import expr, window

    ranks = ", ".join(str(percent / 100) for percent in PERCENTILES)
    windows = (
        frame.selectExpr(
            *("topic", "timestamp", "key"),
            "coalesce(length(key), 0) + coalesce(length(value), 0) as bytes",
            "greatest(0, unix_millis(current_timestamp()) - unix_millis(timestamp)) as latency_ms",
        )
        .withWatermark("timestamp", late)
        .groupBy("topic", window("timestamp", size).alias("span"))
        .agg(
            expr("count(*) as records"),
            expr("sum(bytes) as bytes"),
            expr("approx_count_distinct(key) as keys"),
            expr(f"percentile_approx(latency_ms, array({ranks}), {_ACCURACY}) as latencies"),
            expr("max(latency_ms) as latency_max_ms"),
        )
    )
    seconds = "((unix_millis(span.end) - unix_millis(span.start)) / 1000)"
    return windows.selectExpr(
        "topic",
        "span.start as start",
        "span.end as stop",
        "records",
        f"records / {seconds} as records_per_s",
        "bytes",
        "keys",
        *(
            f"latencies[{index}] as latency_p{percent}_ms"
            for index, percent in enumerate(PERCENTILES)
        ),
        "latency_max_ms",
    )


def as_records(windows: DataFrame) -> DataFrame:
    """The columns `key` (the topic) and `value` (JSON), for a topic."""
    return windows.selectExpr(
        "cast(topic as binary) as key", "cast(to_json(struct(*)) as binary) as value"
    )


def from_records(frame: DataFrame) -> DataFrame:
    """What `as_records` has made of windows, as windows."""
    parsed = frame.selectExpr(f"from_json(cast(value as string), '{_SCHEMA}') as window")
    return parsed.selectExpr("window.*")


def _signed(records: DataFrame) -> DataFrame:
    """With the id of the streaming query that tells them: one that begins anew has another."""
    from pyspark.sql.functions import array, lit, struct, udf

    query = udf(_query_of_task, "string", useArrow=False)().cast("binary")
    header = struct(lit(QUERY_HEADER).alias("key"), query.alias("value"))
    return records.withColumn("headers", array(header))


def _query_of_task() -> str | None:
    from pyspark import TaskContext

    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_QUERY_ID)


def _signed_by(query: str, records: DataFrame) -> DataFrame:
    return records.where(
        f"exists(headers, each -> each.key = '{QUERY_HEADER}' "
        f"and each.value = cast('{query}' as binary))"
    )


def start(spark: SparkSession, run: Run) -> Sequence[StreamingQuery]:
    """Without a limit to the first batch: it is what tells how far apart the topics' times are.

    A watermark is one for all topics. Were they taken by pieces, one whose records are older
    would be late for good.
    """
    options = run.options
    topic = options["topic"]
    frame = run.read_stream(spark, **_chosen(options.get("topics"), options.get("pattern"), topic))
    windows = rollup(frame, options["window"], options["late"])
    _create(run.bootstrap, topic)
    to_topic = (
        _signed(as_records(windows))
        .writeStream.queryName(run.name)
        .format("sapwood")
        .options(**run.source(topic=topic))
        .option("checkpointLocation", run.checkpoint("windows"))
        .outputMode("append")
        .trigger(**run.trigger)
        .start()
    )
    if run.once:
        to_topic.awaitTermination()
    told = run.read_stream(
        spark, subscribe=topic, includeHeaders="true", maxOffsetsPerTrigger=_ROWS_AT_ONCE
    )
    tables = Path(options.get("tables", run.directory / "tables")).absolute()
    windows_query = str(to_topic.id)
    to_table = (
        from_records(_signed_by(windows_query, told))
        .writeStream.queryName(f"{run.name}-table")
        .foreachBatch(WindowTable(tables, options["format"], windows_query).take)
        .option("checkpointLocation", run.checkpoint("table"))
        .trigger(**run.trigger)
        .start()
    )
    return [to_topic, to_table]


class WindowTable:
    """The table `rollup` in a folder of tables, to which each batch of windows is added once.

    It belongs to the two queries of one rollup, that which tells the windows and that which takes
    them: were one of them another, windows would be there twice.
    """

    def __init__(self, root: Path, kind: str, windows_query: str) -> None:
        self._root, self._kind = root, kind
        self._windows_query = windows_query

    def take(self, batch: DataFrame, number: int) -> None:
        """One micro-batch, as `foreachBatch` hands it over: small enough for the driver."""
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise RuntimeError("Spark doesn't say which query this is")
        self.add(batch.toArrow(), query, number)

    def add(self, rows: pa.Table, query: str, number: int) -> None:
        from sapwood.spark.archiving import claim
        from sapwood.spark.tables import Rows, open_table
        from sapwood.spark.tables.base import STAGING
        from sapwood.spark.tables.files import room_needed

        with room_needed(self._root):
            claim(self._root / OWNER, f"{self._windows_query}/{query}", self._kind)
        if not rows.num_rows:
            return
        table = open_table(self._root, TABLE, self._kind)
        staging = self._root / STAGING / query
        shutil.rmtree(staging, ignore_errors=True)  # of an attempt that came to nothing
        writer = Rows(staging, f"{uuid.uuid4()}", with_date=table.keeps_date, suffix=".staged")
        writer.add(TABLE, rows, rows.column("start"))
        written = writer.close()
        table.commit(query, number, [each.file for each in written], rows.schema)
        shutil.rmtree(staging, ignore_errors=True)
        for date in sorted({each.file.date for each in written}):
            table.compact(date)


def _chosen(topics: str | None, pattern: str | None, result: str) -> dict[str, str]:
    """Options of the source. What is rolled up must not be the result of that."""
    if topics is not None and pattern is not None:
        raise PipelineFailed("give --topics or --pattern, not both", status=BAD_INPUT_STATUS)
    if topics is not None:
        if result in topics.split(","):
            raise PipelineFailed(f"{result} is where the result goes", status=BAD_INPUT_STATUS)
        return {"subscribe": topics}
    # Topics of Sapwood's own are not of interest unless they are asked for.
    wanted = "(?!__).*" if pattern is None else f"(?:{pattern})"
    return {"subscribePattern": f"(?!{re.escape(result)}$){wanted}"}


def _create(bootstrap: str, topic: str) -> None:
    with KafkaClient(bootstrap) as client:
        try:
            client.create_topics([NewTopic(topic, 1)])
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


PIPELINE = Pipeline(
    name="rollup",
    summary="Records, bytes, keys and latencies of each topic in windows of time.",
    start=start,
    options=(
        Option(
            name="topics",
            help="What to roll up: names with commas.  [default: all]",
            names_topics=True,
        ),
        Option(name="pattern", help="Or: a regular expression for names."),
        Option(name="window", help="How long a window is.", default="1 minute"),
        Option(name="late", help="How much later a record may come.", default="10 seconds"),
        Option(name="topic", help="Where the windows go.", default=TOPIC),
        Option(
            name="tables",
            help="The folder in which they become the table `rollup`.  [the run's own]",
            kind=Path,
        ),
        Option(name="format", help="Of the table.", default="parquet", choices=FORMATS),
        ALLOW_DATA_LOSS,
    ),
)
