"""`replay`: the rows of a table as messages of a topic, in their order, each once.

First the rows are written to a spool beside the run's state, as the messages that they will be:
what happens to the table from then on doesn't matter, and the order is settled. Then the spool is
sent as a stream, as fast as wanted. A replay that was killed goes on with its spool; one that has
finished leaves none, and the next one begins anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.spark.pipelines.words import (
    BAD_INPUT_STATUS,
    Option,
    Pipeline,
    PipelineFailed,
    Run,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# What a record has beside its value, under the names of Spark's source.
_BESIDE = ("key", "headers", "topic", "partition", "offset", "timestamp", "timestampType")
_HEADERS = "array<struct<key: string, value: binary>>"
# What of the options decides which messages there are, and so has to stay while a spool is sent.
SETTLED = ("table", "format", "topic", "where", "key", "value", "shift", "keep_partitions")
# By which rows are sorted: the lane, the place in it, and the place in the table.
_ORDER = ("sapwood_lane", "sapwood_place", "sapwood_row")
_ROWS_PER_FILE = 1_000_000


def replay(
    frame: DataFrame,
    *,
    topic: str | None = None,
    where: str | None = None,
    key: str | None = None,
    value: str | None = None,
    shift: str | None = None,
    keep_partitions: bool = False,
) -> DataFrame:
    """Rows as messages: what the sink of `format("sapwood")` takes.

    `where`, `key` and `value` are SQL. Without them, all rows; the columns key and value or, where
    there is no value, all other columns as JSON. `shift` is what is added to the timestamps, such
    as `3 days`, or `now`: the first message is stamped with the present time.
    """
    from pyspark.sql import functions as f

    if where:
        frame = frame.where(where)
    held = beside(frame.columns)
    if value is None and _has_value(frame.columns):
        value = "value"
    if value is None:
        apart = {*held.values(), *_ORDER, *(["date"] if "offset" in held else [])}
        rest = [name for name in frame.columns if name not in apart]
        if not rest:
            raise PipelineFailed(
                "the table has no column for a value: give --value", status=BAD_INPUT_STATUS
            )
        content: Column = f.to_json(f.struct(*rest))
    else:
        content = f.expr(value)
    if topic is None and "topic" not in held:
        raise PipelineFailed(
            "the table doesn't say which topic: give --topic", status=BAD_INPUT_STATUS
        )

    def column(name: str, kind: str) -> Column:
        return (f.col(held[name]) if name in held else f.lit(None)).cast(kind)

    def as_bytes(found: Column) -> Column:
        is_binary = frame.select(found).schema[0].dataType.typeName() == "binary"
        return found if is_binary else found.cast("string").cast("binary")

    stamped = column("timestamp", "timestamp")
    if shift == "now":
        first = frame.select(f.min(stamped)).collect()[0][0]
        stamped = stamped if first is None else stamped + (f.current_timestamp() - f.lit(first))
    elif shift:
        stamped = stamped + f.expr(f"interval {shift}")
    message: dict[str, Column] = {
        "key": as_bytes(f.expr(key or held.get("key", "cast(null as binary)"))),
        "value": as_bytes(content),
        "headers": column("headers", _HEADERS),
        "topic": f.lit(topic) if topic else f.col(held["topic"]),
        "partition": column("partition", "int") if keep_partitions else f.lit(None).cast("int"),
        "timestamp": f.coalesce(stamped, f.current_timestamp()),
    }
    kept = [name for name in _ORDER if name in frame.columns]
    return frame.select(*(each.alias(name) for name, each in message.items()), *kept)


def beside(columns: Sequence[str]) -> dict[str, str]:
    """By Spark's name for it: the column with what a record has beside its value.

    Where `archive` has made columns of values it writes `_key`, `_offset` and so on.
    """
    mark = "_" if "_offset" in columns else ""
    return {name: f"{mark}{name}" for name in _BESIDE if f"{mark}{name}" in columns}


def _has_value(columns: Sequence[str]) -> bool:
    """As a whole: among columns made of values it would be one of their fields."""
    return "value" in columns and "_offset" not in columns


def in_order(table: DataFrame) -> DataFrame:
    """With columns that say in which order rows are to be sent, and which of them in one lane.

    Rows of a partition in the order of their offsets; others by their time.
    """
    from pyspark.sql import functions as f

    held = beside(table.columns)
    lane = f.lit(0)
    if "partition" in held:
        lane = f.coalesce(f.col(held["partition"]).cast("int"), lane)
    by = held.get("offset") or held.get("timestamp")
    place = f.col(by) if by else f.lit(0)
    columns = (lane, place, f.monotonically_increasing_id())
    return table.withColumns(dict(zip(_ORDER, columns, strict=True)))


def read_table(spark: SparkSession, path: Path, form: str) -> DataFrame:
    """Of any of the formats that `archive` writes."""
    if not path.exists():
        raise PipelineFailed(f"there is no table {path}", status=BAD_INPUT_STATUS)
    if form == "parquet":
        return spark.read.parquet(str(path))
    from sapwood.spark.tables import open_table

    table = open_table(path.parent, path.name, form)
    files = [file.path for file in table.files()]
    if not files:
        raise PipelineFailed(f"the table {path} has no rows")
    reader = spark.read.option("mergeSchema", "true")
    if not table.keeps_date:  # it is in the files' paths
        reader = reader.option("basePath", str(path))
    return reader.parquet(*files)


class Spool:
    """Where the messages of a replay wait."""

    def __init__(self, run: Run) -> None:
        place = run.checkpoint("spool").removeprefix("file://")
        if "://" in place:
            raise PipelineFailed(
                f"{place}: a replay's spool has to lie in a folder that all of Spark can reach",
                status=BAD_INPUT_STATUS,
            )
        self.path = Path(place)
        self.checkpoint = Path(place).with_name("replay")
        self._asked: dict[str, Any] = {key: run.options.get(key) for key in SETTLED}

    @property
    def _note(self) -> Path:
        return self.path / "_request.json"

    def is_there(self) -> bool:
        """One that an earlier run hasn't finished, of the same messages."""
        if not self.path.exists():
            return False
        if msgspec.json.decode(self._note.read_bytes()) != self._asked:
            raise PipelineFailed(
                "a replay of something else was not finished: run it again with its options, "
                f"give this one another --name, or remove {self.path}"
            )
        return True

    def fill(self, messages: DataFrame) -> None:
        """All of it or nothing. Positions in an earlier spool are forgotten first."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        making = self.path.with_name("spool.new")
        shutil.rmtree(making, ignore_errors=True)
        # What Python reads: Spark's older kind of timestamps has no unit that says so.
        messages.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        (
            messages.repartition(_ORDER[0])
            .sortWithinPartitions(*_ORDER)
            .write.partitionBy(_ORDER[0])
            .option("maxRecordsPerFile", _ROWS_PER_FILE)
            .parquet(str(making))
        )
        (making / self._note.name).write_bytes(msgspec.json.encode(self._asked))
        os.replace(making, self.path)

    def remove(self) -> None:
        """The spool before the positions in it: without them it would be sent again."""
        gone = self.path.with_name("spool.gone")
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(self.path, gone)
        shutil.rmtree(gone, ignore_errors=True)
        shutil.rmtree(self.checkpoint, ignore_errors=True)


def start(spark: SparkSession, run: Run) -> Sequence[StreamingQuery]:
    from sapwood.spark.spooled import FORMAT, SpoolSource

    asked = run.options
    spool = Spool(run)
    if not spool.is_there():
        table = read_table(spark, Path(asked["table"]), asked["format"])
        chosen = {name: asked.get(name) for name in ("topic", "where", "key", "value", "shift")}
        keep = bool(asked.get("keep_partitions"))
        spool.fill(replay(in_order(table), keep_partitions=keep, **chosen))
    spark.dataSource.register(SpoolSource)
    rows = spark.readStream.format(FORMAT).option("path", str(spool.path))
    rows = rows.option("batchRows", asked["batch_rows"]).option("rate", asked.get("rate") or 0)
    query = (
        rows.load()
        .writeStream.queryName(run.name)
        .format("sapwood")
        .options(**run.source(includeTimestamp="true"))
        .option("checkpointLocation", str(spool.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    return [query]


def finish(run: Run) -> None:
    Spool(run).remove()


PIPELINE = Pipeline(
    name="replay",
    summary="The rows of a table as messages of a topic.",
    start=start,
    finish=finish,
    options=(
        Option(name="table", kind=Path, required=True, help="The folder of the table."),
        Option(
            name="format",
            default="parquet",
            choices=("parquet", "delta", "iceberg"),
            help="Of the table.",
        ),
        Option(name="topic", help="Where they go.  [default: as the table's column says]"),
        Option(name="where", metavar="SQL", help="Which rows, such as \"date = '2026-11-18'\"."),
        Option(name="key", metavar="SQL", help="The messages' keys.  [default: the column key]"),
        Option(
            name="value",
            metavar="SQL",
            help="Their values.  [default: the column value, or all columns as JSON]",
        ),
        Option(
            name="shift",
            metavar="INTERVAL",
            help="Add this to the timestamps, such as '3 days', or 'now': they begin now.  "
            "[default: as they are]",
        ),
        Option(name="keep-partitions", kind=bool, default=False, help="Each into its old one."),
        Option(name="rate", kind=float, help="So many messages a second at most."),
        Option(name="batch-rows", kind=int, default=200_000, help="The most at a time."),
    ),
)
