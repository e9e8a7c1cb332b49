"""Spark's classes in one file: what starts faster with it, and what does without."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sapwood.spark.classes import classes_file, reading
from sapwood.spark.session import find_java


@pytest.fixture(scope="module")
def prepared() -> Path:
    """Done by `make test` before all tests."""
    path = classes_file(find_java())
    if not path.exists():
        subprocess.run([sys.executable, "-m", "sapwood", "pipeline", "prepare"], check=True)
    return path


def test_a_session_maps_the_classes_that_were_prepared(prepared: Path, spark: SparkSession) -> None:
    machine = spark.sparkContext._jvm
    assert machine is not None
    pid = machine.java.lang.ProcessHandle.current().pid()
    assert str(prepared) in Path(f"/proc/{pid}/maps").read_text()


def test_a_file_of_something_else_is_done_without_and_without_a_word(
    prepared: Path, tmp_path: Path
) -> None:
    java = find_java()
    options = reading(java)
    assert str(prepared) in options
    path = tmp_path / "other.jsa"
    path.write_bytes(b"something else" * 1000)
    for found in (path, tmp_path / "missing.jsa"):
        words = options.replace(str(prepared), str(found)).split()
        ran = subprocess.run([java, *words, "-version"], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (0, "")
        assert "version" in ran.stderr
        assert "jsa" not in ran.stderr


def test_what_is_not_there_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = Path(shutil.which("java") or "java")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = classes_file(java)
    assert path.parent == tmp_path / "sapwood"
    assert reading(java) == ""
    path.parent.mkdir()
    path.touch()
    assert str(path) in reading(java)
    # Options are cut at spaces.
    spaced = tmp_path / "a b" / "sapwood"
    spaced.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(spaced.parent))
    classes_file(java).touch()
    assert reading(java) == ""
