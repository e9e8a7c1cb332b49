"""Nodes of one test are not to be found by those of another."""

from pathlib import Path

import pytest

from sapwood.node import discovery


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "runtime"
    monkeypatch.setenv(discovery.VARIABLE, str(path))
    return path
