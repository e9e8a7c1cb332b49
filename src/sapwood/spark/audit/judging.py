"""From evidence to a verdict: only counts and examples leave Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

from pyspark import StorageLevel
from pyspark.sql.functions import broadcast, expr

from sapwood.spark.audit.findings import (
    delivery_findings,
    match_findings,
    order_findings,
    receipt_findings,
    together,
    unacknowledged_excused,
    unmatched_deliveries,
)
from sapwood.spark.audit.verdict import MEANINGS, Finding, Share, Strip, Subscription, Verdict

EXAMPLES = 100
"""Of each kind, in the verdict; the table of findings has all."""
MOST_ROWS = 200
MOST_STRIPS = 40
MOST_TOPICS = 20
BINS = 120

T = TypeVar("T")

_PLACE = ("producer", "topic", "partition")
_TYPES = {"producer": "string", "topic": "string", "partition": "int"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What an audit goes by, as DataFrames. `uncommitted` is read only if it is needed."""

    records: DataFrame
    receipts: DataFrame | None = None
    deliveries: DataFrame | None = None
    positions: DataFrame | None = None
    uncommitted: Callable[[], DataFrame] | None = None


def audit(
    evidence: Evidence, within: Sequence[str] = (), *, is_consecutive: bool = True
) -> tuple[Verdict, DataFrame]:
    """The verdict, and the table of all findings."""
    # Read once, asked often. What is kept of a record is small, and on disk it may be any number.
    records = evidence.records.persist(StorageLevel.DISK_ONLY)
    found = [order_findings(records, within, is_consecutive=is_consecutive)]
    if evidence.receipts is not None:
        found = [unacknowledged_excused(found[0], evidence.receipts)]
        found.append(receipt_findings(records, evidence.receipts, within))
    if evidence.deliveries is not None:
        found.append(delivery_findings(records, evidence.deliveries, evidence.positions))
        unmatched = unmatched_deliveries(records, evidence.deliveries)
        unmatched = unmatched.persist(StorageLevel.DISK_ONLY)
        if not unmatched.isEmpty():
            everything = evidence.uncommitted() if evidence.uncommitted else records
            found.append(match_findings(unmatched, everything))
    findings = together(found).persist(StorageLevel.DISK_ONLY)
    return _verdict(evidence, records, findings, within, is_consecutive), findings


def _verdict(
    evidence: Evidence,
    records: DataFrame,
    findings: DataFrame,
    within: Sequence[str],
    is_consecutive: bool,
) -> Verdict:
    counts = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
    kinds = [kind for kind in MEANINGS if kind in counts]
    topics = records.groupBy("topic").agg(
        expr("count(*) as records"),
        expr("count(producer) as numbered"),
        expr("sum(bytes) as bytes"),
        expr("unix_millis(min(timestamp)) as began_ms"),
        expr("unix_millis(max(timestamp)) as ended_ms"),
    )
    rows = sorted(topics.collect())
    total = sum(row["records"] for row in rows)
    began_ms = min((row["began_ms"] for row in rows), default=0)
    ended_ms = max((row["ended_ms"] for row in rows), default=0)
    shares = _shares(records).persist()
    some_shares = _some(shares.orderBy(expr("records desc"), *_PLACE), Share, MOST_ROWS)
    examples = [each for kind in kinds for each in _examples(findings, kind)]
    suspects = {each.producer for each in examples if each.producer is not None}
    receipts, deliveries = evidence.receipts, evidence.deliveries
    return Verdict(
        topics=[row["topic"] for row in rows],
        records=total,
        unnumbered=total - sum(row["numbered"] for row in rows),
        bytes=sum(row["bytes"] for row in rows),
        producers=shares.select("producer").distinct().count(),
        receipts=None if receipts is None else receipts.where("outcome = 'ok'").count(),
        deliveries=None if deliveries is None else deliveries.count(),
        began_ms=began_ms,
        ended_ms=ended_ms,
        unjudged=_unjudged(evidence, is_consecutive),
        found={kind: counts[kind] for kind in kinds},
        examples=examples,
        shares=some_shares,
        strips=_strips(records, some_shares, suspects, within) if is_consecutive else [],
        rates=_rates(records, began_ms, ended_ms, [row["topic"] for row in rows[:MOST_TOPICS]]),
        subscriptions=[] if deliveries is None else _subscriptions(deliveries),
    )


def _unjudged(evidence: Evidence, is_consecutive: bool) -> list[str]:
    reasons = {
        "gaps, since producers needn't use every number": is_consecutive,
        "what was acknowledged, since there are no receipts": evidence.receipts is not None,
        "what subscribers got, since there are no deliveries": evidence.deliveries is not None,
    }
    return [reason for reason, was_judged in reasons.items() if not was_judged]


def _examples(findings: DataFrame, kind: str) -> list[Finding]:
    some = findings.where(findings["kind"] == kind).orderBy("topic", "partition", "offset")
    return _some(some.selectExpr("*", "unix_millis(timestamp) as timestamp_ms"), Finding, EXAMPLES)


def _shares(records: DataFrame) -> DataFrame:
    grouped = records.where("producer is not null").groupBy("producer", "topic", "partition")
    return grouped.agg(
        expr("count(*) as records"),
        expr("sum(bytes) as bytes"),
        expr("min(sequence) as first"),
        expr("max(sequence) as last"),
    )


def _subscriptions(deliveries: DataFrame) -> list[Subscription]:
    grouped = deliveries.groupBy("subscriber", "topic", "partition").agg(
        expr("count(*) as deliveries"), expr("min(offset) as first"), expr("max(offset) as last")
    )
    return _some(grouped.orderBy("subscriber", "topic", "partition"), Subscription, MOST_ROWS)


def _strips(
    records: DataFrame, shares: Sequence[Share], suspects: Collection[str], within: Sequence[str]
) -> list[Strip]:
    """Of the producers that something was found of, and of those with most records."""
    strips: dict[tuple[Any, ...], Strip] = {}
    for share in sorted(shares, key=lambda each: each.producer not in suspects):
        key = (share.producer, *(getattr(share, name) for name in within))
        known = strips.get(key)
        if known is None and len(strips) == MOST_STRIPS:
            continue
        first = share.first if known is None else min(known.first, share.first)
        last = share.last if known is None else max(known.last, share.last)
        where = "-".join(str(each) for each in key[1:])
        steps = min(BINS, last - first + 1)
        strips[key] = Strip(share.producer, where, first, last, [0] * steps)
    if not strips:
        return []
    rows = [(*key, strip.first, strip.last, len(strip.counts)) for key, strip in strips.items()]
    names = ["producer", *within]
    types = [f"{name} {_TYPES[name]}" for name in names]
    columns = ", ".join([*types, "first bigint", "last bigint", "steps int"])
    chosen = records.sparkSession.createDataFrame(rows, columns)
    step = "floor((sequence - first) / ((last - first + 1) / steps))"
    binned = records.join(broadcast(chosen), names).withColumn("step", expr(step))
    for row in binned.groupBy(*names, "step").count().collect():
        counts = strips[tuple(row[name] for name in names)].counts
        counts[min(row["step"], len(counts) - 1)] += row["count"]
    return [strips[key] for key in sorted(strips)]


def _rates(
    records: DataFrame, began_ms: int, ended_ms: int, topics: Sequence[str]
) -> dict[str, list[int]]:
    step_ms = (ended_ms - began_ms + 1) / BINS
    binned = records.where(records["topic"].isin(*topics)).withColumn(
        "bin", expr(f"cast((unix_millis(timestamp) - {began_ms}) / {step_ms}D as int)")
    )
    rates = {topic: [0] * BINS for topic in topics}
    for row in binned.groupBy("topic", "bin").count().collect():
        rates[row["topic"]][min(row["bin"], BINS - 1)] += row["count"]
    return rates


def _some(frame: DataFrame, kind: type[T], most: int) -> list[T]:
    return [msgspec.convert(row.asDict(), kind) for row in frame.limit(most).collect()]
