"""P8: tree events with healing times, deliveries, load and Raft status are topics, and `archive`
makes tables of them."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.client import Client, KafkaClient
from tests.cli.command import sapwood as command
from tests.gateway.talk import OK, TcpTalk
from tests.helpers import eventually
from tests.spark.pipeline import ran
from tests.spark.test_tables import read

pytestmark = pytest.mark.timeout(900)

TOPICS = {
    "__sapwood_tree",
    "__sapwood_nodes",
    "__sapwood_load",
    "__sapwood_raft",
    "__sapwood_deliveries",
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


def test_p8_the_systems_own_data_is_in_topics_and_archive_makes_tables_of_it(
    directory: Path, tmp_path: Path
) -> None:
    stored = json.loads((directory / "cluster.json").read_text())
    bootstrap = ",".join(stored["nodes"].values())
    with TcpTalk(stored["lines"]["0"]) as talk, Client(bootstrap, "ann", receipts=True) as client:
        client.subscribe("news")
        assert talk.say("SEND", topic="news", message="hello") == OK
        assert (got := client.get("news", timeout=30)) is not None
        assert got.value == b"hello"

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
        return told["news", 0]["leader"] in told["news", 0]["peers"]

    eventually(is_led, 60)  # the newest word of it may be from the election
    assert {it.get("kind") for it in records(bootstrap, "__sapwood_nodes")} >= {"core", "edge"}
    (receipt,) = records(bootstrap, "__sapwood_deliveries")
    assert receipt["id"] == got.id

    flags = ("--topics", ",".join(sorted(TOPICS)), "--tables", str(tmp_path / "tables"))
    ran("archive", *flags, directory=directory, bootstrap=bootstrap)
    for topic in TOPICS:
        rows = read(tmp_path / "tables", "parquet", topic).column("value")
        archived = [json.loads(value.as_py()) for value in rows]
        assert archived, topic
        if topic == "__sapwood_tree":
            assert any(it.get("healing_ms") for it in archived)
