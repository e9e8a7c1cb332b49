"""`archive`: topics as tables by date: Parquet, Delta or Iceberg, and each record once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.spark.pipelines.words import (
    ALLOW_DATA_LOSS,
    BAD_INPUT_STATUS,
    Option,
    Pipeline,
    PipelineFailed,
    Run,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sapwood.spark.values import ValueFormat

# Every topic that isn't the system's own.
ALL_TOPICS = "(?!__).+"
# What a driver that is killed does again; a task holds no more of it than a few row groups.
BATCH_ROWS = 2_000_000


def archive(
    frame: DataFrame,
    tables: str | Path,
    *,
    kind: str = "parquet",
    values: ValueFormat | None = None,
    stop_at_bad: bool = False,
    dead_letters_to: str | None = None,
    checkpoint: str,
    name: str = "archive",
    once: bool = True,
    every_s: float = 10.0,
) -> StreamingQuery:
    """Start to put a stream of records, as `format("sapwood")` reads them, into their tables.

    The columns of the source, headers included. Bad records go to tables of their own and, if there
    is a cluster for it, to `<topic>.dead`.
    """
    from sapwood.spark.archiving import Archive
    from sapwood.spark.dead_letters import DeadLetters
    from sapwood.spark.values import ValueFormat

    target = Archive(
        Path(tables),
        kind,
        values or ValueFormat(),
        stop_at_bad=stop_at_bad,
        dead_letters=DeadLetters(dead_letters_to) if dead_letters_to else None,
    )
    writer = frame.writeStream.queryName(name).foreachBatch(target.take)
    writer = writer.option("checkpointLocation", checkpoint)
    trigger = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{every_s} seconds")
    )
    return trigger.start()


def start(spark: SparkSession, run: Run) -> Sequence[StreamingQuery]:
    options = run.options
    frame = run.read_stream(
        spark,
        **_topics(options.get("topics"), options.get("pattern")),
        startingOffsets=options["start"],
        maxOffsetsPerTrigger=options["batch_rows"],
        includeHeaders=True,
    )
    query = archive(
        frame,
        options.get("tables") or run.directory / "tables",
        kind=options["format"],
        values=_values(spark, run),
        stop_at_bad=options["stop_at_bad"],
        dead_letters_to=run.bootstrap,
        checkpoint=run.checkpoint("archive"),
        name=run.name,
        once=run.once,
        every_s=options["every"],
    )
    return [query]


def _topics(names: str | None, pattern: str | None) -> dict[str, str]:
    if names and pattern:
        raise PipelineFailed("give --topics or --pattern, not both", status=BAD_INPUT_STATUS)
    if names and any(name.strip().endswith(".dead") for name in names.split(",")):
        raise PipelineFailed(
            "topics that end in .dead are made by this pipeline, and are in tables already",
            status=BAD_INPUT_STATUS,
        )
    if names:
        return {"subscribe": names}
    # What was put aside is in tables already.
    return {"subscribePattern": rf"(?!.*\.dead$)(?:{pattern or ALL_TOPICS})"}


def _values(spark: SparkSession, run: Run) -> ValueFormat:
    """What the options say about values, with what their files hold: tasks can't read those."""
    from sapwood.spark.staging import BESIDE_FIELDS
    from sapwood.spark.values import ValueFormat, WrongSchema, make_decoder

    kind, given = run.options["values"], run.options.get("schema")
    if kind == "raw":
        return ValueFormat()
    try:
        schema = None if given is None else _schema(spark, kind, given)
        found = ValueFormat(kind, schema, run.options.get("message"), run.options.get("registry"))
        make_decoder(found, BESIDE_FIELDS)
    except (WrongSchema, OSError, ValueError) as error:
        raise PipelineFailed(f"--schema {given}: {error}", status=BAD_INPUT_STATUS) from None
    return found


def _schema(spark: SparkSession, kind: str, given: str) -> bytes:
    if kind != "json":
        return Path(given).read_bytes()
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from sapwood.spark.tables.schemas import to_bytes

    path = Path(given)
    text = path.read_text() if path.is_file() else given
    try:
        found = spark.createDataFrame([], text).schema
    except PySparkException as error:
        line = str(error).strip().splitlines()[0]
        raise ValueError(f"neither a file nor columns as SQL has them: {line}") from None
    if not isinstance(found, StructType):
        raise ValueError("it must name columns")
    return to_bytes(to_arrow_schema(found))


PIPELINE = Pipeline(
    name="archive",
    summary="Topics as tables by date: Parquet, Delta or Iceberg, each record once.",
    start=start,
    options=(
        Option(
            name="topics",
            help="Names with commas between them; without, every topic but those with __.",
            names_topics=True,
        ),
        Option(name="pattern", help="A regular expression; topics that match later come, too."),
        Option(name="tables", kind=Path, help="The folder of the tables."),
        Option(
            name="format",
            default="parquet",
            choices=("parquet", "delta", "iceberg"),
            help="What the tables are.",
        ),
        Option(
            name="values",
            default="raw",
            choices=("raw", "json", "avro", "protobuf"),
            help="What the values are; all but raw ones become columns.",
        ),
        Option(
            name="schema",
            help="Of the values. JSON: columns as in SQL, or a file of them; without, they are "
            "found by looking. Avro: a file. Protobuf: a file of descriptors.",
        ),
        Option(name="message", help="Protobuf's message, if it isn't the first of the file."),
        Option(name="registry", help="A schema registry; values have a schema id in front."),
        Option(
            name="stop-at-bad",
            kind=bool,
            default=False,
            help="End at a record that can't be understood, instead of putting it aside.",
        ),
        Option(
            name="start",
            default="earliest",
            choices=("earliest", "latest"),
            help="Where a first run begins.",
        ),
        Option(name="batch-rows", kind=int, default=BATCH_ROWS, help="The most records at a time."),
        Option(
            name="every", kind=float, default=10.0, help="Seconds between batches, if not once."
        ),
        ALLOW_DATA_LOSS,
    ),
)
