"""A folder of SQL and Python files as one of Spark's declarative pipelines.

Spark's own command runs it, in a process below ours: each flow takes what is there and ends. To go
on is to run it again.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event

from sapwood.spark.classes import reading
from sapwood.spark.explaining import explain_log
from sapwood.spark.pipelines.words import BAD_INPUT_STATUS, Outcome, PipelineFailed, Run
from sapwood.spark.session import JVM_OPTIONS, check_spark, find_java

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
AGAIN_AFTER_S = 5.0
LOOK_EVERY_S = 0.2
STOP_TIMEOUT_S = 20.0

_SPEC = """\
# A declarative pipeline of Spark's: sapwood pipeline run {name}
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
_PYTHON = '''\
"""A topic as a table that grows with it."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def greetings() -> DataFrame:
    topic = spark.readStream.format("sapwood").option("subscribe", "greetings")
    # Spark may be a server elsewhere, which doesn't know the cluster of this run.
    topic = topic.option("kafka.bootstrap.servers", os.environ["SAPWOOD_BOOTSTRAP"])
    return topic.option("startingOffsets", "earliest").load().selectExpr(
        "cast(key as string) as key", "cast(value as string) as text", "timestamp"
    )
'''
_SQL = """\
CREATE MATERIALIZED VIEW greeting_counts AS
SELECT text, count(*) AS times, max(timestamp) AS last_seen
FROM greetings
GROUP BY text;
"""


def make_example(folder: Path) -> None:
    """A pipeline that runs, to begin with."""
    if not re.fullmatch(r"[A-Za-z_]\w*", folder.name):
        raise PipelineFailed(
            f"{folder.name!r} can't name a pipeline: letters, digits and _ make one",
            status=BAD_INPUT_STATUS,
        )
    if folder.exists() and any(folder.iterdir()):
        raise PipelineFailed(f"{folder} is there already, and not empty")
    transformations = folder / "transformations"
    transformations.mkdir(parents=True, exist_ok=True)
    spec = _SPEC.format(name=folder.name, storage=(folder.absolute() / "storage").as_uri())
    (folder / SPEC_NAMES[0]).write_text(spec, encoding="utf-8")
    (transformations / "greetings.py").write_text(_PYTHON, encoding="utf-8")
    (transformations / "greeting_counts.sql").write_text(_SQL, encoding="utf-8")


def run_declarative(
    run: Run, stopping: Event, *, remote: str | None, settings: Mapping[str, str]
) -> Outcome:
    """To the end of all its flows; again and again unless it is to run once."""
    folder = Path(run.pipeline)
    spec = next((folder / name for name in SPEC_NAMES if (folder / name).exists()), None)
    if spec is None:
        raise PipelineFailed(
            f"{folder} has no {SPEC_NAMES[0]}: sapwood pipeline init makes a folder that has one",
            status=BAD_INPUT_STATUS,
        )
    check_spark()
    import pyspark

    java = find_java()
    command = _command(run, spec, remote, settings)
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **os.environ,
        "JAVA_HOME": str(java.parent.parent),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),  # whose command this is
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("SPARK_REMOTE", None)
    if remote is None:
        # Spark doesn't hand them on to the server that it starts.
        options = (reading(java), settings.get(JVM_OPTIONS), os.environ.get("JDK_JAVA_OPTIONS"))
        environment["JDK_JAVA_OPTIONS"] = " ".join(filter(None, options))
    while not stopping.is_set():
        _run_once(command, environment, run.directory, stopping)
        if run.once or stopping.wait(AGAIN_AFTER_S):
            break
    return Outcome()


def _command(run: Run, spec: Path, remote: str | None, settings: Mapping[str, str]) -> list[str]:
    import pyspark

    metastore = run.directory / "metastore"
    chosen = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # With the default catalog a second run finds the tables' folders and not the tables.
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={metastore};create=true"
        ),
        **settings,
    }
    found = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run"]
    found += ["--spec", str(spec), "--remote", remote or f"local[{os.cpu_count() or 1}]"]
    for key, value in chosen.items():
        found += ["--conf", f"{key}={value}"]
    return found


def _run_once(
    command: list[str], environment: Mapping[str, str], folder: Path, stopping: Event
) -> None:
    """In the run's folder: it puts the tables where it is, whatever its settings say."""
    log = folder / "flows.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        while process.poll() is None and not stopping.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
    finally:
        _end(process)
    said = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(said)  # which is the run's own log
    if process.returncode and not stopping.is_set():
        raise PipelineFailed(explain_log(said))


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started: a shell script, a JVM and a Python."""
    if process.poll() is not None:
        return
    with contextlib.suppress(OSError):
        os.killpg(process.pid, 15)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, 9)
        process.wait()
