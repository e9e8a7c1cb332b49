"""The arithmetic of majorities."""

from __future__ import annotations

from collections.abc import Mapping

from sapwood.raft.words import Position, Voter, Voters


def majority(count: int) -> int:
    return count // 2 + 1


def acknowledged(
    voters: Voters, durable: Mapping[Voter, Position], epoch: int, needed: int
) -> int | None:
    """The largest offset that `needed` voters hold durably, None if there are too few.

    A voter counts only if the last epoch that it holds durably is the leader's own. What an
    earlier leader left behind is never committed by counting, only by what lies on top of it.
    """
    held = sorted(
        (durable[it].offset for it in voters if it in durable and durable[it].epoch == epoch),
        reverse=True,
    )
    return held[needed - 1] if len(held) >= needed else None


def committed(voters: Voters, durable: Mapping[Voter, Position], epoch: int) -> int | None:
    return acknowledged(voters, durable, epoch, majority(len(voters)))


def agreed_time(voters: Voters, promised: Mapping[Voter, int]) -> int:
    """The latest time that a majority has promised never to fall behind; -1 if there is none.

    Whoever leads next needs a vote of one of them, and votes carry the clock: it won't append
    anything at that time or before.
    """
    times = sorted((promised.get(it, -1) for it in voters), reverse=True)
    return times[majority(len(voters)) - 1]


def one_step(old: Voters, new: Voters) -> bool:
    """Whether majorities of both must meet: one voter more, or one less.

    Not one that comes back anew for the one it was. Of 0, 1 and 2, let 1 stand against the leader 0
    with the vote of 2, which is then wiped before 1 hears of it. If 0 could make the new 2 a voter
    at once, both would go on to commit without 1; and then 1 receives the vote, and leads.
    """
    changed = set(old) ^ set(new)
    return bool(new) and len(changed) == 1 and len({it.node for it in new}) == len(new)
