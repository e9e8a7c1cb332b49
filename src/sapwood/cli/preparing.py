"""What `sapwood pipeline prepare` does: pipelines are run once, for the classes that they load.

In a process of its own, as every Spark is: FILE is written, FOLDERs have the runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sapwood.cli import CommandFailed
from sapwood.cli.pipeline import standing
from sapwood.cluster import Cluster
from sapwood.spark.classes import classes_file, writing
from sapwood.spark.pipelines import load
from sapwood.spark.pipelines.state import RunFolder
from sapwood.spark.pipelines.words import Outcome, PipelineFailed
from sapwood.spark.session import JVM_OPTIONS, build_session, check_spark, find_java

TOPIC = "prepared"
RECORDS = 100


def prepare() -> Path:
    """The file, written anew."""
    try:
        check_spark()
        path = classes_file(find_java())
    except PipelineFailed as error:
        raise CommandFailed(str(error)) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a machine that reads one can't write one
    with tempfile.TemporaryDirectory(prefix="sapwood-", dir=path.parent) as name:
        folder = Path(name)
        written = folder / path.name
        with Cluster(topics={TOPIC: 1}) as cluster:
            folders = _fill(cluster, folder)
            command = [sys.executable, "-P", "-m", __name__, str(written), *folders]
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        if done.returncode or not written.exists():
            raise CommandFailed(f"no classes were written; Spark said:\n{done.stdout[-4000:]}")
        os.replace(written, path)
    return path


def _fill(cluster: Cluster, folder: Path) -> list[str]:
    """Records, and pipelines for them."""
    from sapwood.client import KafkaClient

    with KafkaClient(cluster.bootstrap) as client:
        for number in range(RECORDS):
            client.send(TOPIC, b"%d" % number, key=b"k")
        client.flush()
    where = f"--bootstrap {cluster.bootstrap} --tables {folder}"
    asked = [f"archive --topics {TOPIC} {where} --once", f"rollup --topics {TOPIC} {where} --once"]
    return [str(each.path) for each in standing(folder, asked)]


def main(arguments: list[str]) -> None:
    import pyspark

    path, *folders = map(Path, arguments)
    # The file names the jars' folder, which has to be there later: not one that goes with this run.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).resolve().parent)
    # Not for long enough to be compiled well.
    options = f"-XX:TieredStopAtLevel=1 {writing(path)}"
    settings = {JVM_OPTIONS: options, "spark.log.level": "ERROR"}
    spark = build_session("prepare", path.parent / "spark", settings=settings)
    for folder in map(RunFolder, folders):
        run = folder.run(folder.request())
        queries = load(run.pipeline).start(spark, run)
        for query in () if isinstance(queries, Outcome) else queries:
            query.awaitTermination()
        topic = spark.read.format("sapwood").option("subscribe", TOPIC)
        topic.option("kafka.bootstrap.servers", run.bootstrap).load().groupBy(
            "key"
        ).count().collect()
    gateway: Any = spark.sparkContext._gateway
    machine = gateway.proc
    spark.stop()
    machine.stdin.close()  # which ends it
    machine.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
