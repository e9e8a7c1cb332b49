"""The measurement of groups, end to end, with Sapwood alone and few members."""

import json
from pathlib import Path

from tests.bench.test_bench import measure, processes_of


def test_a_few_groups_are_measured_and_nothing_is_left_running(tmp_path: Path) -> None:
    output = tmp_path / "groups.json"
    flags = ["--peers", "sapwood", "--quiet-s", "2", "--output", str(output)]
    flags += ["--groups", "5", "--members", "4", "--partitions", "8"]
    measure(tmp_path, "bench.groups", *flags)
    found = json.loads(output.read_text())["sapwood"]
    assert found["5 groups of one member"]["at rest: heartbeats/s"] > 0
    assert found["one group of 4 members, 8 partitions"]["coordinator killed, all go on, s"] > 0
    assert processes_of(tmp_path) == []
