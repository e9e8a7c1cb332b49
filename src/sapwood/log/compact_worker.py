"""The helper process of compaction: a plan comes in on stdin, a report goes out on stdout."""

from __future__ import annotations

import os
import sys
import threading

import msgspec

from sapwood.disk import OsDisk
from sapwood.log.cleaner import CompactionPlan, clean
from sapwood.log.compact import Report
from sapwood.log.errors import CorruptLog

_NICENESS = 10


def main() -> None:
    os.nice(_NICENESS)
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=CompactionPlan)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        report = Report(cleaned=clean(OsDisk(), plan))
    except CorruptLog as error:
        report = Report(corrupt=(error.path, error.position, error.reason))
    except OSError as error:
        report = Report(failure=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    """Stop at once when the node is gone: its successor may compact the same segments."""
    # Not sys.stdin's `read`, which holds a lock that the end of the interpreter wants to have.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
