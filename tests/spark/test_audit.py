"""What an audit finds, in logs so small that one sees what is wrong with them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sapwood.bulk import produce_arrow
from sapwood.cli.driver import NO_CALL_BACK, STARTS
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.audit.findings import (
    delivery_findings,
    match_findings,
    order_findings,
    receipt_findings,
    unacknowledged_excused,
    unmatched_deliveries,
)
from sapwood.spark.audit.judging import Evidence, audit
from sapwood.spark.audit.numbering import WrongNumbering, numbered, numbering_of
from sapwood.spark.audit.page import page
from sapwood.spark.audit.receipts import deliveries, lines_of_file, receipts
from sapwood.spark.pipelines.audit import PIPELINE
from sapwood.spark.pipelines.words import PipelineFailed, Run

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(600)

RECORD = (
    "topic string, partition int, offset bigint, timestamp timestamp, bytes int, "
    "producer string, sequence bigint"
)
BEGAN = datetime(2026, 11, 18, 10, tzinfo=UTC)


def log(spark: SparkSession, partitions: Mapping[str, str]) -> DataFrame:
    """{"t-0": "a0 a1 . b0"}: records by producer and number; a dot is an offset without one."""
    rows = []
    for place, written in partitions.items():
        topic, _, partition = place.rpartition("-")
        for offset, record in enumerate(written.split()):
            if record != ".":
                time = BEGAN + timedelta(milliseconds=offset)
                number = (record[0], int(record[1:]))
                rows.append((topic, int(partition), offset, time, 10, *number))
    return spark.createDataFrame(rows, RECORD)


def told(findings: DataFrame) -> list[tuple[Any, ...]]:
    """(kind, place, record, and where they matter, subscriber and count) of each, sorted."""
    rows = findings.selectExpr(
        "kind",
        "concat(topic, '-', partition, '@', coalesce(offset, '?')) as place",
        "concat(producer, sequence) as record",
        "subscriber",
        "if(count = 1, null, count) as more",
    )
    return sorted(tuple(each for each in row if each is not None) for row in rows.collect())


def lines(tmp_path: Path, *objects: Mapping[str, Any], name: str = "lines.jsonl") -> str:
    path = tmp_path / name
    path.write_text("".join(f"{json.dumps(each)}\n" for each in objects) + '{"torn": ')
    return str(path)


def test_gaps_duplicates_and_reorderings_are_told_by_their_places(spark: SparkSession) -> None:
    records = log(
        spark,
        {
            "t-0": "a0 a1 a3 a2 b0 b4 . a6 a1",
            "t-1": "a5 a4 b0 a7 a12",
        },
    )
    assert told(order_findings(records)) == [
        ("duplicate", "t-0@4", "b0"),
        ("duplicate", "t-0@8", "a1"),
        ("gap", "t-0@5", "b1", 3),
        ("gap", "t-1@4", "a8", 4),
        ("reordered", "t-0@3", "a2"),
        ("reordered", "t-1@1", "a4"),
    ]
    by_kind = told(order_findings(records, is_consecutive=False))
    assert {kind for kind, *_ in by_kind} == {"duplicate", "reordered"}


def test_a_producer_may_count_in_each_partition_for_itself(spark: SparkSession) -> None:
    records = log(spark, {"t-0": "a0 a1 a2", "t-1": "a0 a2", "u-0": "a0"})
    found = told(order_findings(records, ("topic", "partition")))
    assert found == [("gap", "t-1@1", "a1")]


def test_receipts_tell_what_is_lost_and_excuse_what_nobody_acknowledged(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = log(spark, {"t-0": "a0 a1 . a3 a5 a7", "t-1": "b0 b2"})

    def receipt(number: int, offset: int, outcome: str = "ok") -> dict[str, Any]:
        place = {"topic": "t", "partition": 0, "offset": offset}
        return {"producer": "a", "sequence": number, "outcome": outcome, **place}

    given = [receipt(0, 0), receipt(1, 1), receipt(2, 2), receipt(3, 4), receipt(4, -1, "unknown")]
    given += [receipt(5, 4, "aborted"), receipt(6, 5, "fail"), receipt(7, 9, "aborted")]
    noted = receipts(lines_of_file(spark, lines(tmp_path, *given)))
    assert told(receipt_findings(records, noted)) == [
        ("aborted", "t-0@4", "a5"),
        ("lost", "t-0@2", "a2"),
        ("misplaced", "t-0@4", "a3"),
    ]
    # b has no receipts: there is nothing to tell which of its numbers were acknowledged.
    gaps = unacknowledged_excused(order_findings(records), noted)
    assert told(gaps) == [("gap", "t-1@1", "b1")]


def test_a_number_that_was_aborted_and_sent_again_is_there_rightly(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = log(spark, {"t-0": ". a0"})
    attempt = {"producer": "a", "sequence": 0, "topic": "t", "partition": 0}
    path = lines(tmp_path, {**attempt, "outcome": "aborted"}, {**attempt, "outcome": "ok"})
    assert told(receipt_findings(records, receipts(lines_of_file(spark, path)))) == []


def test_deliveries_are_held_against_the_log(spark: SparkSession, tmp_path: Path) -> None:
    records = log(spark, {"t-0": "a0 a1 a2 a3 . a5 a6 a7", "t-1": "b0"})
    turns = [("alice", 0), ("alice", 1), ("alice", 3), ("alice", 4), ("alice", 1), ("alice", 7)]
    turns += [("alice", 6), ("bob", 5), ("bob", 6)]
    given = [
        {"subscriber": name, "topic": "t", "partition": 0, "offset": offset, "at": at}
        for at, (name, offset) in enumerate(turns)
    ]
    got = deliveries(lines_of_file(spark, lines(tmp_path, *given)))
    positions = spark.createDataFrame(
        [("bob", "t", 0, 8)], "subscriber string, topic string, partition int, position bigint"
    )
    assert told(delivery_findings(records, got, positions)) == [
        ("delivered late", "t-0@6", "alice"),
        ("delivered twice", "t-0@1", "alice"),
        ("undelivered", "t-0@2", "a2", "alice"),
        ("undelivered", "t-0@5", "a5", "alice"),
        ("undelivered", "t-0@7", "a7", "bob"),
    ]
    unmatched = unmatched_deliveries(records, got)
    uncommitted = log(spark, {"t-0": "a0 a1 a2 a3 a4 a5 a6 a7"})
    assert told(match_findings(unmatched, uncommitted)) == [("delivered aborted", "t-0@4", "alice")]
    assert told(match_findings(unmatched, records)) == [("delivered otherwise", "t-0@4", "alice")]


def test_the_history_of_a_chaos_run_and_the_notes_of_clients_are_receipts(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = lines(
        tmp_path,
        {"op": "start", "version": 1, "seed": 0, "nodes": 1, "replicas": 1, "began": ""},
        {"op": "send", "client": "p", "topic": "t", "partition": 0, "value": "x:y:7", "at": 0.1,
         "done": 0.2, "outcome": "ok", "offset": 3},
        {"op": "send", "client": "p", "topic": "t", "value": "x:y:8", "at": 0.1},
        {"op": "read", "client": "r", "topic": "t", "partition": 0, "offset": 3,
         "values": ["x:y:7", "x:y:9"], "at": 0.3, "done": 0.4},
    )  # fmt: skip
    parsed = lines_of_file(spark, history)
    assert sorted(map(tuple, receipts(parsed).collect()), key=str) == [
        ("x:y", 7, "t", 0, 3, "ok"),
        ("x:y", 8, "t", None, None, "unknown"),
    ]
    assert sorted(map(tuple, deliveries(parsed).collect())) == [
        ("r", "t", 0, 3, 0.4, "x:y", 7),
        ("r", "t", 0, 4, 0.4, "x:y", 9),
    ]
    notes = lines(
        tmp_path,
        {"what": "puts", "at_s": 1.0, "topic": "t", "number": 5},
        {"what": "stored", "at_s": 1.0, "topic": "t", "number": 5, "partition": 1, "offset": 2},
        {"what": "ended"},
        name="p1.notes",
    )
    assert sorted(map(tuple, receipts(lines_of_file(spark, notes)).collect()), key=str) == [
        ("p1", 5, "t", 1, 2, "ok"),
        ("p1", 5, "t", None, None, "unknown"),
    ]


def test_records_tell_their_producer_and_number_in_many_ways(spark: SparkSession) -> None:
    columns = (
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, headers array<struct<key: string, value: binary>>"
    )
    headers = [("sapwood-id", b"0f-12"), ("sapwood-sender", b"alice"), ("n", b"4"), ("who", b"h")]
    values = [b"p:1:7|p:1:7|p", b"p1 8", b'{"from": "j", "meta": {"n": 9}}', b"it's #5 of x", None]
    rows = [(None, value, "t", 0, n, BEGAN, headers) for n, value in enumerate(values)]
    frame = spark.createDataFrame(rows, columns)

    def read(numbering: str) -> list[tuple[str, int]]:
        known = numbered(frame, numbering_of(numbering)).where("producer is not null")
        return [(row.producer, row.sequence) for row in known.orderBy("offset").collect()]

    assert read("history") == [("p:1", 7)]
    assert read("clients") == [("p1", 8)]
    assert read("json:from,meta.n") == [("j", 9)]
    assert read(r"pattern:^(it's) #([0-9]+)") == [("it's", 5)]
    assert set(read("headers:who,n")) == {("h", 4)}
    assert set(read("put")) == {("alice/0f", 12)}
    for wrong in ("magic", "json:only", "headers:,n", "pattern:([0-9]+)"):
        with pytest.raises(WrongNumbering):
            numbering_of(wrong)


def test_a_verdict_counts_and_its_page_shows_what_anybody_may_have_written(
    spark: SparkSession,
) -> None:
    written = " ".join(f"a{number}" for number in range(300) if number != 77)
    records = log(spark, {"<b>-0": written, "u-0": "b0 b0"})
    verdict, findings = audit(Evidence(records=records))
    assert verdict.found == {"gap": 1, "duplicate": 1}
    assert (verdict.records, verdict.producers, verdict.receipts) == (301, 2, None)
    assert findings.count() == 2
    (gap,) = (each for each in verdict.examples if each.kind == "gap")
    assert str(gap) == "gap at <b>-0@77: a 77: 77 should lie between <b>-0@76 and here"
    assert {strip.producer: sum(strip.counts) for strip in verdict.strips} == {"a": 299, "b": 2}
    assert {topic: sum(counts) for topic, counts in verdict.rates.items()} == {"<b>": 299, "u": 2}
    shown = page(verdict)
    assert "<b>" not in shown
    assert "77 should lie between" in shown
    assert "http" not in shown
    clean, _ = audit(Evidence(records=log(spark, {"t-0": "a0 a1"})))
    assert clean.is_clean
    assert "Clean" in page(clean)


def run_of(sapwood: SharedCluster, directory: Path, **options: str) -> Run:
    defaults = {each.key: each.default for each in PIPELINE.options if each.default is not None}
    return Run(
        name="audit",
        pipeline="audit",
        bootstrap=sapwood.bootstrap,
        directory=directory,
        options=defaults | options,
    )


def test_an_audit_that_can_tell_nothing_says_why_and_does_not_look_like_a_verdict(
    spark: SparkSession, sapwood: SharedCluster, tmp_path: Path
) -> None:
    topic = sapwood.topic("unnumbered")
    produce_arrow(topic, pa.table({"value": [b"?"]}), bootstrap=sapwood.bootstrap)

    def refusal(**options: str) -> str:
        for _ in range(STARTS):  # on a busy machine Spark may have to be asked again, as in runs
            with pytest.raises(PipelineFailed) as refused:
                PIPELINE.start(spark, run_of(sapwood, tmp_path, **options))
            if NO_CALL_BACK not in str(refused.value):
                break
        assert refused.value.status == 2
        assert list(tmp_path.iterdir()) == []
        return str(refused.value)

    assert "one of --topics, --pattern and --assign" in refusal()
    assert "there is no topic nowhere" in refusal(topics="nowhere")
    assert "choose from put" in refusal(topics=topic, numbering="magic")
    assert "no receipts at /nowhere" in refusal(topics=topic, receipts="/nowhere")
    assert "none of 1 records tells its producer and number" in refusal(topics=topic)
