"""What can happen to a node's files: a disk that is full, and bytes that change by themselves."""

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mounts")
BALLAST = "ballast"


class NoSmallDisk(Exception):
    """A tmpfs can't be mounted here."""


class SmallDisk:
    """A tmpfs of its own for one node's data; a file in it takes all the room that is left."""

    def __init__(self, place: Path, size_mib: int) -> None:
        self._place = place
        place.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(place)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            reason = " ".join(done.stderr.split())
            raise NoSmallDisk(
                f"a full disk is a small tmpfs: mounting it needs root or `unshare -rm` ({reason})"
            )

    def fill(self) -> None:
        path = self._place / BALLAST
        with path.open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            number = ballast.fileno()
            while True:  # by halves: the node takes its share meanwhile
                room = os.statvfs(self._place)
                size = max(room.f_bavail // 2, 1) * room.f_frsize
                os.posix_fallocate(number, os.fstat(number).st_size, size)

    @property
    def is_full(self) -> bool:
        return (self._place / BALLAST).exists()

    def free(self) -> None:
        (self._place / BALLAST).unlink(missing_ok=True)

    def close(self, *, keep: bool) -> None:
        """Unmount; what lay on it goes, or is copied to the place itself."""
        aside = self._place.with_name(self._place.name + ".kept")
        if keep:
            self.free()
            shutil.copytree(self._place, aside, dirs_exist_ok=True)
        unmount(self._place)
        if keep:
            shutil.rmtree(self._place, ignore_errors=True)
            aside.rename(self._place)


def unmount(place: Path) -> None:
    """Also if somebody still has a file open there: then it goes when that one does."""
    if subprocess.run(["umount", str(place)], capture_output=True).returncode:
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=True)


def sweep(directory: Path) -> None:
    """Unmount what a run that was killed has left below the directory."""
    if not MOUNTS.exists():
        return
    for row in MOUNTS.read_text().splitlines():
        place = Path(row.split()[1].encode().decode("unicode_escape"))
        if place.is_relative_to(directory.absolute()) and not _in_use(place):
            unmount(place)


def _in_use(place: Path) -> bool:
    """Whether another run, alive, has a node there: its lock is held."""
    from sapwood.node.lock import is_locked

    return is_locked(place / "lock")


class Flipped(NamedTuple):
    topic: str
    partition: int
    file: str
    position: int


def flip(node_directory: Path, chance: random.Random) -> Flipped | None:
    """Change one bit somewhere in the records of a partition; None if there are none."""
    segments = [path for path in sorted(node_directory.glob("logs/*/*.log")) if _written(path)]
    segments = [path for path in segments if not path.parent.name.startswith("__")]
    if not segments:
        return None
    path = chance.choice(segments)
    position = chance.randrange(_written(path))
    with path.open("r+b", buffering=0) as file:
        (byte,) = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([byte ^ 1 << chance.randrange(8)]), position)
    topic, _, partition = path.parent.name.partition(".")[0].rpartition("-")
    return Flipped(topic, int(partition), path.name, position)


def _written(path: Path) -> int:
    """Up to where there are records; behind them lies room that was allocated ahead, all zeros."""
    return len(path.read_bytes().rstrip(b"\0"))
