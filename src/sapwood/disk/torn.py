"""Telling a write that a crash cut short from bytes that changed after they were written."""

from sapwood.disk.seam import Buffer

SECTOR = 512
"""Disks write so much or nothing."""
_WORD = 8


def may_be_torn(data: Buffer, position: int) -> bool:
    """Whether a write to fresh room at `position` of a file, cut short, can have left this there.

    What it lacks reads as zeros, for that is what was there before: a sector of it, or the end of
    one. If nothing is missing then all of it was written, and what is wrong with it came later.
    """
    start, size = 0, len(data)
    while start < size:
        end = min(start + SECTOR - (position + start) % SECTOR, size)
        if not any(data[max(start, end - _WORD) : end]):
            return True
        start = end
    return False
