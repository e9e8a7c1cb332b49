"""What replicas say to each other, besides asking and answering for votes."""

from __future__ import annotations

from typing import NamedTuple

from sapwood.raft import Position, Verdict, Vote, VoteAnswer, Voter
from sim.consensus.memory import Entry


class Fetch(NamedTuple):
    number: int
    replica: Voter
    epoch: int
    position: Position
    durable: Position
    high_watermark: int


class Fetched(NamedTuple):
    number: int
    epoch: int
    verdict: Verdict
    entries: list[Entry]
    high_watermark: int


class Announce(NamedTuple):
    leader: int
    epoch: int


class Handed(NamedTuple):
    epoch: int


Message = Vote | VoteAnswer | Fetch | Fetched | Announce | Handed
