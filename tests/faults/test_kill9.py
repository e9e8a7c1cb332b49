import random
from pathlib import Path

from tests.faults import kill9


def test_after_thirty_kills_under_load_every_acknowledged_record_is_there_once_and_in_order(
    tmp_path: Path,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    outcome = kill9.run(tmp_path, kills=30, seed=seed, say=print)
    assert outcome.verdict.is_clean, str(outcome.verdict)
    assert outcome.acknowledged > 5000
