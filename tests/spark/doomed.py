"""Several pipelines in one process, on one Spark: something to be killed."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sapwood.spark.pipelines import load
from sapwood.spark.pipelines.state import RunFolder
from sapwood.spark.pipelines.words import Outcome
from tests.helpers import eventually
from tests.spark.session import quick_session

LOOK_EVERY_S = 0.5
LIFE_S = 600


def started(spark: SparkSession, folder: RunFolder) -> Sequence[StreamingQuery]:
    """The queries of a run; none if Spark gave up.

    It gives a new Python ten seconds to call back, which may be too few on a busy machine.
    """
    run = folder.run(folder.request())
    try:
        queries = load(run.pipeline).start(spark, run)
    except Exception:
        traceback.print_exc()
        return []
    return [] if isinstance(queries, Outcome) else queries


def main(folders: Sequence[RunFolder]) -> None:
    spark = quick_session("doomed", folders[0].path / "spark")
    running: dict[str, Sequence[StreamingQuery]] = {}

    def ended() -> list[RunFolder]:
        return [
            folder
            for folder in folders
            if not (queries := running.get(folder.name)) or not all(it.isActive for it in queries)
        ]

    while True:
        eventually(ended, LIFE_S, LOOK_EVERY_S)
        for folder in ended():
            for query in running.get(folder.name, ()):
                query.stop()
            running[folder.name] = started(spark, folder)


if __name__ == "__main__":
    main([RunFolder(Path(each)) for each in sys.argv[1:]])
