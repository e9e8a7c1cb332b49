from pathlib import Path

import pytest

from tests.faults import churn


@pytest.mark.timeout(600)
def test_groups_of_every_kind_process_everything_while_members_and_nodes_come_and_go(
    tmp_path: Path,
) -> None:
    outcome = churn.run(tmp_path, members=2, seconds=25, seed=20)
    assert outcome.is_clean, str(outcome)
    assert outcome.records > 200
    assert outcome.node_kills > 0
