"""A Spark cluster of its own on this machine: a master and workers out of the pyspark package."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from sapwood.spark.session import find_java, lean_home
from tests.helpers import eventually

DEADLINE_S = 300.0
# Small and quick to start: nothing here lives for long.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+:\d+)")


class Standalone:
    def __init__(self, folder: Path, *, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self) -> None:
        log = self._daemon("master.Master", "--host", "127.0.0.1", "--port", "0", name="master")
        (self.master,) = eventually(lambda: _ADDRESS.findall(log.read_text()), DEADLINE_S)
        for number in range(self._workers):
            self._daemon(
                *("worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(self._folder / f"work-{number}"), self.master),
                name=f"worker-{number}",
            )
        registered = "Registering worker"
        eventually(lambda: log.read_text().count(registered) == self._workers, DEADLINE_S)

    def executors(self) -> list[psutil.Process]:
        """Of whatever runs on it."""
        return [
            child
            for process in self._processes
            for child in psutil.Process(process.pid).children(recursive=True)
            if "CoarseGrainedExecutorBackend" in _command(child)
        ]

    def stop(self) -> None:
        for process in self._processes:
            root = psutil.Process(process.pid)
            for one in [*root.children(recursive=True), root]:
                try:
                    one.kill()
                except psutil.NoSuchProcess:
                    pass
            process.wait()

    def _daemon(self, main: str, *arguments: str, name: str) -> Path:
        home = lean_home(self._folder / "home")
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().parent.parent),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "PYSPARK_PYTHON": sys.executable,
        }
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [
                        *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"),
                        *("--webui-port", "0", *arguments),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                )
            )
        return log


@contextmanager
def standalone(folder: Path, *, workers: int) -> Iterator[Standalone]:
    folder.mkdir(parents=True, exist_ok=True)
    found = Standalone(folder, workers=workers)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def _command(process: psutil.Process) -> str:
    """Nothing if it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
