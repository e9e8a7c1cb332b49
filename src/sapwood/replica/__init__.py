"""A partition is a log behind a leader.

In come record batches from producers; out go acknowledgements, once the batch is committed,
and batches for whoever fetches. Committed means synced on a quorum of replicas, which on a
single node is a quorum of one. Always: no reader sees an offset at or past the high
watermark; the high watermark never goes back; a partition whose disk failed or whose log is
damaged is offline, says why, and touches nothing any more.
"""

from sapwood.disk import Disk
from sapwood.log import LogConfig
from sapwood.replica.acceptance import Rules
from sapwood.replica.partition import Appended, CommitListener, OnCommitted, Partition
from sapwood.replica.replicas import UPKEEP_INTERVAL_S, Replicas, Settings

__all__ = [
    "UPKEEP_INTERVAL_S",
    "Appended",
    "CommitListener",
    "Disk",
    "LogConfig",
    "OnCommitted",
    "Partition",
    "Replicas",
    "Rules",
    "Settings",
]
