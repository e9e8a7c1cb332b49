"""What lies in a run's directory: what was asked for, how it is going, and what Spark had to say.

    <data directory>/pipelines/<name>/run.json       the request
                                      status.json    how it is going, replaced as a whole
                                      driver.lock    held by the process that runs it
                                      driver.log     Spark's own words
                                      checkpoints/   one folder per query

The process that runs the pipeline writes the status; everybody else reads it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from sapwood.spark.pipelines.words import PipelineFailed, Run

LOCK_NAME = "driver.lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All that the process that runs a pipeline has to know."""

    version: int = 1
    name: str
    pipeline: str  # the name of a ready-made one, or the path of a file or folder
    bootstrap: str = ""
    options: dict[str, Any] = {}
    once: bool = True
    master: str | None = None
    remote: str | None = None
    memory: str | None = None
    checkpoints: str | None = None
    spark: dict[str, str] = {}  # Spark's own settings


class QueryProgress(msgspec.Struct, kw_only=True):
    """What a streaming query has said of itself last."""

    query: str
    batch: int = 0
    rows: int = 0  # since the process started
    rows_per_s: float = 0.0
    lag: int | None = None  # records that are there and were not read yet
    batch_ms: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    at_ms: int = 0


class Status(msgspec.Struct, kw_only=True):
    name: str
    pipeline: str
    state: str = "starting"
    """starting, running; finished, stopped or failed; killed if it ended without a word"""
    pid: int | None = None
    once: bool = True
    started_ms: int = 0
    error: str | None = None
    queries: list[QueryProgress] = []
    tasks: int = 0
    tasks_done: int = 0
    """Of what Spark works on now, if it isn't a stream."""


class RunFolder:
    """The directory of all runs under one name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def lock(self) -> Path:
        return self.path / LOCK_NAME

    @property
    def log(self) -> Path:
        return self.path / "driver.log"

    def save_request(self, request: Request) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        _replace(self.path / "run.json", msgspec.json.format(msgspec.json.encode(request)))

    def request(self) -> Request:
        path = self.path / "run.json"
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Request)
        except FileNotFoundError:
            raise PipelineFailed(f"nothing was ever run in {self.path}") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise PipelineFailed(f"{path} is damaged ({error}): run the pipeline anew") from error
        if found.version != 1:
            raise PipelineFailed(f"{path} has version {found.version}: use a newer release")
        return found

    def run(self, request: Request) -> Run:
        return Run(
            name=request.name,
            pipeline=request.pipeline,
            bootstrap=request.bootstrap,
            directory=self.path,
            options=request.options,
            once=request.once,
            checkpoints=request.checkpoints,
        )

    def save_status(self, status: Status) -> None:
        _replace(self.path / "status.json", msgspec.json.encode(status))

    def forget_status(self) -> None:
        (self.path / "status.json").unlink(missing_ok=True)

    def status(self) -> Status | None:
        """As written last; whether its process still lives, the lock tells."""
        try:
            return msgspec.json.decode((self.path / "status.json").read_bytes(), type=Status)
        except (OSError, msgspec.MsgspecError):
            return None


def run_folder(directory: Path, name: str) -> RunFolder:
    """Of the run of this name under a data directory."""
    if not _NAME.fullmatch(name):
        raise PipelineFailed(
            f"{name!r} can't be the name of a run: letters, digits, dots, - and _ make one",
            status=2,
        )
    return RunFolder(directory / "pipelines" / name)


def run_folders(directory: Path) -> list[RunFolder]:
    """All that were ever run."""
    return [RunFolder(path.parent) for path in sorted(directory.glob("pipelines/*/run.json"))]


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    os.replace(temporary, path)
