"""kafka-python's integration suite: fetched, completed, run, and its results read."""

import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

EXPECTATIONS = Path(__file__).with_name("kafka_python.toml")
TEST_TIMEOUT_S = 60

# What the source distribution leaves out of the package `test`. Its tests only ever ask it to
# stand for a broker that somebody else runs.
SERVICE = """\
class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    stop = close = dump_logs = open


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("this suite runs against a broker that is already there")
"""


class SuiteFailed(Exception):
    """The suite couldn't be fetched or run at all; the text says why."""


@dataclass(frozen=True)
class Expectations:
    """`kafka_version` is what kafka-python takes the broker for; `unmet` is test → its need."""

    kafka_version: str
    files: tuple[str, ...]
    unmet: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    test: str
    result: str  # passed, failed or skipped
    message: str
    seconds: float
    again: bool = False
    """Whether it is the second try's, since the first one failed."""


def expectations() -> Expectations:
    table = tomllib.loads(EXPECTATIONS.read_text(encoding="utf-8"))
    unmet = {test: need for need, tests in table["needs"].items() for test in tests}
    return Expectations(table["kafka_version"], tuple(table["files"]), unmet)


def cache_directory() -> Path:
    """Where what others wrote is kept: outside the project's tree."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sapwood" / "compat"


def fetch() -> Path:
    """The suite's root directory, in the cache; of the version that this environment has."""
    wanted = version("kafka-python")
    cache = cache_directory()
    root = cache / f"kafka_python-{wanted}"
    if not root.exists():
        cache.mkdir(parents=True, exist_ok=True)
        archive = cache / f"{root.name}.tar.gz"
        if not archive.exists():
            _download(f"kafka-python=={wanted}", cache)
        arriving = cache / "arriving"
        with tarfile.open(archive) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
            packed.extractall(arriving)
        (arriving / root.name).rename(root)
    if not (root / "test" / "integration").is_dir():
        raise SuiteFailed(
            f"the source distribution of kafka-python {wanted} has no test/integration"
        )
    for path, text in (("__init__.py", ""), ("service.py", SERVICE)):
        if not (root / "test" / path).exists():
            (root / "test" / path).write_text(text, encoding="utf-8")
    return root


def _download(requirement: str, directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", ":all:", "--dest", str(directory), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SuiteFailed(
            f"pip couldn't download the source of {requirement}: {done.stderr.strip()}"
        )


def run(root: Path, bootstrap: str, expected: Expectations, only: str | None) -> list[Outcome]:
    """Every test; those that failed against the table once more.

    The second time is for kafka-python: it can forget a subscription that is made at the moment
    when its first metadata arrives, and then waits for messages of no topic at all.
    """
    tests = [f"test/integration/{name}" for name in expected.files]
    outcomes = _run(root, bootstrap, expected, [*tests, *(["-k", only] if only else [])])
    again = [it for it in outcomes if it.result == "failed" and it.test not in expected.unmet]
    if not again:
        return outcomes
    for it in again:
        print(f"failed, and is tried once more: {it.test}: {it.message}", flush=True)
    tests = ["test/integration/" + it.test.replace("::", ".py::", 1) for it in again]
    second = {it.test: it for it in _run(root, bootstrap, expected, tests)}
    return [replace(second.get(it.test, it), again=it in again) for it in outcomes]


def _run(root: Path, bootstrap: str, expected: Expectations, tests: list[str]) -> list[Outcome]:
    report = root / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:sapwood"]
    command += ["-o", "addopts=", "-o", "log_level=CRITICAL", "--tb=short", "--no-header"]
    # By a signal: the other method ends the whole run with the first test that hangs.
    command += [f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=signal", f"--junitxml={report}"]
    command += tests
    environment = {
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": expected.kafka_version,
        "KAFKA_ROOT": str(root),  # asked for, never used with a broker that is already there
    }
    subprocess.run(command, cwd=root, env={**os.environ, **environment}, check=False)
    if not report.exists():
        raise SuiteFailed("the suite ended without a report")
    return [_outcome(case) for case in ElementTree.parse(report).iter("testcase")]


def _outcome(case: ElementTree.Element) -> Outcome:
    file = case.get("classname", "").rpartition(".")[2]
    result, message = "passed", ""
    for kind, name in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(kind)) is not None:
            result, message = name, (found.get("message") or "").splitlines()[0]
            break
    return Outcome(f"{file}::{case.get('name')}", result, message, float(case.get("time", 0)))
