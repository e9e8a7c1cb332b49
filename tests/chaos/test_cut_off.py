"""The short form of `python -m chaos cut-off`."""

from pathlib import Path

from chaos.cut_off import Options, cut_off


def test_clients_of_an_edge_that_is_cut_off_and_killed_lose_nothing_and_double_nothing(
    tmp_path: Path,
) -> None:
    found = cut_off(Options(seconds=3, kill=True), tmp_path)
    assert found.is_clean, str(found)
    assert found.queued_at_most > 0
