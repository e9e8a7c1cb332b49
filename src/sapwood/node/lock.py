"""A lock on a directory that lasts as long as the process that took it, however it ends."""

import os
import sys
import time
from pathlib import Path

# Whoever asks whether a directory is in use holds its lock for a moment.
PATIENCE_S = 0.3
RETRY_S = 0.01


class DirectoryLocked(Exception):
    """Another process uses the directory."""

    def __init__(self, path: Path, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{path.parent} is in use by {who}")
        self.pid = pid


if sys.platform == "win32":
    import msvcrt

    # Locked bytes can't be read there, so the lock lies beyond the text with the process id.
    _LOCKED_BYTE = 1 << 20

    def _take(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class DirectoryLock:
    """Holds `path` locked from its making to `release`; the file names the holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                _take(self._descriptor)
                break
            except OSError:
                os.close(self._descriptor)
                if time.monotonic() > deadline:
                    raise DirectoryLocked(path, holder(path)) from None
            time.sleep(RETRY_S)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())

    def release(self) -> None:
        """The file stays: were it removed, two processes could hold locks on two files."""
        os.close(self._descriptor)


def holder(path: Path) -> int | None:
    """The process id that the lock's file names."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock now."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        _take(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
