"""Consensus on one log: who leads, what is committed, who has a vote.

In come messages of other replicas, news of the own log ("synced up to here") and the time; out go
effects: save this vote, ask these voters, sync, tell that the role or the high watermark changed.
The log is an object that is called at once. No event loop, clock or chance in here. Replication
is pull-based: followers fetch, the leader answers. Always: one leader per epoch; what lies below
the high watermark is durable on a majority and is never cut; a vote is durable before it is told.
"""

from sapwood.raft.group import Group
from sapwood.raft.progress import Contact, Progress
from sapwood.raft.quorum import acknowledged, committed, majority
from sapwood.raft.roles import (
    Candidate,
    Elected,
    Follower,
    Leader,
    Prospective,
    Role,
    Unattached,
)
from sapwood.raft.timing import Timing
from sapwood.raft.words import (
    NOBODY,
    START,
    Ask,
    Behind,
    Changed,
    Committed,
    Diverging,
    Effect,
    HandOver,
    HardState,
    InStep,
    NotLeader,
    Position,
    RaftLog,
    RaftViolation,
    Save,
    Sync,
    Verdict,
    Vote,
    VoteAnswer,
    Voter,
    Voters,
)

__all__ = [
    "NOBODY",
    "START",
    "Ask",
    "Behind",
    "Candidate",
    "Changed",
    "Committed",
    "Contact",
    "Diverging",
    "Effect",
    "Elected",
    "Follower",
    "Group",
    "HandOver",
    "HardState",
    "InStep",
    "Leader",
    "NotLeader",
    "Position",
    "Progress",
    "Prospective",
    "RaftLog",
    "RaftViolation",
    "Role",
    "Save",
    "Sync",
    "Timing",
    "Unattached",
    "Verdict",
    "Vote",
    "VoteAnswer",
    "Voter",
    "Voters",
    "acknowledged",
    "committed",
    "majority",
]
