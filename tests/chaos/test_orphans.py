"""Short forms of `python -m chaos tree …`: servers of a tree die, and everybody gets everything."""

from pathlib import Path

from chaos.orphans import Storm, cases, six, storm


def silent(_: str) -> None:
    pass


def test_six_servers_die_one_by_one_and_subscribers_at_each_get_everything_once_and_in_order(
    tmp_path: Path,
) -> None:
    (found,) = six(tmp_path, silent, ["d then b"])
    assert found.is_clean, str(found)
    assert (found.kills, found.subscribers) == (3, 8)
    assert len(found.healing_ms) >= 3, "e and f moved, and c when the root died"


def test_a_server_and_its_backup_die_while_the_supervisor_stands_still(tmp_path: Path) -> None:
    (found,) = cases(tmp_path, silent, ["a server and its backup"], [True])
    assert found.is_clean, str(found)
    assert found.healing_ms


def test_a_short_storm_costs_nobody_anything(tmp_path: Path) -> None:
    options = Storm(seed=3, seconds=8, edges=4, subscribers=8, gateways=1, least_kills=3)
    (found,) = storm(options, tmp_path, silent)
    assert found.is_clean, str(found)
    assert found.kills >= 3
