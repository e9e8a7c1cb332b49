"""The lock on a directory: one holder, gone with its process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sapwood.node.lock import DirectoryLock, DirectoryLocked, holder, is_locked

HOLD = """
import sys
from pathlib import Path
from sapwood.node.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_directory_has_one_holder_who_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = DirectoryLock(path)
    with pytest.raises(
        DirectoryLocked, match=f"{tmp_path.name} is in use by process {os.getpid()}"
    ):
        DirectoryLock(path)
    assert is_locked(path)
    lock.release()
    assert not is_locked(path)
    DirectoryLock(path).release()


def test_a_lock_that_was_never_taken_is_free(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    assert holder(tmp_path / "lock") is None


def test_a_lock_ends_with_the_process_that_held_it_even_if_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_locked(path)
        assert holder(path) == process.pid
        process.kill()
        process.wait()
    assert not is_locked(path)
    DirectoryLock(path).release()
