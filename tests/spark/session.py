"""The Spark of the tests."""

from pathlib import Path

from pyspark.sql import SparkSession

from sapwood.spark.session import build_session

SETTINGS = {
    "spark.driver.memory": "1g",
    # Starts faster; nothing here runs for long enough to be compiled well.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.log.level": "OFF",
}


def quick_session(name: str, folder: Path) -> SparkSession:
    """As pipelines have it, on two threads, for a short life."""
    return build_session(name, folder, master="local[2]", settings=SETTINGS)
