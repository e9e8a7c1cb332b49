"""P3c: `audit` proves from the data what was lost, doubled or reordered, or that nothing was."""

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sapwood.bulk import produce_arrow
from sapwood.pytest_plugin import SharedCluster
from sapwood.spark.audit.verdict import Verdict
from sapwood.spark.pipelines import load
from sapwood.spark.pipelines.state import run_folder
from sapwood.spark.pipelines.words import Outcome
from tests.helpers import eventually
from tests.spark.pipeline import DEADLINE_S, refused, running

pytestmark = pytest.mark.timeout(900)


def numbered_by(written: Iterable[tuple[str, int]]) -> pa.Table:
    return pa.table(
        {"value": [json.dumps({"from": name, "n": number}).encode() for name, number in written]}
    )


def test_p3c_an_audit_that_is_killed_leaves_no_verdict_and_the_next_names_all_that_was_planted(
    spark: SparkSession, sapwood_cluster: SharedCluster, tmp_path: Path
) -> None:
    bootstrap = sapwood_cluster.bootstrap
    clean, planted = sapwood_cluster.topic("clean"), sapwood_cluster.topic("planted")
    honest = [("shop", number) for number in range(1000)]
    # A gap at 3, a swap of 5 and 6, and 4 once more.
    liar = [("liar", number) for number in (0, 1, 2, 4, 6, 5, 4)]
    produce_arrow(clean, numbered_by(honest), bootstrap=bootstrap)
    produce_arrow(planted, numbered_by(liar), bootstrap=bootstrap)
    output = tmp_path / "output"
    arguments = ("audit", "--topics", f"{clean},{planted}", "--numbering", "json:from,n")
    with running(
        *arguments, "--output", str(output), directory=tmp_path, bootstrap=bootstrap
    ) as first:
        eventually(
            lambda: (found := first.status("audit")) is not None and found.state == "running",
            DEADLINE_S,
        )
        first.kill_driver("audit")
        ended = first.end()
    # Status 1 would say that something was found.
    assert (ended.status, ended.out) == (2, "")
    assert "audit ended without a word" in ended.err
    assert not (output / "verdict.json").exists()

    folder = run_folder(tmp_path, "audit")
    outcome = load("audit").start(spark, folder.run(folder.request()))
    assert isinstance(outcome, Outcome)
    assert outcome.status == 1
    verdict = msgspec.json.decode((output / "verdict.json").read_bytes(), type=Verdict)
    assert verdict.records == 1007
    found = {(it.kind, it.topic, it.offset, it.producer, it.sequence) for it in verdict.examples}
    assert found == {
        ("gap", planted, 3, "liar", 3),
        ("reordered", planted, 5, "liar", 5),
        ("duplicate", planted, 6, "liar", 4),
    }
    assert f"duplicate at {planted}-0@6: liar 4: it is at {planted}-0@3, too" in outcome.message
    assert spark.read.parquet(str(output / "findings")).count() == 3
    assert "liar" in (output / "audit.html").read_text()


def test_p3c_what_keeps_an_audit_from_its_verdict_is_never_taken_for_one(
    sapwood_cluster: SharedCluster, tmp_path: Path
) -> None:
    for topic, bootstrap, words in (
        ("nowhere", sapwood_cluster.bootstrap, "there is no topic nowhere at"),
        ("clean", "127.0.0.1:1", "no broker answered at 127.0.0.1:1"),
    ):
        line = refused(
            *("audit", "--topics", topic), directory=tmp_path, bootstrap=bootstrap, fails=2
        )
        assert words in line
