"""Pipelines that were killed in the middle of their work, all by one kill, and their ends.

A Spark takes its time to start, so they share the one that is killed, and later, one by one, the
one of the tests. Between the two there is nothing but what lies on disk, and a node less.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sapwood
from sapwood.bulk import BulkClient
from sapwood.cli.driver import NO_CALL_BACK, STARTS
from sapwood.cli.pipeline import standing
from sapwood.spark.pipelines import load
from sapwood.spark.pipelines.state import RunFolder, run_folder
from sapwood.spark.pipelines.words import Outcome, Pipeline, Run
from sapwood.spark.tables import FORMATS
from tests.helpers import eventually
from tests.spark.rows import aged, numbered, rounds, stored

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
DEADLINE_S = 600.0
DRIVERS = 4

TOPICS = {"numbers": 3, "users": 3, "aged": 2, "again": 2, "idle": 2}
# Of `numbers` and of `rounds`: so many are there at the beginning, and as many come at the kill.
HALF, ROUNDS = 6_000, 6
MINUTES = 2.5
"""Of `aged`, before the kill and from then on: it comes in the middle of a window."""
STORED = 6_000
"""Rows of the table that is replayed."""


def words(directory: Path) -> list[str]:
    """As people write them."""
    archives = [
        f"archive --topics numbers --format {kind} --name archive-{kind} "
        f"--tables {directory / kind} --batch-rows 2000 --every 1"
        for kind in FORMATS
    ]
    return [
        *archives,
        f"latest --topic users --table {directory / 'latest'} --text --batch-rows 1000",
        f"rollup --topics aged --window '1 minute' --late '0 seconds' --tables {directory}",
        f"replay --table {directory / 'stored'} --topic again --where 'offset >= 100' "
        "--shift '1 day' --keep-partitions --batch-rows 250 --rate 250",
        f"timeline --topics numbers,users,idle --tables {directory / 'timeline'} --topic merged "
        "--text --batch-rows 1000",
    ]


class Killed:
    """What they left."""

    def __init__(self, cluster: sapwood.Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def folder(self, name: str) -> RunFolder:
        return run_folder(self.directory, name)

    def has_begun(self, name: str) -> bool:
        """Whether each of the run's queries has done a batch."""
        queries = list(self.folder(name).path.glob("checkpoints/*/commits"))
        return bool(queries) and all(any(it.glob("[0-9]*")) for it in queries)

    def finish(self, spark: SparkSession, name: str, **options: Any) -> None:
        """The run that follows, as `sapwood pipeline run` does it, to the end of what is there."""
        folder = self.folder(name)
        run = folder.run(folder.request())
        finish(spark, replace(run, once=True, options={**run.options, **options}))


def finish(spark: SparkSession, run: Run) -> None:
    pipeline: Pipeline = load(run.pipeline)
    patiently(lambda: pipeline.start(spark.newSession(), run))
    if pipeline.finish is not None:
        pipeline.finish(run)


def patiently(start: Callable[[], Sequence[StreamingQuery] | Outcome]) -> None:
    """To the end of all queries. On a busy machine Spark may have to be asked again, as in runs."""
    for left in reversed(range(STARTS)):
        try:
            queries = start()
            assert not isinstance(queries, Outcome)
            for query in queries:
                query.awaitTermination()
            return
        except PySparkException as error:
            if not left or NO_CALL_BACK not in str(error):
                raise


@contextmanager
def killed(directory: Path) -> Iterator[Killed]:
    pq.write_to_dataset(stored(STORED), directory / "stored", partition_cols=["part"])
    with (
        sapwood.Cluster(nodes=3, topics=TOPICS) as cluster,
        BulkClient(cluster.bootstrap) as client,
    ):
        found = Killed(cluster, directory)
        names = _prepare(directory, cluster.bootstrap)
        _put(client, {"numbers": numbered(0, HALF), "users": rounds(0, ROUNDS)})
        _put(client, {"aged": aged(0, MINUTES)})
        driver = _drive(directory, names, lambda: all(map(found.has_begun, names)))
        # They have done something. Now they get more to do, and don't come to its end.
        _put(client, {"numbers": numbered(HALF, 2 * HALF), "users": rounds(ROUNDS, 2 * ROUNDS)})
        _kill(driver)
        _put(client, {"aged": aged(MINUTES, 2 * MINUTES)})
        cluster.kill(cluster.leader("numbers", 0))
        yield found


def _prepare(directory: Path, bootstrap: str) -> list[str]:
    """By the words of `sapwood up --pipeline`: such runs are continuous."""
    asked = [f"{each} --bootstrap {shlex.quote(bootstrap)}" for each in words(directory)]
    return [folder.name for folder in standing(directory, asked)]


def _put(client: BulkClient, tables: Mapping[str, pa.Table]) -> None:
    for topic, table in tables.items():
        client.produce_arrow(topic, table)


def _drive(
    directory: Path, names: Iterable[str], is_enough: Callable[[], bool]
) -> "subprocess.Popen[bytes]":
    """A driver that has come far enough; another one if it gives up before that."""
    folders = [str(run_folder(directory, name).path) for name in names]
    log = directory / "doomed.log"
    for _ in range(DRIVERS):
        with log.open("ab") as output:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.doomed", *folders],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            eventually(lambda: is_enough() or driver.poll() is not None, DEADLINE_S)  # noqa: B023
        except BaseException:
            _kill(driver)
            raise
        if is_enough():
            return driver
    raise AssertionError(log.read_text())


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to the driver, its JVM, and whoever works for them."""
    root = psutil.Process(process.pid)
    for one in [root, *root.children(recursive=True)]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            pass
    process.wait()
