"""What can go wrong with a log."""

from __future__ import annotations


class CorruptLog(Exception):
    """Stored bytes aren't what was written. Nothing was changed or deleted."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position}: {reason}. Nothing was deleted; "
            "`sapwood log dump` shows what can still be read."
        )
        self.path = path
        self.position = position
        self.reason = reason


class OffsetOutOfRange(Exception):
    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"offset {offset} is not within {start_offset}..{end_offset}")
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset


class OffsetsNotAscending(ValueError):
    """A batch was to be appended below the log's end."""


class EpochsNotAscending(ValueError):
    """A batch or a marker of an older epoch than the log's last was to be appended."""


class BadSnapshot(ValueError):
    """These bytes are not a log's snapshot."""


class LogFailed(OSError):
    """A sync of this log failed, so nobody knows what is on disk: it stays out of service."""


class LogClosed(OSError):
    """This log was closed."""


class CompactionFailed(OSError):
    """The helper process didn't get to the end; the log is as it was."""
