"""The measurement of fan-out, end to end: Sapwood directly and in a tree, and a tree of NATS."""

import json
from pathlib import Path

from tests.bench.test_bench import measure, processes_of


def test_a_tree_relieves_its_origin_and_every_reader_gets_every_message(tmp_path: Path) -> None:
    flags = ["--shapes", "sapwood,sapwood-tree,nats-leaves", "--readers", "1,24"]
    flags += ["--rate", "50", "--seconds", "3", "--output", str(tmp_path)]
    printed = measure(tmp_path, "bench.fanout", *flags)
    assert "| 24 readers |" in printed
    found = json.loads((tmp_path / "fanout.json").read_text())
    sent = {title: [it["origin sends, MB/s"] for it in rows] for title, rows in found.items()}
    assert sent.keys() == {"Sapwood, direct", "Sapwood, tree", "NATS, leaf nodes"}
    assert sent["Sapwood, direct"][1] > 10 * sent["Sapwood, direct"][0]
    # Two edges hang from the origin, whoever reads from theirs.
    assert 0 < sent["Sapwood, tree"][1] < 5 * sent["Sapwood, direct"][0]
    assert (tmp_path / "fanout.png").stat().st_size > 0
    assert processes_of(tmp_path) == []
