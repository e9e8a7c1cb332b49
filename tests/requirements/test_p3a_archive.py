"""P3a: topics as tables, each record once, whoever is killed meanwhile."""

import pytest
from pyspark.sql import SparkSession

from sapwood.spark.tables import FORMATS
from tests.spark.killed import HALF, Killed
from tests.spark.rows import numbers_of
from tests.spark.test_tables import read

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("kind", FORMATS)
def test_p3a_each_record_is_in_the_table_once_although_driver_and_node_are_killed(
    killed: Killed, spark: SparkSession, kind: str
) -> None:
    seen = numbers_of(read(killed.directory / kind, kind, "numbers"))
    assert 0 < len(seen) == len(set(seen))
    killed.finish(spark, f"archive-{kind}", batch_rows=10_000)
    assert numbers_of(read(killed.directory / kind, kind, "numbers")) == list(range(2 * HALF))
