"""The Spark of the tests."""

from pathlib import Path

from pyspark.sql import SparkSession

from chaos import brief_spark
from sapwood.spark.session import build_session

SETTINGS = {
    **brief_spark.SETTINGS,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "OFF",
}


def quick_session(name: str, folder: Path) -> SparkSession:
    """As pipelines have it, on two threads, for a short life."""
    return build_session(name, folder, master="local[2]", settings=SETTINGS)
