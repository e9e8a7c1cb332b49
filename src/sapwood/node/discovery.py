"""The running nodes of this user on this host, so that a new one finds their cluster by itself.

Each node leaves a small file in a directory that nobody else can write to. An entry counts only
if it was written since this host's start and the node that it names still holds the lock on its
data: neither another user, nor another host that shares the directory, nor a process that got a
dead node's number is ever taken for a cluster.
"""

import contextlib
import getpass
import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sapwood.node.lock import holder, is_locked
from sapwood.node.ready import LOCK_NAME

VARIABLE = "SAPWOOD_RUNTIME_DIR"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class NotPrivate(Exception):
    """Others could write to the directory of running nodes."""


@dataclass(frozen=True, slots=True)
class Entry:
    cluster_id: str
    node_id: int
    address: str
    """Where other nodes reach it."""
    secret_file: str
    data_dir: str
    pid: int
    host: str

    @property
    def is_running(self) -> bool:
        lock = Path(self.data_dir) / LOCK_NAME
        return self.host == this_host() and holder(lock) == self.pid and is_locked(lock)


@dataclass(frozen=True, slots=True)
class LocalCluster:
    cluster_id: str
    entries: list[Entry]

    @property
    def addresses(self) -> list[str]:
        return [entry.address for entry in self.entries]

    def __str__(self) -> str:
        return f"{self.cluster_id} at {', '.join(self.addresses)}"


def runtime_directory() -> Path:
    """Where running nodes register; private to the user, and gone or stale after a restart."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    if given := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / "sapwood"
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()
    return Path(tempfile.gettempdir()) / f"sapwood-{user}"


def this_host() -> str:
    """This host since its last start."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {BOOT_ID.read_text().strip()}"
    return socket.gethostname()


def register(entry: Entry) -> Path:
    """Tell of a running node; the file to remove when it stops."""
    directory = runtime_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(directory)
    for path, other in _entries(directory):
        if other is None or not other.is_running:
            path.unlink(missing_ok=True)
    path = directory / f"{entry.pid}.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(entry)) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def running_clusters() -> list[LocalCluster]:
    """Every cluster of this user that has a running node on this host."""
    directory = runtime_directory()
    if not directory.is_dir():
        return []
    _check_private(directory)
    found: dict[str, list[Entry]] = {}
    for _, entry in _entries(directory):
        if entry is not None and entry.is_running:
            found.setdefault(entry.cluster_id, []).append(entry)
    return [LocalCluster(cluster_id, found[cluster_id]) for cluster_id in sorted(found)]


def _entries(directory: Path) -> Iterable[tuple[Path, Entry | None]]:
    for path in sorted(directory.glob("*.json")):
        entry = None
        with contextlib.suppress(OSError, ValueError, TypeError):
            entry = Entry(**json.loads(path.read_text(encoding="utf-8")))
        yield path, entry


def _check_private(directory: Path) -> None:
    """Somebody else's entry would name that somebody's secret, and we would join them."""
    if not hasattr(os, "getuid"):
        return  # elsewhere temporary files lie in the user's own profile
    found = directory.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPrivate(
            f"{directory} may be written to by others: remove it, "
            f"or name another directory with {VARIABLE}"
        )
