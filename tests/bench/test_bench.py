"""The harness, end to end, with Sapwood alone and little to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def test_a_small_run_measures_every_row_and_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--peers", "sapwood", "--quick", "--scale", "2000"]
    command += ["--sizes", "100", "--partitions", "2", "--durability", "synced"]
    command += ["--output", str(tmp_path), "--rows", "produce,consume,produce_cpu,memory,start"]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # so that its processes can be told apart
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr

    found = json.loads((tmp_path / "results.json").read_text())
    assert found["errors"] == []
    rows = {
        (row["metric"], row["partitions"], row["keyed"]): row["samples"]["sapwood"]
        for row in found["rows"]
    }
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
    assert (tmp_path / "results.png").exists()
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if any(str(tmp_path) in part for part in process.info["cmdline"] or [])
    ]
    assert left == []
