"""`audit`: were records lost, doubled or reordered, in topics and on the way to subscribers?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sapwood.spark.audit.verdict import Verdict

from sapwood.client.session import DELIVERIES_TOPIC
from sapwood.spark.audit.numbering import KINDS, numbering_of
from sapwood.spark.pipelines.words import (
    BAD_INPUT_STATUS,
    Option,
    Outcome,
    Pipeline,
    PipelineFailed,
    Run,
)

FINDINGS_STATUS = 1
PAGE_NAME = "audit.html"
VERDICT_NAME = "verdict.json"
FINDINGS_NAME = "findings"
_SHOWN = 20

_WITHIN = {"all": (), "topic": ("topic",), "partition": ("topic", "partition")}


def start(spark: SparkSession, run: Run) -> Outcome:
    """Status 0 if all is well, 1 if something was found, 2 if there is no telling."""
    output = Path(run.options.get("output", run.directory / "audit"))
    with _no_telling():
        verdict, findings = _judge(spark, run)
        _publish(verdict, findings, output)
    rows = [str(verdict), *(f"  {each}" for each in verdict.examples[:_SHOWN])]
    if len(verdict.examples) > _SHOWN:
        rows.append("  …")
    rows.append(f"page: {output / PAGE_NAME}; every finding, as Parquet: {output / FINDINGS_NAME}")
    return Outcome("\n".join(rows), 0 if verdict.is_clean else FINDINGS_STATUS)


@contextlib.contextmanager
def _no_telling() -> Iterator[None]:
    """What keeps an audit from its verdict must not look like one."""
    from sapwood.spark.explaining import explain

    try:
        yield
    except Exception as error:
        raise PipelineFailed(explain(error), status=BAD_INPUT_STATUS) from error


def _judge(spark: SparkSession, run: Run) -> tuple[Verdict, DataFrame]:
    from sapwood.spark.audit.gathering import Sources, gather
    from sapwood.spark.audit.judging import audit

    options = run.options
    numbering = numbering_of(options["numbering"])
    names = {"topics": "subscribe", "pattern": "subscribePattern", "assign": "assign"}
    topics = {name: options[key] for key, name in names.items() if key in options}
    if len(topics) != 1:
        raise PipelineFailed("say what to audit, by one of --topics, --pattern and --assign")
    receipts = options.get("receipts")
    evidence = gather(
        spark,
        Sources(
            bootstrap=run.bootstrap,
            topics=topics,
            numbering=numbering,
            receipts=None if receipts is None else Path(receipts),
            receipts_topic=options.get("receipts_topic"),
            deliveries_topic=options["deliveries_topic"],
        ),
    )
    gaps = {"yes": True, "no": False}.get(options["gaps"], numbering.is_consecutive)
    verdict, findings = audit(evidence, _WITHIN[options["counts_in"]], is_consecutive=gaps)
    if verdict.is_clean and not verdict.producers and not verdict.deliveries:
        raise PipelineFailed(
            f"none of {verdict.records} records tells its producer and number by "
            f"{options['numbering']!r}, so there is nothing to go by: --numbering is {KINDS}"
        )
    return verdict, findings


def _publish(verdict: Verdict, findings: DataFrame, output: Path) -> None:
    from sapwood.spark.audit.page import page

    output.mkdir(parents=True, exist_ok=True)
    # The verdict comes last: where there is one, the rest belongs to it.
    (output / VERDICT_NAME).unlink(missing_ok=True)
    findings.write.mode("overwrite").parquet(str(output.absolute() / FINDINGS_NAME))
    (output / PAGE_NAME).write_text(page(verdict), encoding="utf-8")
    temporary = output / f"{VERDICT_NAME}.new"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(verdict)))
    os.replace(temporary, output / VERDICT_NAME)


PIPELINE = Pipeline(
    name="audit",
    summary="Prove from the data that nothing was lost, doubled or reordered.",
    start=start,
    failed_status=BAD_INPUT_STATUS,
    options=(
        Option(name="topics", help="What to audit: names with commas.", names_topics=True),
        Option(name="pattern", help="Or: a regular expression for names."),
        Option(name="assign", help='Or: partitions, as {"topic": [0, 1]}.'),
        Option(
            name="numbering",
            help=f"How a record tells its producer and number: {KINDS}.",
            default="put",
        ),
        Option(
            name="counts-in",
            help="What a producer counts in: all that it sends, a topic, or a partition.",
            default="all",
            choices=tuple(_WITHIN),
        ),
        Option(
            name="gaps",
            help="Whether a number that isn't there is missing. auto: not with put.",
            default="auto",
            choices=("auto", "yes", "no"),
        ),
        Option(name="receipts", help="What producers were told: a file or folder.", kind=Path),
        Option(name="receipts-topic", help="The same, in a topic.", names_topics=True),
        Option(
            name="deliveries-topic",
            help="What durable subscribers got.",
            default=DELIVERIES_TOPIC,
        ),
        Option(name="output", help="Where page and findings go.  [the run's folder]", kind=Path),
    ),
)
