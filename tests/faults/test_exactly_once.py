from pathlib import Path

from tests.faults import exactly_once


def test_read_process_write_has_each_effect_once_while_workers_and_nodes_are_killed(
    tmp_path: Path,
) -> None:
    outcome = exactly_once.run(tmp_path, seconds=12, seed=3)
    assert outcome.complaints == [], str(outcome)
    assert outcome.records >= 600
