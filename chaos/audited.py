"""A second judge, who shares no code with the first: `sapwood pipeline run audit` on Spark.

The first one goes by what clients saw. This one goes by the log itself, with the history as the
producers' receipts and the readers' deliveries.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from chaos.brief_spark import OPTIONS
from chaos.checkers import Problem
from chaos.history import FILE_NAME

CLEAN, FINDINGS = 0, 1
TIMEOUT_S = 600.0


def audited(directory: Path, bootstrap: str, topics: Iterable[str]) -> list[Problem]:
    """What the audit of a run's topics finds; that it could tell nothing is a problem, too."""
    output = directory / "audit"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sapwood", "pipeline", "run", "audit", "--quiet"),
            *("--topics", ",".join(topics), "--numbering", "history"),
            *("--receipts", str(directory / FILE_NAME), "--output", str(output)),
            *("--bootstrap", bootstrap, "--dir", str(output), *OPTIONS),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode == CLEAN:
        return []
    if done.returncode == FINDINGS:
        return [Problem("audit", "the log", line.strip()) for line in done.stdout.splitlines()]
    return [Problem("audit", "the log", f"there is no telling: {done.stderr.strip()[-500:]}")]
