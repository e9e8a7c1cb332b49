"""`latest`: the newest value of each key as a table, from a compacted topic or a plain one.

The table is a folder of Parquet files, `<table>/current`, which is a link to its newest version.
Keys fall into buckets: a version consists of new files for the buckets that have changed, and of
hard links to the old ones for the rest; the link then moves in one step, so that a reader sees one
state or the next and nothing between. A version has the records of deleted keys as well, under
`_deleted`, where readers don't look: what is older may come later, from another partition, and must
not bring the keys back. To merge the same records again changes nothing, which is why a batch that
Spark repeats after a crash needs no further care.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.spark.pipelines.words import ALLOW_DATA_LOSS, Option, Pipeline, PipelineFailed, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DELETED = "_deleted"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
BUCKETS = 16
# Whoever reads a version that was replaced has this long to finish.
KEEP_S = 60.0


def latest(frame: DataFrame) -> DataFrame:
    """The newest record of each key, those without a value (deletions) included.

    Within a partition that is the one with the highest offset, as compaction has it. If a key is
    in several partitions, since some were added, the youngest of their newest ones.
    """
    from pyspark.sql import functions as f

    record = f.struct(*frame.columns)
    newest = (
        frame.where("key is not null")
        .groupBy("topic", "key", "partition")
        .agg(f.max_by(record, "offset").alias("record"))
        .groupBy("topic", "key")
        .agg(f.max_by("record", f.struct("record.timestamp", "partition")).alias("record"))
    )
    return newest.select("record.*")


class LatestTable:
    """A folder whose `current` is always a whole state of the table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._current = path / "current"

    def merge(self, changes: DataFrame) -> None:
        """Make a version in which each key has the newest of its old and its new records."""
        from pyspark.sql import functions as f

        spark = changes.sparkSession
        bucket = f.pmod(f.xxhash64("key"), f.lit(BUCKETS)).cast("int")
        newest = latest(changes).withColumn("bucket", bucket).persist()
        try:
            touched = {row.bucket for row in newest.select("bucket").distinct().collect()}
            if not touched and self._current.exists():
                return
            merged = newest
            for folder in (self._current, self._current / DELETED):
                old = [path for path in _buckets(folder) if int(path.name[7:]) in touched]
                if old:
                    reader = spark.read.option("basePath", str(folder))
                    merged = merged.unionByName(reader.parquet(*map(str, old)))
            version = self._next_version()
            making = version.with_suffix(".new")
            shutil.rmtree(making, ignore_errors=True)
            (
                latest(merged)
                .withColumn("is_deleted", f.col("value").isNull())
                .repartition(max(1, len(touched)), "bucket")
                .write.partitionBy("is_deleted", "bucket")
                .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
                .parquet(str(making))
            )
        finally:
            newest.unpersist()
        kept = making / "is_deleted=false"
        deleted = kept / DELETED
        kept.mkdir(parents=True, exist_ok=True)
        if (found := making / "is_deleted=true").exists():
            os.replace(found, deleted)
        for old_folder, new_folder in ((self._current, kept), (self._current / DELETED, deleted)):
            for path in _buckets(old_folder):
                if int(path.name[7:]) not in touched:
                    shutil.copytree(path, new_folder / path.name, copy_function=os.link)
        os.replace(kept, version)
        shutil.rmtree(making)
        self._publish(version)

    def _next_version(self) -> Path:
        versions = self._path / "versions"
        versions.mkdir(parents=True, exist_ok=True)
        known = [int(path.name) for path in versions.iterdir() if path.name.isdigit()]
        return versions / f"{max(known, default=0) + 1:08d}"

    def _publish(self, version: Path) -> None:
        link = self._path / "current.new"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("versions") / version.name)
        replaced = self._current.resolve()
        os.replace(link, self._current)
        if replaced.exists():
            os.utime(replaced)  # from now on it is old
        for path in version.parent.iterdir():
            is_stale = path.stat().st_mtime < time.time() - KEEP_S
            if path != version and path != replaced and is_stale:
                shutil.rmtree(path, ignore_errors=True)


def _buckets(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("bucket=*"))


def start(spark: SparkSession, run: Run) -> Sequence[StreamingQuery]:
    table = Path(run.options["table"])
    if (table / "current").exists() and not (table / "current").is_symlink():
        raise PipelineFailed(f"{table / 'current'} isn't a table of this pipeline: give another")
    frame = run.read_stream(
        spark,
        subscribe=run.options["topic"],
        maxOffsetsPerTrigger=run.options["batch_rows"],
    ).select(*COLUMNS)
    if run.options.get("text"):
        texts = {name: frame[name].cast("string") for name in ("key", "value")}
        frame = frame.withColumns(texts)
    target = LatestTable(table)
    query = (
        frame.writeStream.queryName(run.name)
        .foreachBatch(lambda batch, _: target.merge(batch))
        .option("checkpointLocation", run.checkpoint("latest"))
        .trigger(**run.trigger)
        .start()
    )
    return [query]


PIPELINE = Pipeline(
    name="latest",
    summary="The newest value of each key as a table.",
    start=start,
    options=(
        Option(name="topic", required=True, help="Compacted or not.", names_topics=True),
        Option(name="table", kind=Path, required=True, help="The folder of the table."),
        Option(name="text", kind=bool, default=False, help="Keys and values are text."),
        Option(name="batch-rows", kind=int, default=1_000_000, help="The most records at a time."),
        ALLOW_DATA_LOSS,
    ),
)
