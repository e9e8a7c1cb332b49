"""A partition is a log behind a leader that its replicas agree on.

In come record batches from producers, and what other nodes say about the groups they share; out
go acknowledgements, once a batch is committed, and batches for whoever fetches: consumers and
followers alike. Committed means durable on a majority of the voters. Always: no reader sees an
offset at or past the high watermark, which never goes back; a vote is durable before anybody
hears of it; a replica whose disk failed or whose log is damaged is offline, says why, and is
refilled from the others as a new one.
"""

from sapwood.disk import Disk
from sapwood.disk import replace as replace_file
from sapwood.log import LogConfig
from sapwood.raft import Timing, Voter
from sapwood.replica.acceptance import Rules
from sapwood.replica.closing import closed
from sapwood.replica.exchange import Exchange
from sapwood.replica.host import CommitListener
from sapwood.replica.leaders import Leadership
from sapwood.replica.partition import Appended, OnCommitted, Partition
from sapwood.replica.peers import NoPeers, Peers
from sapwood.replica.plan import Plan, Settings
from sapwood.replica.replicas import UPKEEP_INTERVAL_S, JournalFailed, Replicas
from sapwood.replica.transacting import Guard, is_in_progress
from sapwood.server.link import PeerUnreachable

__all__ = [
    "UPKEEP_INTERVAL_S",
    "Appended",
    "CommitListener",
    "Disk",
    "Exchange",
    "Guard",
    "JournalFailed",
    "Leadership",
    "LogConfig",
    "NoPeers",
    "OnCommitted",
    "Partition",
    "PeerUnreachable",
    "Peers",
    "Plan",
    "Replicas",
    "Rules",
    "Settings",
    "Timing",
    "Voter",
    "closed",
    "is_in_progress",
    "replace_file",
]
