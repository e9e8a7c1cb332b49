"""P3d: `replay`, the rows of a table as messages of a topic, in order and once, though killed."""

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from sapwood.bulk import fetch_arrow
from tests.spark.killed import STORED, Killed
from tests.spark.rows import FIRST, STORED_PARTITIONS

pytestmark = pytest.mark.timeout(900)


def test_p3d_a_table_is_replayed_in_order_and_once_though_its_driver_is_killed(
    killed: Killed, spark: SparkSession
) -> None:
    wanted = [
        range(100 * STORED_PARTITIONS + partition, STORED, STORED_PARTITIONS)
        for partition in range(STORED_PARTITIONS)
    ]

    def sent(partition: int) -> list[int]:
        found = fetch_arrow("again", partition, bootstrap=killed.bootstrap)
        first = FIRST + timedelta(days=1, seconds=wanted[partition][0])
        assert found["timestamp"][0].as_py() == first
        return [int(value) for value in found["value"].to_pylist()]

    before = sent(0)
    assert 0 < len(before) < len(wanted[0])
    assert before == list(wanted[0])[: len(before)]
    killed.finish(spark, "replay", rate=None, batch_rows=100_000)
    for partition, numbers in enumerate(wanted):
        assert sent(partition) == list(numbers)
    assert not (killed.folder("replay").path / "checkpoints" / "spool").exists()
