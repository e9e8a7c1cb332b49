"""A Spark cluster of its own on this machine: a master and workers out of the pyspark package.

And a server of Spark Connect, as somebody else would have started it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from chaos import brief_spark
from sapwood.spark.classes import reading
from sapwood.spark.session import find_java, lean_home
from tests.helpers import eventually

DEADLINE_S = 300.0
# Small and quick to start: nothing here lives for long.
JVM = f"{brief_spark.JVM} {reading(find_java())}"
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+:\d+)")
_CONNECT_PORT = re.compile(r"Spark Connect server started at: \S+:(\d+)")


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
            _kill(process)

    def _daemon(self, main: str, *arguments: str, name: str) -> Path:
        home = lean_home(self._folder / "home")
        environment = _environment(home)
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


@contextmanager
def connect_server(folder: Path, **settings: str) -> Iterator[str]:
    """A server of Spark Connect that knows of no cluster of Sapwood's: sc://host:port."""
    folder.mkdir(parents=True, exist_ok=True)
    home = lean_home(folder / "home")
    places = {"SPARK_LOG_DIR": str(folder), "SPARK_PID_DIR": str(folder)}
    memory = {"SPARK_DAEMON_MEMORY": brief_spark.MEMORY}
    environment = {**_environment(home), **places, **memory}
    environment.pop("SAPWOOD_BOOTSTRAP", None)
    chosen = {
        **brief_spark.SETTINGS,
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM,
        "spark.ui.enabled": "false",
        "spark.log.level": "INFO",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **settings,
    }
    flags = [flag for key, value in chosen.items() for flag in ("--conf", f"{key}={value}")]
    command = [str(home / "sbin" / "start-connect-server.sh"), "--wait", *flags]
    log = folder / "connect.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
        )
    try:
        found = eventually(
            lambda: _CONNECT_PORT.search(log.read_text()) or process.poll() is not None, DEADLINE_S
        )
        assert isinstance(found, re.Match), log.read_text()
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        _kill(process)


def _environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(find_java().parent.parent),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JVM,
        "PYSPARK_PYTHON": sys.executable,
    }


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """With all that it has started."""
    root = psutil.Process(process.pid)
    for one in [*root.children(recursive=True), root]:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            pass
    process.wait()


def _command(process: psutil.Process) -> str:
    """Nothing if it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
