"""What is wrong, as tables: functions from DataFrames to DataFrames, all with the same columns.

Records come as `numbering.numbered` makes them, receipts and deliveries as `receipts` does.
`within` names what a producer counts in: nothing for all topics together, or ("topic",), or
("topic", "partition"). A number stands for one record there, and for no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

from pyspark.sql import Window
from pyspark.sql.functions import (
    array,
    array_compact,
    broadcast,
    col,
    explode,
    expr,
    lag,
    lit,
    row_number,
    struct,
    when,
)
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of

COLUMNS = (
    "kind", "topic", "partition", "offset", "timestamp", "producer", "sequence", "subscriber",
    "count", "text",
)  # fmt: skip

_SUBSCRIBER = "subscriber"
_BEFORE = "concat(before.topic, '-', before.partition, '@', before.offset)"


def order_findings(
    records: DataFrame, within: Sequence[str] = (), *, is_consecutive: bool = True
) -> DataFrame:
    """Gaps, duplicates and reorderings.

    Two sorts of the numbered records, by number and by offset. Spark does them on disk where it
    must, so that a producer may be of any size.
    """
    place = struct("sequence", "topic", "partition", "offset")
    by_number = Window.partitionBy("producer", *within).orderBy(
        "sequence", "timestamp", "topic", "partition", "offset"
    )
    by_offset = Window.partitionBy("topic", "partition", "producer").orderBy("offset")
    earlier = by_offset.rowsBetween(Window.unboundedPreceding, -1)
    is_copy = col("before.sequence") == col("sequence")
    marked = (
        records.where("producer is not null")
        .withColumn("before", lag(place).over(by_number))
        # A copy of an old number isn't one that was overtaken.
        .withColumn("original", when(is_copy, None).otherwise(struct("sequence", "offset")))
        .withColumn("highest", greatest_of("original").over(earlier))
    )
    missing = "sequence - before.sequence - 1"
    numbers = f"if({missing} = 1, '', concat(' to ', sequence - 1))"
    gap = _finding(
        "gap",
        f"concat(before.sequence + 1, {numbers}, ' should lie between ', {_BEFORE}, ' and here')",
        sequence="before.sequence + 1",
        count=missing,
    )
    duplicate = _finding("duplicate", f"concat('it is at ', {_BEFORE}, ', too')")
    reordered = _finding(
        "reordered", "concat('it lies behind ', highest.sequence, ', which is at ', highest.offset)"
    )
    found = array(
        when(expr(f"{missing} > 0") & lit(is_consecutive), gap),
        when(is_copy, duplicate),
        when(col("original").isNotNull() & expr("highest.sequence > sequence"), reordered),
    )
    suspicious = f"{missing} != 0 or highest.sequence > sequence"
    return _exploded(marked.where(suspicious), found)


def unacknowledged_excused(ordered: DataFrame, receipts: DataFrame) -> DataFrame:
    """Without the gaps of producers that have receipts: those tell what has to be there."""
    told = broadcast(receipts.selectExpr("producer as told").distinct())
    return ordered.join(told, expr("kind = 'gap' and producer = told"), "left_anti")


def receipt_findings(
    records: DataFrame, receipts: DataFrame, within: Sequence[str] = ()
) -> DataFrame:
    """What was acknowledged and is missing or elsewhere; what was aborted and is there."""
    identity = ("producer", "sequence", *within)
    there = records.where("producer is not null").alias("there")
    told = receipts.where("outcome = 'ok'").alias("told")
    same = _same("told", "there", identity)
    same_place = expr(
        "(told.offset is null or told.offset = there.offset)"
        " and (told.topic is null or told.topic = there.topic)"
        " and (told.partition is null or told.partition = there.partition)"
    )
    absent = told.join(there, same & same_place, "left_anti").alias("told")
    place = struct("there.topic", "there.partition", "there.offset")
    traced = (
        absent.join(there, same, "left")
        .groupBy(*(f"told.{name}" for name in receipts.columns))
        .agg(least_of(place).alias("found"))
        .withColumn("timestamp", lit(None).cast("timestamp"))
    )
    is_nowhere = col("found.offset").isNull()
    found_at = "concat(found.topic, '-', found.partition, '@', found.offset)"
    lost_or_misplaced = _exploded(
        traced,
        array(
            when(is_nowhere, _finding("lost", "'it was acknowledged, and is nowhere'")),
            when(~is_nowhere, _finding("misplaced", f"concat('it lies at ', {found_at})")),
        ),
    )
    # A number that was sent again in a later transaction is there rightly.
    given_up = receipts.where("outcome = 'aborted'").join(
        receipts.where("outcome = 'ok'"), list(identity), "left_anti"
    )
    seen = there.join(given_up.alias("told"), same & same_place, "left_semi")
    aborted = _exploded(seen, array(_finding("aborted", "'its transaction was aborted'")))
    return lost_or_misplaced.unionByName(aborted)


def delivery_findings(
    records: DataFrame, deliveries: DataFrame, positions: DataFrame | None = None
) -> DataFrame:
    """Passed over, given twice, given late.

    A subscriber owes nothing before its first delivery of a partition: where it began isn't in
    the data. It had to get everything from there to its last one, or to its position in the
    partition if `positions` (subscriber, topic, partition, position) tells it.
    """
    partition = ("subscriber", "topic", "partition")
    by_turn = Window.partitionBy(*partition).orderBy("at", "offset")
    earlier = by_turn.rowsBetween(Window.unboundedPreceding, -1)
    again = Window.partitionBy(*partition, "offset").orderBy("at")
    ordered = deliveries.withColumn("turn", row_number().over(again)).withColumn(
        "highest", greatest_of("offset").over(earlier)
    )
    ordered = ordered.withColumn("timestamp", lit(None).cast("timestamp"))
    twice = _finding("delivered twice", "concat('its delivery number ', turn)", _SUBSCRIBER)
    late = _finding("delivered late", "concat('it came after offset ', highest)", _SUBSCRIBER)
    wrong = _exploded(
        ordered.where("turn > 1 or highest > offset"),
        array(when(col("turn") > 1, twice), when(expr("turn = 1 and highest > offset"), late)),
    )
    spans = deliveries.groupBy(*partition).agg(
        least_of("offset").alias("first"), (greatest_of("offset") + 1).alias("until")
    )
    if positions is not None:
        spans = spans.join(broadcast(positions), list(partition), "left").withColumn(
            "until", expr("greatest(until, coalesce(position, 0))")
        )
    owed = records.join(
        broadcast(spans.select(*partition, "first", "until")), ["topic", "partition"]
    ).where("offset >= first and offset < until")
    passed_over = owed.join(deliveries, [*partition, "offset"], "left_anti")
    text = "concat('it had offset ', first, ' and what came up to ', until - 1)"
    undelivered = array(_finding("undelivered", text, _SUBSCRIBER))
    return wrong.unionByName(_exploded(passed_over, undelivered))


def unmatched_deliveries(records: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Of what isn't in the log, or is something else there."""
    known = records.selectExpr(
        *("topic", "partition", "offset", "timestamp"),
        "producer as true_producer",
        "sequence as true_sequence",
        "true as is_there",
    )
    joined = deliveries.join(known, ["topic", "partition", "offset"], "left")
    agrees = "producer <=> true_producer and sequence <=> true_sequence"
    return joined.where(f"is_there is null or (producer is not null and not ({agrees}))")


def match_findings(unmatched: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """Why: `uncommitted` has the places of all records, those of aborted transactions, too."""
    place = ["topic", "partition", "offset"]
    aborted = uncommitted.selectExpr(*place, "true as is_aborted")
    traced = unmatched.join(aborted, place, "left")
    there = "concat('there is ', coalesce(concat(true_producer, ' ', true_sequence), 'another'))"
    otherwise = f"if(is_there, {there}, 'nothing is there')"
    was_aborted = expr("is_there is null and is_aborted is not null")
    return _exploded(
        traced,
        array(
            when(was_aborted, _finding("delivered aborted", "'it was aborted'", _SUBSCRIBER)),
            when(~was_aborted, _finding("delivered otherwise", otherwise, _SUBSCRIBER)),
        ),
    )


def together(findings: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), findings)


def _finding(
    kind: str,
    text: str,
    subscriber: str = "cast(null as string)",
    *,
    sequence: str = "sequence",
    count: str = "1",
) -> Column:
    return struct(
        lit(kind).alias("kind"),
        *(col(name).alias(name) for name in ("topic", "partition", "offset", "timestamp")),
        col("producer").alias("producer"),
        expr(sequence).cast("bigint").alias("sequence"),
        expr(subscriber).alias("subscriber"),
        expr(count).cast("bigint").alias("count"),
        expr(text).alias("text"),
    )


def _exploded(frame: DataFrame, findings: Column) -> DataFrame:
    return frame.select(explode(array_compact(findings)).alias("finding")).select("finding.*")


def _same(left: str, right: str, names: Sequence[str]) -> Column:
    return reduce(
        lambda one, other: one & other,
        (col(f"{left}.{name}") == col(f"{right}.{name}") for name in names),
    )
