from pathlib import Path

from tests.faults import big
from tests.helpers import MIB


def test_a_large_log_costs_little_memory_and_a_restart_does_not_read_it_again(
    tmp_path: Path,
) -> None:
    figures = big.run(tmp_path, 2**30)
    assert figures.last_value_is_there
    assert figures.most_memory_bytes < big.MOST_MEMORY_MIB * MIB
    assert figures.memory_after_restart_bytes < big.MOST_MEMORY_MIB * MIB
    assert figures.restart_read_bytes < 200 * MIB
