"""Evidence from a cluster: records, receipts, deliveries and positions, of one stretch of the log.

Where every partition begins and ends is settled first. What comes in while the audit runs is left
for the next one, and so is what is told or delivered of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from pyspark import StorageLevel
from pyspark.sql.functions import broadcast

from sapwood.client import Client
from sapwood.client.offsets import EARLIEST
from sapwood.spark.audit.judging import Evidence
from sapwood.spark.audit.numbering import Numbering, numbered
from sapwood.spark.audit.receipts import deliveries, lines_of_file, lines_of_topic, receipts
from sapwood.spark.options import read_options
from sapwood.spark.planning import Offsets, Survey, to_json


class NoReceipts(ValueError):
    """What was said to hold receipts or deliveries holds none."""


class Bounds(NamedTuple):
    """What is audited of each partition."""

    starts: Offsets
    ends: Offsets

    @property
    def source(self) -> dict[str, str]:
        assigned: dict[str, list[int]] = {}
        for topic, partition in sorted(self.ends):
            assigned.setdefault(topic, []).append(partition)
        return {
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(to_json(self.starts)),
            "endingOffsets": json.dumps(to_json(self.ends)),
        }

    def inside(self, spark: SparkSession, told: DataFrame) -> DataFrame:
        """Without what was told of other topics, or lies before the start or behind the end."""
        rows = [(*key, self.starts[key], end) for key, end in self.ends.items()]
        columns = "topic string, partition int, start bigint, stop bigint"
        bounds = spark.createDataFrame(rows, columns)
        names = [topic for topic, _ in self.ends]
        is_inside = "start is not null and (offset is null or (offset >= start and offset < stop))"
        known = told.join(broadcast(bounds), ["topic", "partition"], "left").where(is_inside)
        unplaced = told.where("partition is null").where(
            told["topic"].isNull() | told["topic"].isin(*names)
        )
        return known.select(*told.columns).unionByName(unplaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where to look. `topics` are options of `format("sapwood")` that choose what is audited."""

    bootstrap: str
    topics: Mapping[str, str]
    numbering: Numbering
    receipts: Path | None = None
    receipts_topic: str | None = None
    deliveries_topic: str | None = None
    """Left out if there is no such topic: nobody has asked for receipts yet."""


def gather(spark: SparkSession, sources: Sources) -> Evidence:
    cluster = {"kafka.bootstrap.servers": sources.bootstrap}
    options = read_options({**cluster, **sources.topics}, streaming=False)
    survey = Survey(options)
    try:
        keys = survey.partitions()
        # Before the deliveries are read, so that a position never tells of more than they do.
        deliveries_topic = _existing(survey, sources.deliveries_topic)
        positions = _positions(sources.bootstrap, keys) if deliveries_topic else []
        bounds = Bounds(survey.find(dict.fromkeys(keys, EARLIEST)), survey.ends(keys))
    finally:
        survey.close()

    def read(chosen: Mapping[str, str]) -> DataFrame:
        return spark.read.format("sapwood").options(**cluster, **chosen).load()

    def read_records(isolation: str) -> DataFrame:
        headers = {"includeHeaders": str(sources.numbering.needs_headers)}
        return read({**bounds.source, **headers, "kafka.isolation.level": isolation})

    lines = []
    if sources.receipts is not None:
        if not sources.receipts.exists():
            raise NoReceipts(f"there are no receipts at {sources.receipts}")
        lines.append(lines_of_file(spark, str(sources.receipts.absolute())))
    if sources.receipts_topic is not None:
        lines.append(lines_of_topic(read({"subscribe": sources.receipts_topic})))
    told = _kept(bounds.inside(spark, receipts(each)) for each in lines)
    if deliveries_topic is not None:
        lines.append(lines_of_topic(read({"subscribe": deliveries_topic})))
    got = _kept(bounds.inside(spark, deliveries(each)) for each in lines)
    if told is None and got is None and (sources.receipts or sources.receipts_topic):
        raise NoReceipts("the receipts have no line of the topics that are audited")
    place = "subscriber string, topic string, partition int, position bigint"
    return Evidence(
        records=numbered(read_records("read_committed"), sources.numbering),
        receipts=told,
        deliveries=got,
        positions=spark.createDataFrame(positions, place) if positions else None,
        uncommitted=lambda: read_records("read_uncommitted"),
    )


def _existing(survey: Survey, topic: str | None) -> str | None:
    if topic is None:
        return None
    found = survey.client.metadata([topic]).topics.get(topic)
    return topic if found is not None and found.partitions else None


def _positions(bootstrap: str, keys: Iterable[tuple[str, int]]) -> list[tuple[str, str, int, int]]:
    """Up to where each durable subscriber has got."""
    with Client(bootstrap) as client:
        return [
            (each.subscriber, topic, each.partition, each.position)
            for topic in sorted({topic for topic, _ in keys})
            for each in client.pending(topic)
        ]


def _kept(frames: Iterable[DataFrame]) -> DataFrame | None:
    """All of them, read once; none if there is nothing in them."""
    found = list(frames)
    if not found:
        return None
    together = reduce(lambda one, other: one.unionByName(other), found)
    kept = together.persist(StorageLevel.DISK_ONLY)
    return None if kept.isEmpty() else kept
