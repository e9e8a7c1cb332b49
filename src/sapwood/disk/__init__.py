"""The only place that touches files.

In come reads, writes, renames and requests to make a file durable; out come bytes and futures.
Everything above talks to the `Disk` and `File` protocols, so that a simulated disk can stand in.

What always holds: a write is whole or raises; `Disk.sync` resolves only after the file's content
and its name would survive a power cut; one sync serves everybody who asked before it began; a
file whose sync failed stays failed, because the kernel may have dropped the pages it could not
write, so that trying again would report success for data that is gone.
"""

from sapwood.disk.files import replace, unfinished
from sapwood.disk.journal import Journal, JournalCorrupt
from sapwood.disk.os_disk import OsDisk
from sapwood.disk.seam import Buffer, Disk, File, SyncFailed
from sapwood.disk.torn import may_be_torn

__all__ = [
    "Buffer",
    "Disk",
    "File",
    "Journal",
    "JournalCorrupt",
    "OsDisk",
    "SyncFailed",
    "may_be_torn",
    "replace",
    "unfinished",
]
