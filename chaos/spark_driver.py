"""`python -m chaos.spark_driver`: Spark's driver as a process that can be killed.

It copies a topic of numbers to another one, as a stream. On request it stands still right before or
right after a batch is committed, where it says so by a file and waits to be killed; and its tasks
kill themselves in the middle of their work, once each.
"""

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from chaos import brief_spark
from sapwood.spark.session import build_session
from sapwood.spark.sink import StreamWriter
from sapwood.spark.sink_options import read_sink_options
from sapwood.spark.source import SapwoodSource

SETTINGS = {
    **brief_spark.SETTINGS,
    "spark.executor.extraJavaOptions": brief_spark.JVM,
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    # Whoever is killed is made anew, as often as it takes.
    "spark.task.maxFailures": "1000",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.log.level": "ERROR",
}
HALTS = ("before", "after")


class HaltingWriter(StreamWriter):
    """Stands still at its first commit."""

    halt: str
    halted: Path

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self.halt == "before":
            self._stand_still()
        super().commit(messages, batchId)
        if self.halt == "after":
            self._stand_still()

    def _stand_still(self) -> None:
        self.halted.touch()
        while True:
            signal.pause()


class HaltingSource(SapwoodSource):
    @classmethod
    def name(cls) -> str:
        return "halting"

    def streamWriter(self, schema: StructType, overwrite: bool) -> HaltingWriter:  # noqa: N802
        options = dict(self.options)
        halt, halted = options.pop("halt"), Path(options.pop("halted"))
        writer = HaltingWriter(read_sink_options(options, streaming=True), schema, overwrite)
        writer.halt, writer.halted = halt, halted
        return writer


def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, but in a task's first attempt only some, as its worker is killed then."""
    context = TaskContext.get()
    for batch in batches:
        if context is not None and context.attemptNumber() == 0 and batch.num_rows > 1:
            yield batch.slice(0, batch.num_rows // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def copied(spark: SparkSession, bootstrap: str, source: str, *, most: int) -> DataFrame:
    return (
        spark.readStream.format("sapwood")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most)
        .load()
        .select("key", "value")
    )


def written(
    frame: DataFrame, form: str, bootstrap: str, target: str, checkpoint: str
) -> DataStreamWriter:
    return (
        frame.writeStream.format(form)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy a topic to another one, as a stream.")
    parser.add_argument("bootstrap")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("checkpoint")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--most", type=int, default=5000, help="rows of a batch")
    parser.add_argument("--once", action="store_true", help="end with what is there at the start")
    parser.add_argument("--die-once", action="store_true")
    parser.add_argument("--halt", choices=HALTS)
    parser.add_argument("--halted", help="the file that tells of it")
    options = parser.parse_args()
    folder = Path(options.checkpoint).with_name("spark")
    spark = build_session("spark_once", folder, master=options.master, settings=SETTINGS)
    frame = copied(spark, options.bootstrap, options.source, most=options.most)
    if options.die_once:
        frame = frame.mapInArrow(die_once, frame.schema)
    form = "halting" if options.halt else "sapwood"
    writer = written(frame, form, options.bootstrap, options.target, options.checkpoint)
    if options.halt:
        spark.dataSource.register(HaltingSource)
        writer = writer.option("halt", options.halt).option("halted", options.halted)
    if options.once:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
