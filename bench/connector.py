"""Spark's own Kafka connector: its jars, and a session that has them."""

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from bench.peers import PeerFailed
from bench.peers.kafka import cache_directory

# The newest release that Maven has found, and the newest one of the part that looks after tokens:
# it runs on newer Sparks, too. What it needs is named here: left to itself, Maven looks for that in
# the repositories of Spark's own build.
VERSION = "4.2.0"
JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.log.level": "ERROR",
}


def connector_jars() -> Path:
    """Their folder; fetched by Maven unless they are there. PeerFailed if that can't be."""
    folder = cache_directory().parent / f"spark-connector-{VERSION}"
    for jar in JARS:
        _, artifact, version = jar.split(":")
        if not (folder / f"{artifact}-{version}.jar").exists():
            _fetch(jar, folder)
    return folder


def _fetch(jar: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={jar}"]
    command += [f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"mvn couldn't fetch {jar}: {done.stdout.strip()[-500:]}")


def session(jars: Path, **settings: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
