"""The measurement of groups, end to end, with Sapwood alone and few members."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.test_bench import ROOT, processes_of


def test_a_few_groups_are_measured_and_nothing_is_left_running(tmp_path: Path) -> None:
    output = tmp_path / "groups.json"
    command = [sys.executable, "-m", "bench.groups", "--peers", "sapwood", "--quiet-s", "2"]
    command += ["--groups", "5", "--members", "4", "--partitions", "8", "--output", str(output)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # so that its processes can be told apart
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text())["sapwood"]
    assert found["5 groups of one member"]["at rest: heartbeats/s"] > 0
    assert found["one group of 4 members, 8 partitions"]["coordinator killed, all go on, s"] > 0
    assert processes_of(tmp_path) == []
