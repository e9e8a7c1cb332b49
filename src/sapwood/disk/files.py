"""Small files that are replaced as a whole."""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from sapwood.disk.seam import Buffer, Disk, SyncFailed

_SUFFIX = ".tmp"


def unfinished(name: str) -> bool:
    """Whether this is a file that a crash kept from replacing another one."""
    return name.endswith(_SUFFIX)


def replace(disk: Disk, path: str, buffers: Sequence[Buffer], *, durable: bool = True) -> None:
    """Put new content under `path`: after a crash there is the old file or the new one.

    SyncFailed: it can't be said which of them. Without `durable` a crash may also leave a file that
    a checksum has to reject: enough for what can be computed anew.
    """
    temporary = path + _SUFFIX
    disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.pwrite(buffers, 0)
        if durable:
            file.sync()
    except OSError:
        file.close()
        disk.remove(temporary)
        raise
    file.close()
    disk.rename(temporary, path)
    if durable:
        try:
            disk.sync_dir(os.path.dirname(path))
        except OSError as error:
            # Which of the two a crash would leave is unknown, so neither may be written to.
            raise SyncFailed(error.errno, f"its new name can't be synced: {error}", path) from error
