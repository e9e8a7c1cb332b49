"""Where two logs part.

Logs that end at one position are the same, for an epoch has one leader and its entries have one
order. So a leader sees from a follower's position alone whether it holds all that the follower has.
If not, it names the last epoch that both may know and where it ends, and the follower cuts back to
that; after as many rounds as there are epochs, at worst, they agree. Nothing that both share is
cut: the epoch named is at least the last one that they share, and ends no sooner.
"""

from __future__ import annotations

from sapwood.raft.words import START, Behind, Diverging, InStep, Position, RaftLog, Verdict


def compare(leader: RaftLog, position: Position) -> Verdict:
    """The leader's verdict on a replica that is at that position."""
    if position.offset < leader.start_offset:
        return Behind()
    own = leader.position
    if position.epoch < 0:
        return InStep() if position == START else Diverging(*START)
    known = own if position.epoch == own.epoch else Position(*leader.end_of_epoch(position.epoch))
    if known.epoch < 0:
        return Behind() if leader.start_offset else Diverging(*START)
    if known.epoch == position.epoch and position.offset <= known.offset:
        return InStep()
    return Diverging(known.epoch, known.offset)


def meeting_point(follower: RaftLog, epoch: int, offset: int) -> Position:
    """Up to where a log can agree with one in which that epoch ends there."""
    own = follower.end_of_epoch(epoch) if epoch >= 0 else START
    return START if own.epoch < 0 else Position(own.epoch, min(own.offset, offset))
