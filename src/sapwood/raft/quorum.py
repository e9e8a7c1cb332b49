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


def one_step(old: Voters, new: Voters) -> bool:
    """Whether majorities of both must meet: one voter more, one less, or one come back anew.

    A swap of incarnations is one step since the old one never acts again: nobody can win by
    its vote, so all that counts is that the new one holds what the old one had promised to hold.
    """
    gone, come = set(old) - set(new), set(new) - set(old)
    if len({it.node for it in new}) != len(new) or not new:
        return False
    if len(gone) == len(come) == 1:
        return gone.pop().node == come.pop().node
    return len(gone) + len(come) == 1
