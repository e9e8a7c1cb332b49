"""`sapwood pipeline run` as people meet it, and as it is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from chaos import brief_spark
from sapwood.node.lock import holder, is_locked
from sapwood.spark.pipelines.state import RunFolder, Status, run_folder
from tests.helpers import eventually

# Spark starts a JVM and a Python for every step: on a busy machine that takes its time.
DEADLINE_S = 400.0


class Ended(NamedTuple):
    status: int
    out: str
    err: str


class Running:
    """A run in the background. It is a process of its own, and so is the driver below it."""

    def __init__(self, *arguments: str, directory: Path, bootstrap: str = "") -> None:
        target, *options = arguments
        command = [sys.executable, "-m", "sapwood", "pipeline", "run", target]
        command += ["--dir", str(directory), *brief_spark.OPTIONS, *options]
        self._directory = directory
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SAPWOOD_BOOTSTRAP": bootstrap, "NO_COLOR": "1"},
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def folder(self, name: str) -> RunFolder:
        return run_folder(self._directory, name)

    def status(self, name: str) -> Status | None:
        return self.folder(name).status()

    def rows(self, name: str) -> int:
        """That its queries say they have read."""
        status = self.status(name)
        return sum(query.rows for query in status.queries) if status else 0

    def reach(self, name: str, rows: int) -> None:
        """Wait until it has read so many; a run that ends before that has failed."""
        eventually(lambda: self.rows(name) >= rows or self._popen.poll() is not None, DEADLINE_S)
        assert self.rows(name) >= rows, self.end()

    def kill_driver(self, name: str) -> None:
        """SIGKILL, as the kernel does it to whoever takes too much memory."""
        pid = eventually(lambda: holder(self.folder(name).lock) or 0, DEADLINE_S)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_locked(self.folder(name).lock), DEADLINE_S)

    def end(self) -> Ended:
        out, err = self._popen.communicate(timeout=DEADLINE_S)
        return Ended(self._popen.returncode, out, err)


@contextmanager
def running(*arguments: str, directory: Path, bootstrap: str = "") -> Iterator[Running]:
    found = Running(*arguments, directory=directory, bootstrap=bootstrap)
    try:
        yield found
    finally:
        if found._popen.poll() is None:
            found._popen.terminate()
            found._popen.communicate(timeout=DEADLINE_S)


def ran(*arguments: str, directory: Path, bootstrap: str = "", fails: int = 0) -> Ended:
    """To its end, which is as expected."""
    ended = Running(*arguments, directory=directory, bootstrap=bootstrap).end()
    assert ended.status == fails, ended
    assert "Traceback" not in ended.err
    return ended


def refused(*arguments: str, directory: Path, bootstrap: str = "", fails: int = 1) -> str:
    """The one line with which it failed."""
    ended = ran(*arguments, directory=directory, bootstrap=bootstrap, fails=fails)
    assert ended.out == ""
    (line,) = ended.err.strip().splitlines()
    assert line.startswith("error: ")
    return line
