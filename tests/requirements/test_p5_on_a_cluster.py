"""P5: the same pipeline, unchanged, here and on a Spark cluster; and an executor may be killed."""

from pathlib import Path

import pytest

from sapwood.bulk import produce_arrow
from sapwood.pytest_plugin import SharedCluster
from tests.helpers import eventually
from tests.spark.pipeline import DEADLINE_S, running
from tests.spark.rows import numbered, numbers_of
from tests.spark.standalone import JVM, standalone
from tests.spark.test_tables import read

pytestmark = pytest.mark.timeout(900)


def test_p5_archive_runs_on_a_master_and_two_workers_of_which_one_loses_its_executor(
    tmp_path: Path, sapwood_cluster: SharedCluster
) -> None:
    bootstrap, topic = sapwood_cluster.bootstrap, sapwood_cluster.topic("numbers", 2)
    produce_arrow(topic, numbered(0, 2000), bootstrap=bootstrap)
    tables = tmp_path / "tables"
    with (
        standalone(tmp_path / "cluster", workers=2) as cluster,
        running(
            *("archive", "--topics", topic, "--tables", str(tables), "--batch-rows", "500"),
            *("--master", cluster.master, "--conf", f"spark.executor.extraJavaOptions={JVM}"),
            *("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            directory=tmp_path,
            bootstrap=bootstrap,
        ) as run,
    ):
        run.reach("archive", 500)
        eventually(lambda: len(cluster.executors()) == 2, DEADLINE_S)
        cluster.executors()[0].kill()
        ended = run.end()
        assert ended.status == 0, (ended, run.folder("archive").log.read_text()[-4000:])
    assert numbers_of(read(tables, "parquet", topic)) == list(range(2000))
    # This release came to the executors with the pipeline.
    assert len(list(tmp_path.glob("cluster/work-*/*/*/sapwood.zip"))) >= 2
