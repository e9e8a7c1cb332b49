"""A Spark session for pipelines: sized to this machine, or on a Spark cluster, and quiet."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.spark.classes import reading
from sapwood.spark.pipelines.words import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM_OPTIONS = "spark.driver.extraJavaOptions"
OLDEST_JAVA = 17
GET_JAVA = (
    "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at it"
)
# Where packages put a Java that isn't on the path.
_JAVA_PLACES = ("/usr/lib/jvm/*/bin/java", "/opt/homebrew/opt/openjdk*/bin/java")
_GIB = 2**30

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # Timestamps reach Python's writers in the session's zone.
    "spark.sql.session.timeZone": "UTC",
    # Checkpoints are written without a checksum file beside each: 90 ms less for a micro-batch. Not
    # so all files (`fs.file.impl`): RocksDB's are copied by code that takes only the other kind.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def build_session(
    name: str,
    folder: Path,
    *,
    master: str | None = None,
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """`folder` is for Spark's own files. Without a master, Spark runs on this machine."""
    check_spark()
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.parent.parent)
    is_local = master is None or master.startswith("local")
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local and python == sys.executable and "SPARK_HOME" not in os.environ:
        with contextlib.suppress(OSError):  # not everybody may make links everywhere
            os.environ["SPARK_HOME"] = str(lean_home(folder / "home"))
    chosen = {
        **_SETTINGS,
        "spark.app.name": name,
        # All cores; and a task that fails is tried again, as on a cluster.
        "spark.master": master or "local[*,4]",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.driver.memory"] = memory or f"{_quarter_of_memory_gib()}g"
        # What is shuffled on one machine needs no more tasks than that has cores.
        chosen["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    elif memory is not None:
        chosen["spark.executor.memory"] = memory
    chosen |= settings or {}
    chosen[JVM_OPTIONS] = f"{reading(java)} {chosen.get(JVM_OPTIONS, '')}".strip()

    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not is_local:
        session.sparkContext.addPyFile(str(pack(folder)))
    return session


def lean_home(folder: Path) -> Path:
    """Spark's own folder without a second copy of PySpark in it.

    Spark puts that in front of the path of every Python it starts. It is a zip file, so all of it
    is compiled anew each time: 1.6 s instead of 0.5 s until a worker is there, and on a busy
    machine more than the ten seconds that Spark waits for one.
    """
    import pyspark

    folder.mkdir(parents=True, exist_ok=True)
    for entry in Path(pyspark.__file__).resolve().parent.iterdir():
        link = folder / entry.name
        if entry.name in ("bin", "conf", "jars", "sbin") and not link.exists():
            link.unlink(missing_ok=True)  # of a Python that is gone
            link.symlink_to(entry)
    return folder


def check_spark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise PipelineFailed("Spark isn't installed: pip install 'sapwood[spark]'") from None


def find_java() -> Path:
    """The `java` that Spark is to run on."""
    if home := os.environ.get("JAVA_HOME"):
        candidates = [Path(home) / "bin" / "java"]
        where = f"JAVA_HOME={home}"
    else:
        found = shutil.which("java")
        candidates = [Path(found).resolve()] if found else []
        candidates += [path for place in _JAVA_PLACES for path in sorted(Path("/").glob(place[1:]))]
        where = "this machine"
    versions = []
    for candidate in candidates:
        version = _java_version(candidate)
        if version is not None and version >= OLDEST_JAVA:
            return candidate
        versions.append(version)
    old = next((version for version in versions if version is not None), None)
    has = f"Java {old}" if old is not None else "no Java"
    raise PipelineFailed(f"Spark needs Java {OLDEST_JAVA} or newer; {where} has {has}: {GET_JAVA}")


def _java_version(java: Path) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr)
    return int(found[1]) if found else None


def pack(folder: Path) -> Path:
    """This package as a zip file: Spark brings it to executors, which so run the same release."""
    package = Path(__file__).resolve().parent.parent
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sapwood.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for top in (package, package.with_name("pyspark_sapwood")):
            for file in sorted(top.rglob("*.py")):
                archive.write(file, file.relative_to(package.parent))
    return path


def _quarter_of_memory_gib() -> int:
    """Of this machine's, within reason: Python's workers and other pipelines need some, too."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2
    return max(1, min(8, physical // 4 // _GIB))
