"""How runs of pipelines are: those of this machine from their folders, all from their topic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.cli.output import table_of
from sapwood.node.lock import is_locked
from sapwood.spark.pipelines.state import RunFolder, Status, run_folders

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = (
    "RUN", "PIPELINE", "STATE", "QUERY", "ROWS", "ROWS/S", "BEHIND", "BATCH", "STATE ROWS", "PID",
)  # fmt: skip
STYLES = {"running": "green", "starting": "yellow", "failed": "red", "killed": "red"}


def local_runs(directory: Path) -> list[dict[str, Any]]:
    """As JSON has them."""
    return plain([seen for folder in run_folders(directory) if (seen := look_at(folder))])


def is_noteworthy(run: dict[str, Any]) -> bool:
    """To who asks after the cluster: those that run, and standing ones that should and don't."""
    return run["state"] in ("starting", "running") or (
        run["state"] in ("failed", "killed") and not run["once"]
    )


def look_at(folder: RunFolder) -> Status | None:
    """What the run has said last, unless it died before it could say that it ends."""
    status = folder.status()
    if status is None:
        return None
    if status.state in ("starting", "running") and not is_locked(folder.lock):
        # It may have ended since its status was read: then the folder knows better by now.
        status = folder.status() or status
        if status.state in ("starting", "running"):
            status.state = "killed"
    if status.state not in ("starting", "running"):
        status.pid = None
    return status


def plain(found: Sequence[Status]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(status) for status in found]


def drawn(runs: Sequence[dict[str, Any]]) -> Table:
    from rich.text import Text

    rows: list[tuple[object, ...]] = []
    for run in runs:
        state = Text(run["state"], style=STYLES.get(run["state"], ""))
        head = (run["name"], run["pipeline"], state)
        for query in run["queries"] or [{}]:
            rate = query.get("rows_per_s")
            rows.append(
                (
                    *head,
                    query.get("query"),
                    query.get("rows"),
                    None if rate is None else f"{rate:,.0f}",
                    query.get("lag"),
                    f"{query['batch_ms']} ms" if "batch_ms" in query else None,
                    query.get("state_rows"),
                    run["pid"],
                )
            )
    return table_of(HEADINGS, rows)
