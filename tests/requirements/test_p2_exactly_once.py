"""P2: exactly once both ways, through killed drivers, tasks and nodes.

This is the short form of `python -m chaos spark-once`; executors are killed in that of row P5.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sapwood
from chaos.spark_driver import copied, written
from chaos.spark_once import Driver
from sapwood.bulk import BulkClient
from tests.helpers import eventually
from tests.spark.killed import patiently
from tests.spark.rows import numbered, numbers_of

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(900)

PARTITIONS = 2
DEADLINE_S = 400.0


class Drivers:
    """Drivers of one stream after another; none stays behind."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "spark.log"
        self.checkpoint = str(directory / "checkpoint")
        self._common = ["in", "out", self.checkpoint, "--once"]
        self._started: list[Driver] = []

    def start(self, bootstrap: str, *arguments: str) -> Driver:
        self._started.append(Driver([bootstrap, *self._common, *arguments], self._log))
        return self._started[-1]

    def run(self, is_over: Callable[[], bool], bootstrap: str, *arguments: str) -> None:
        """Until it is over, or the stream has come to its end.

        Spark gives up if it takes its own Python more than ten seconds to start, as it may on a
        busy machine. Who runs a stream starts it again, then.
        """
        for _ in range(3):
            driver = self.start(bootstrap, *arguments)
            eventually(lambda: is_over() or not driver.is_running, DEADLINE_S)  # noqa: B023
            if is_over() or driver.status == 0:
                return
        raise AssertionError(self._log.read_text())

    def end(self) -> None:
        for driver in self._started:
            driver.end()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path)
    yield drivers
    drivers.end()


def numbers(client: BulkClient, topic: str) -> list[int]:
    tables = [client.fetch_arrow(topic, partition) for partition in range(PARTITIONS)]
    return sorted(itertools.chain.from_iterable(map(numbers_of, tables)))


def test_p2_each_record_is_copied_once_though_drivers_tasks_and_a_node_are_killed(
    spark: SparkSession, tmp_path: Path, drivers: Drivers
) -> None:
    def halt(where: str, *arguments: str) -> None:
        """Let a driver run up to the commit of its first batch, and kill it there."""
        halted = tmp_path / where
        told = ("--halt", where, "--halted", str(halted))
        drivers.run(halted.exists, cluster.bootstrap, *told, *arguments)
        drivers.end()
        assert halted.exists()

    topics = {"in": PARTITIONS, "out": PARTITIONS}
    with (
        sapwood.Cluster(nodes=3, topics=topics) as cluster,
        BulkClient(cluster.bootstrap) as client,
    ):
        client.produce_arrow("in", numbered(0, 1000))
        halt("before")
        assert numbers(client, "out") == []
        halt("after", "--die-once")
        assert numbers(client, "out") == list(range(1000))
        client.produce_arrow("in", numbered(1000, 2000))
        killed: list[int] = []

        def copy() -> list[StreamingQuery]:
            """The rest, by a Spark that is there already; and then a leader is killed."""
            rows = copied(spark, cluster.bootstrap, "in", most=250)
            writer = written(rows, "sapwood", cluster.bootstrap, "out", drivers.checkpoint)
            query = writer.trigger(availableNow=True).start()
            eventually(lambda: query.recentProgress or not query.isActive, DEADLINE_S)
            if query.isActive and not killed:
                killed.append(cluster.leader("out", 0))
                cluster.kill(killed[0])
            return [query]

        patiently(copy)
        assert killed
        assert numbers(client, "out") == list(range(2000))
