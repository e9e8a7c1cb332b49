"""The harness, end to end, with Sapwood alone and little to do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


def measure(directory: Path, module: str, *arguments: str) -> str:
    """What a benchmark prints; whatever it starts has the directory in its command line."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(output: Path, *flags: str) -> dict[tuple[str, int | None, bool], list[float]]:
    """The samples of every row, by metric, partitions and whether it is keyed."""
    always = ["--peers", "sapwood", "--quick", "--durability", "synced", "--output", str(output)]
    measure(output, "bench", *always, *flags)
    found: dict[str, Any] = json.loads((output / "results.json").read_text())
    assert found["errors"] == []
    assert (output / "results.png").exists()
    return {
        (row["metric"], row["partitions"], row["keyed"]): row["samples"]["sapwood"]
        for row in found["rows"]
    }


def processes_of(directory: Path) -> list[list[str]]:
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in part for part in process.info["cmdline"] or [])
    ]


def test_a_small_run_measures_every_row_and_leaves_nothing_running(tmp_path: Path) -> None:
    flags = ["--nodes", "1", "--scale", "2000", "--sizes", "100", "--partitions", "2"]
    rows = run(tmp_path, *flags, "--rows", "produce,consume,produce_cpu,memory,start")
    assert set(rows) == {
        ("produce", 2, False),
        ("produce", 2, True),
        ("consume", 2, False),
        ("produce_cpu", 2, False),
        ("produce_cpu", 2, True),
        ("memory", None, False),
        ("start", None, False),
    }
    assert all(len(samples) == 1 and samples[0] >= 0 for samples in rows.values())
    assert processes_of(tmp_path) == []


def test_three_nodes_lose_a_leader_get_it_back_and_are_gone_afterwards(tmp_path: Path) -> None:
    flags = ["--nodes", "3", "--scale", "1000", "--kills", "1"]
    rows = run(tmp_path, *flags, "--rows", "failover,memory")
    assert {metric: len(samples) for (metric, *_), samples in rows.items()} == {
        "failover": 1,
        "memory": 1,
    }
    assert processes_of(tmp_path) == []
