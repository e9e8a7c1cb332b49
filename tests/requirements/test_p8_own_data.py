"""P8: tree events with healing times, deliveries and acknowledgements, load and Raft status are
topics, of which `archive` and `rollup` make tables; stress runs are judged by `audit`."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chaos.stress import Options as StressOptions
from chaos.stress import stress
from sapwood.cli.pipeline import standing
from sapwood.client import Client, KafkaClient
from sapwood.spark.audit.verdict import Verdict
from tests.cli.command import sapwood as command
from tests.gateway.talk import OK, TcpTalk
from tests.helpers import eventually
from tests.spark.killed import finish

pytestmark = pytest.mark.timeout(900)

TOPICS = {
    "__sapwood_tree",
    "__sapwood_nodes",
    "__sapwood_load",
    "__sapwood_raft",
    "__sapwood_deliveries",
    "__sapwood_subscribers",
}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "sapwood"
    flags = ("--nodes", "3", "--edges", "1", "--port", "0", "--detach", "--dir", str(path))
    command("up", *flags)
    yield path
    command("down", "--dir", str(path))


def records(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    with KafkaClient(bootstrap) as client:
        found = client.metadata([topic]).topics[topic]
        if found.error_code:
            return []
        places = {(topic, partition): 0 for partition in found.partitions}
        return [json.loads(it.value or b"{}") for it in client.consume(places, stop_at="end")]


def test_p8_the_systems_own_data_is_in_topics_and_archive_and_rollup_make_tables_of_it(
    directory: Path, tmp_path: Path, spark: SparkSession
) -> None:
    stored = json.loads((directory / "cluster.json").read_text())
    bootstrap = ",".join(stored["nodes"].values())
    with TcpTalk(stored["lines"]["0"]) as talk, Client(bootstrap, "ann", receipts=True) as client:
        client.subscribe("news")
        assert talk.say("USER", name="bob") == OK
        assert talk.say("SUBSCRIBE", topic="news", durable=True) == OK
        for text in ("hello", "again"):
            assert talk.say("SEND", topic="news", message=text) == OK
        got = client.get("news", timeout=30)
        assert got is not None
        assert got.value == b"hello"
        assert [talk.message()["message"] for _ in range(2)] == ["hello", "again"]
        assert talk.say("ACK", id=got.id) == OK

        def fathers() -> list[int]:
            told = records(bootstrap, "__sapwood_nodes")
            return [it["father"] for it in told if it.get("kind") == "edge"]

        at = eventually(fathers, 60)[-1]
        pid = json.loads((directory / f"node-{at}" / "ready.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        eventually(
            lambda: any(it.get("healing_ms") for it in records(bootstrap, "__sapwood_tree")), 60
        )
        eventually(lambda: all(records(bootstrap, topic) for topic in TOPICS), 60)

    def is_led() -> bool:
        told = {(it["topic"], it["partition"]): it for it in records(bootstrap, "__sapwood_raft")}
        found = told.get(("news", got.partition))
        return found is not None and found["leader"] in found["peers"]

    def has_acknowledged(who: str) -> bool:
        """The first of two messages, which are in one partition since one sent both."""
        told = [it for it in records(bootstrap, "__sapwood_subscribers") if "gone" not in it]
        newest = {(it["subscriber"], it["topic"], it["partition"]): it for it in told}
        found = newest.get((who, "news", got.partition), {})
        return bool(found) and (found["acknowledged"], found["pending"]) == (1, 1)

    eventually(is_led, 60)  # the newest word of it may be from the election
    for who in ("ann", "bob"):
        eventually(lambda who=who: has_acknowledged(who), 60)  # type: ignore[misc]
    assert {it.get("kind") for it in records(bootstrap, "__sapwood_nodes")} >= {"core", "edge"}
    (receipt,) = records(bootstrap, "__sapwood_deliveries")
    assert (receipt["subscriber"], receipt["id"]) == ("ann", got.id)

    tables = tmp_path / "tables"
    flags = f"--pattern '__sapwood_.*' --tables {tables} --bootstrap {bootstrap}"
    asked = [
        f"archive --values json {flags}",
        f"rollup --window '1 second' --late '0 seconds' {flags}",
    ]
    for folder in standing(directory, asked):
        finish(spark, replace(folder.run(folder.request()), once=True))
    for topic, column in {
        "__sapwood_tree": "healing_ms",
        "__sapwood_nodes": "clients",
        "__sapwood_load": "clients",
        "__sapwood_raft": "leader",
        "__sapwood_deliveries": "subscriber",
        "__sapwood_subscribers": "acknowledged",
    }.items():
        table = spark.read.parquet(str(tables / topic))
        assert table.where(f"{column} is not null").count() > 0, topic
    windows = pq.read_table(tables / "rollup")
    assert set(pc.unique(windows["topic"]).to_pylist()) >= {"__sapwood_tree", "__sapwood_raft"}


def test_p8_the_verdict_on_a_stress_run_comes_from_audit(tmp_path: Path) -> None:
    found = stress(StressOptions(seed=1, seconds=1, root=tmp_path, audit=True))
    assert found.problems["audit"] == [], str(found)
    written = (Path(found.directory) / "audit" / "verdict.json").read_bytes()
    verdict = msgspec.json.decode(written, type=Verdict)
    assert verdict.records >= found.sends["ok"] > 0
    assert verdict.is_clean
