"""One partition's log on disk.

In come record batches with their offsets set, and markers of leader epochs; out come batches from
any offset on, and raw entries for replicas. A log is a row of segment files, each with a sparse
index; beside them lie snapshots of its ledger and a state file for what segments can't tell.

What always holds: what `sync` covered survives a power cut; what survives is a prefix of what was
appended; bytes are checked before they are served; indexes and snapshots are only ever hints that
can be computed anew. Damage below the durable end raises CorruptLog and deletes nothing.
"""

from sapwood.log.cache import SegmentCache
from sapwood.log.clock import HybridClock
from sapwood.log.config import LogConfig
from sapwood.log.entry import BadEntry
from sapwood.log.errors import (
    BadSnapshot,
    CompactionFailed,
    CorruptLog,
    EpochsNotAscending,
    LogClosed,
    LogFailed,
    OffsetOutOfRange,
    OffsetsNotAscending,
)
from sapwood.log.ids import FIRST_ID
from sapwood.log.ledger import VOTERS_KEY
from sapwood.log.log import Log
from sapwood.log.producers import ProducerTable, SeenBatch

__all__ = [
    "FIRST_ID",
    "VOTERS_KEY",
    "BadEntry",
    "BadSnapshot",
    "CompactionFailed",
    "CorruptLog",
    "EpochsNotAscending",
    "HybridClock",
    "Log",
    "LogClosed",
    "LogConfig",
    "LogFailed",
    "OffsetOutOfRange",
    "OffsetsNotAscending",
    "ProducerTable",
    "SeenBatch",
    "SegmentCache",
]
