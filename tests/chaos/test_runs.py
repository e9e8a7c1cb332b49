"""Short forms of what `make chaos` does for longer: real nodes, real clients, real faults."""

from pathlib import Path

from chaos.disk import MOUNTS
from chaos.history import History
from chaos.report import Report, report
from chaos.run import Options, run
from chaos.stress import Options as StressOptions
from chaos.stress import stress


def told_again(found: Report) -> Report:
    return report(History.load(Path(found.directory)))


def test_a_cluster_that_is_paused_cut_apart_slowed_down_and_without_power_loses_nothing(
    tmp_path: Path,
) -> None:
    faults = ("pause", "cut", "slow", "power", "clients")
    found = run(Options(seed=1, nodes=3, seconds=12, faults=faults, root=tmp_path))
    assert found.is_clean, str(found)
    assert sum(found.faults.values()) >= 2


def test_a_node_whose_data_is_gone_or_damaged_is_filled_again_by_the_others(tmp_path: Path) -> None:
    found = run(Options(seed=1, nodes=3, seconds=10, faults=("wipe", "flip"), root=tmp_path))
    assert found.is_clean, str(found)
    assert sum(found.faults.values()) >= 1


def test_a_lone_node_that_is_terminated_and_killed_loses_nothing(tmp_path: Path) -> None:
    found = run(Options(seed=2, seconds=8, faults=("terminate", "kill"), root=tmp_path))
    assert found.is_clean, str(found)
    assert sum(found.faults.values()) >= 1


def test_a_full_disk_costs_nothing_that_was_acknowledged_and_is_unmounted_afterwards(
    tmp_path: Path,
) -> None:
    found = run(Options(seed=1, seconds=12, faults=("fill", "kill"), root=tmp_path))
    assert found.is_clean, str(found)
    assert found.faults["fill"] >= 1
    assert found.refused["KAFKA_STORAGE_ERROR"] > 0
    assert str(tmp_path) not in MOUNTS.read_text()


def test_a_byte_that_changed_on_disk_is_noticed_and_its_partition_refused(tmp_path: Path) -> None:
    found = run(Options(seed=5, seconds=6, faults=("flip",), root=tmp_path))
    assert found.is_clean, str(found)
    history = History.load(Path(found.directory))
    damaged = {(it.about["topic"], it.about["partition"]) for it in history.faults}
    assert {(it.topic, it.partition) for it in history.offline} == damaged != set()


def test_a_recorded_run_is_judged_the_same_again(tmp_path: Path) -> None:
    found = stress(StressOptions(seed=1, seconds=1, root=tmp_path))
    again = told_again(found)
    assert (again.sends, again.problems) == (found.sends, found.problems)
    written = (Path(found.directory) / "report.txt").read_text()
    assert written == f"{found}\n"
