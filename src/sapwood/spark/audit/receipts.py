"""What producers were told and subscribers got, in the formats in which they note it.

A line is a JSON object. A producer's receipt has `producer`, `sequence`, `topic`, `partition` and
`offset` (−1 or none where it wasn't told), and an `outcome`: ok (acknowledged; the default), fail,
unknown or aborted (its transaction was). A delivery has `subscriber`, `topic`, `partition`,
`offset` and, in a file, a time `at` to sort by; so have those that `Client(receipts=True)` writes.
Understood as well: the `history.jsonl` of a chaos run, and the notes of publishers that
`sapwood chaos clients` keeps. What isn't such a line, because a kill tore it, is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LINE = """
    producer string, sequence bigint, outcome string, subscriber string, topic string,
    partition int, offset bigint, at double, done double,
    op string, client string, value string, values array<string>, what string, number bigint
"""
# A value of a chaos run is producer:number.
_PRODUCER = "regexp_extract({}, '^(.*):([0-9]{{1,18}})$', 1)"
_NUMBER = "try_cast(regexp_extract({}, '^(.*):([0-9]{{1,18}})$', 2) as bigint)"


def lines_of_file(spark: SparkSession, path: str) -> DataFrame:
    """Of a file, or of all files in a folder."""
    name = "regexp_replace(_metadata.file_name, '[.][^.]*$', '')"
    text = spark.read.text(path)
    return _parsed(text.selectExpr("value", f"{name} as name", "cast(null as bigint) as place"))


def lines_of_topic(frame: DataFrame) -> DataFrame:
    """Of the records of a topic, as the source has them."""
    return _parsed(
        frame.selectExpr("cast(value as string) as value", "topic as name", "offset as place")
    )


def receipts(lines: DataFrame) -> DataFrame:
    """producer, sequence, topic, partition, offset (null where it wasn't told), outcome."""
    place = (
        "topic",
        "if(partition >= 0, partition, null) as partition",
        "if(offset >= 0, offset, null) as offset",
    )
    history = lines.where("op = 'send'").selectExpr(
        f"{_PRODUCER.format('value')} as producer",
        f"{_NUMBER.format('value')} as sequence",
        *place,
        "coalesce(outcome, 'unknown') as outcome",
    )
    notes = lines.where("what in ('puts', 'stored')").selectExpr(
        "name as producer",
        "number as sequence",
        *place,
        "if(what = 'stored', 'ok', 'unknown') as outcome",
    )
    plain = lines.where("op is null and what is null and subscriber is null").selectExpr(
        "producer", "sequence", *place, "coalesce(outcome, 'ok') as outcome"
    )
    found = history.unionByName(notes).unionByName(plain)
    return found.where("producer is not null and sequence is not null")


def deliveries(lines: DataFrame) -> DataFrame:
    """subscriber, topic, partition, offset, at; producer and sequence where they are noted."""
    reads = lines.where("op = 'read'").selectExpr(
        "client as subscriber",
        *("topic", "partition", "offset", "done as at"),
        "posexplode(values) as (index, value)",
    )
    history = reads.selectExpr(
        *("subscriber", "topic", "partition", "offset + index as offset", "at"),
        f"{_PRODUCER.format('value')} as producer",
        f"{_NUMBER.format('value')} as sequence",
    )
    plain = lines.where("op is null and what is null and subscriber is not null").selectExpr(
        *("subscriber", "topic", "partition", "offset"),
        "coalesce(cast(place as double), at, 0.0D) as at",
        *("producer", "sequence"),
    )
    return history.unionByName(plain).where(
        "topic is not null and partition is not null and offset is not null"
    )


def _parsed(lines: DataFrame) -> DataFrame:
    schema = " ".join(_LINE.split())
    parsed = lines.selectExpr(f"from_json(value, '{schema}') as line", "name", "place")
    return parsed.where("line is not null").selectExpr("line.*", "name", "place")
