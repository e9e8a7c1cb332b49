"""E9: stress with and without threads; random nodes stopped (SIGINT, SIGKILL) and started again."""

from pathlib import Path

import pytest

from chaos.run import Options, run
from chaos.stress import Options as StressOptions
from chaos.stress import stress


def test_e9_nodes_that_are_stopped_with_sigint_and_sigkill_and_started_again_lose_nothing(
    tmp_path: Path,
) -> None:
    faults = ("interrupt", "kill")
    found = run(Options(seed=4, nodes=3, seconds=12, faults=faults, root=tmp_path))
    assert found.is_clean, str(found)
    assert found.faults.keys() == set(faults)
    assert found.sends["ok"] > 100
    assert len(found.gaps) == sum(found.faults.values())


@pytest.mark.parametrize("threads", [0, 6])
def test_e9_stress_with_and_without_threads_loses_and_refuses_nothing(
    tmp_path: Path, threads: int
) -> None:
    found = stress(StressOptions(seed=3, nodes=3, seconds=5, threads=threads, root=tmp_path))
    assert found.is_clean, str(found)
    assert found.sends.keys() == {"ok"}
    assert found.records_read > found.sends["ok"]
