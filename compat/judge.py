"""Kafka's own Java clients and tools: fetched, run, and what they saw held against Kafka."""

import csv
import fnmatch
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers import PeerFailed
from bench.peers.kafka import VERSION, fetch_jars
from compat.suite import SuiteFailed, cache_directory

SOURCES = Path(__file__).with_name("java")
RECORDED = SOURCES / "kafka.tsv"
DEVIATIONS = SOURCES / "deviations.toml"
ARTIFACTS = ("kafka_2.13", "kafka-tools")
JUDGE_TIMEOUT_S = 600
TOOL_TIMEOUT_S = 60
_LEADER_EPOCH = re.compile(r"Optional\[\d+\]")

# Small and quick to start: many of these run for a second or two.
JVM = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


@dataclass(frozen=True)
class Observation:
    group: str
    item: str
    value: str

    @property
    def name(self) -> str:
        return f"{self.group}: {self.item}"

    @property
    def meaning(self) -> str:
        """The value, whatever the number of the leader's epoch: it counts elections."""
        return _LEADER_EPOCH.sub("an epoch", self.value)


def jars() -> Path:
    try:
        return fetch_jars(cache_directory() / f"kafka-{VERSION}", ARTIFACTS)
    except PeerFailed as error:
        raise SuiteFailed(str(error)) from error


def observe(libraries: Path, bootstrap: str) -> list[Observation]:
    """Compile our program against Kafka's clients, run it, and read what it saw."""
    with tempfile.TemporaryDirectory(prefix="sapwood-compat-") as classes:
        sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
        compiler = ["javac", "-cp", f"{libraries}/*", "-d", classes, *sources]
        done = subprocess.run(compiler, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SuiteFailed(f"javac refused the program: {done.stderr.strip()[-2000:]}")
        done = run(
            ["-cp", f"{classes}:{libraries}/*", "Judge", bootstrap], timeout_s=JUDGE_TIMEOUT_S
        )
    if done.returncode:
        raise SuiteFailed(f"the program ended early: {done.stderr.strip()[-2000:]}")
    return _read(done.stdout)


def run(
    arguments: Sequence[str], stdin: str = "", timeout_s: float = TOOL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """A Java program, with what it printed; 124 stands for one that had to be ended."""
    try:
        return subprocess.run(
            [*JVM, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = [
            text.decode() if isinstance(text, bytes) else text or ""
            for text in (error.stdout, error.stderr)
        ]
        return subprocess.CompletedProcess(arguments, 124, said[0], f"{said[1]}\ntimed out")


def recorded() -> list[Observation]:
    """What Apache Kafka showed the same program."""
    return _read(RECORDED.read_text(encoding="utf-8"))


def record(observations: Sequence[Observation]) -> None:
    lines = [f"{it.group}\t{it.item}\t{it.value}\n" for it in observations]
    RECORDED.write_text("".join(lines), encoding="utf-8")


def deviations() -> dict[str, str]:
    """Pattern of an observation's name → why it is not as with Kafka."""
    table = tomllib.loads(DEVIATIONS.read_text(encoding="utf-8"))
    return {
        pattern: reason for reason, patterns in table["because"].items() for pattern in patterns
    }


def reason_for(observation: Observation, known: dict[str, str]) -> str | None:
    for pattern, reason in known.items():
        if fnmatch.fnmatchcase(observation.name, pattern):
            return reason
    return None


def _read(text: str) -> list[Observation]:
    rows = csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [Observation(*row) for row in rows]
