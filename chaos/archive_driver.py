"""`python -m chaos.archive_driver`: a driver that archives a topic, to be killed."""

import argparse
from pathlib import Path

from chaos.spark_driver import SETTINGS
from sapwood.spark.pipelines.archive import archive
from sapwood.spark.session import build_session


def main() -> None:
    parser = argparse.ArgumentParser(description="Archive a topic, as a stream.")
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("tables")
    parser.add_argument("checkpoint")
    parser.add_argument("--formats", required=True, help="with commas: a stream for each")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--most", type=int, default=5000, help="rows of a batch")
    options = parser.parse_args()
    folder = Path(options.checkpoint).with_name("spark")
    spark = build_session("archive_once", folder, master=options.master, settings=SETTINGS)
    frame = (
        spark.readStream.format("sapwood")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.most)
        .option("includeHeaders", True)
        .load()
    )
    for kind in options.formats.split(","):
        archive(
            frame,
            Path(options.tables) / kind,
            kind=kind,
            name=kind,
            checkpoint=str(Path(options.checkpoint) / kind),
            once=False,
            every_s=0,
        )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
