"""Spark's classes in one file, laid out as a Java virtual machine has them in memory.

Spark loads 15,000 classes out of 300 jar files before it does anything. With the file that
`sapwood pipeline prepare` writes, a virtual machine maps them instead, and Spark starts in about
half the time. The machine itself checks that a file is of its own release and of these jars,
and does without one that is not.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

# What is wrong with such a file is no concern of the program whose output this would be in.
_QUIETLY = "-Xlog:disable -Xlog:all=error:stderr"


def classes_file(java: Path) -> Path:
    """Where it is, if there is one: of this `java` with this PySpark."""
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    key = hashlib.sha256(f"{java.resolve()}\n{package}".encode()).hexdigest()[:16]
    return _folder() / f"spark-{pyspark.__version__}-{key}.jsa"


def _folder() -> Path:
    """It goes when the virtual environment goes whose Spark it is of."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "share" / "sapwood"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sapwood"


def reading(java: Path) -> str:
    """The options of a virtual machine that takes the classes from the file; none without one."""
    path = classes_file(java)
    # Its options are one text, cut at spaces.
    return (
        f"-XX:SharedArchiveFile={path} {_QUIETLY}" if path.exists() and " " not in str(path) else ""
    )


def writing(path: Path) -> str:
    """The options of one that writes what it has loaded when it ends."""
    return f"-XX:ArchiveClassesAtExit={path} {_QUIETLY}"
