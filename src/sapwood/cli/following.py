"""A pipeline's run as its user sees it: progress while it works, and one line if it fails."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sapwood.cli import CommandFailed
from sapwood.cli.output import say
from sapwood.node.lock import holder, is_locked
from sapwood.node.process import ChildProcess
from sapwood.spark.pipelines.state import QueryProgress, Request, RunFolder, Status

POLL_S = 0.1


def driver_command(folder: RunFolder) -> list[str]:
    return [sys.executable, "-P", "-m", "sapwood.cli.driver", str(folder.path)]


def follow(folder: RunFolder, request: Request, *, quiet: bool) -> int:
    """Run it to its end; the exit status."""
    if is_locked(folder.lock):
        raise CommandFailed(
            f"{request.name} is already running (process {holder(folder.lock)}): "
            f"sapwood pipeline stop {request.name} stops it, --name gives this run another name"
        )
    folder.save_request(request)
    folder.forget_status()
    started = time.monotonic()
    with folder.log.open("wb") as log:
        process = ChildProcess(driver_command(folder), None, log)
    try:
        with progress_on_screen(request, quiet) as screen:
            while process.returncode is None:
                _wait(process)
                if (status := folder.status()) is not None:
                    screen.show(status)
    except KeyboardInterrupt:
        say("stopping …")
        process.stop()
    exit_status = process.wait()
    status = folder.status()
    if status is None or status.state in ("starting", "running"):
        raise CommandFailed(
            f"{request.name} ended without a word ({exit_status}): see {folder.log}"
        )
    if status.error is not None:
        CommandFailed(f"{status.error} (Spark's log: {folder.log})").show()
        return exit_status or 1
    rows = sum(query.rows for query in status.queries)
    if not quiet:
        took_s = time.monotonic() - started
        count = f", {rows:,} rows" if status.queries else ""
        say(f"{request.name} {status.state}{count} in {took_s:.1f} s")
    return exit_status


def _wait(process: ChildProcess) -> None:
    import subprocess

    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        pass


class _Shown(Protocol):
    def show(self, status: Status) -> None: ...


class _Silence:
    def show(self, status: Status) -> None:
        pass


class _Bars:
    """A bar per query: rows, rate and, if it has an end, the time left. Else the tasks of a job."""

    def __init__(self, progress: Any, name: str) -> None:
        self._progress = progress
        self._name = name
        self._tasks: dict[str, Any] = {}
        self._update(name, f"{name}: starting Spark", 0, None, "")

    def show(self, status: Status) -> None:
        if status.queries:
            self._progress.update(self._tasks[self._name], visible=False)
        elif status.state != "starting":
            count = f"{status.tasks_done}/{status.tasks} tasks" if status.tasks else ""
            label = f"{self._name}: {status.state}"
            self._update(self._name, label, status.tasks_done, status.tasks or None, count)
        for query in status.queries:
            label = self._name if query.query == self._name else f"{self._name}: {query.query}"
            total = query.rows + query.lag if status.once and query.lag is not None else None
            self._update(f"query {query.query}", label, query.rows, total, _count(query, total))

    def _update(self, key: str, label: str, done: int, total: int | None, count: str) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(label, total=None, count="")
        self._progress.update(
            self._tasks[key], description=label, completed=done, total=total, count=count
        )


def _count(query: QueryProgress, total: int | None) -> str:
    of = "" if total is None else f"/{total:,}"
    behind = "" if total is not None or query.lag is None else f", {query.lag:,} behind"
    return f"{query.rows:,}{of} rows, {query.rows_per_s:,.0f}/s{behind}"


@contextmanager
def progress_on_screen(request: Request, quiet: bool) -> Iterator[_Shown]:
    if quiet or not sys.stderr.isatty():
        yield _Silence()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        yield _Bars(progress, request.name)
