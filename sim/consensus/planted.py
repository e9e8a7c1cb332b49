"""Bugs that others have had, planted one at a time: a simulation that misses one proves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from sapwood.raft import (
    START,
    Group,
    HardState,
    Leader,
    Position,
    Sync,
    Vote,
    VoteAnswer,
    Voter,
    Voters,
    majority,
)
from sapwood.raft import group as group_module
from sim.consensus.member import Member
from sim.consensus.messages import Announce, Message


class ForgetsVotes(Member):
    def persist(self, state: HardState) -> None:
        self.journal = HardState(state.term)


class AcknowledgesBeforeSync(Member):
    @property
    def durable(self) -> Position:
        return self.log.position


class AnswersBeforeSave(Member):
    def send(self, node: int, message: Message) -> None:
        self.cluster.post(self, node, message)


class AnnouncesBeforeSave(Member):
    """A single voter needs nobody to elect it, so it can lead before its term is durable."""

    def send(self, node: int, message: Message) -> None:
        if isinstance(message, Announce):
            self.cluster.post(self, node, message)
        else:
            super().send(node, message)


class KeepsIdentity(Member):
    def new_identity(self, incarnation: int) -> Voter:
        return self.me


@contextmanager
def old_terms_committed_by_counting() -> Iterator[None]:
    def counted(voters: Voters, durable: Mapping[Voter, Position], epoch: int) -> int | None:
        held = sorted((durable[it].offset for it in voters if it in durable), reverse=True)
        needed = majority(len(voters))
        return held[needed - 1] if len(held) >= needed else None

    with patch.object(group_module, "committed", counted):
        yield


@contextmanager
def truncation_below_commit() -> Iterator[None]:
    def diverged(self: Group, epoch: int, offset: int) -> None:
        self._log.truncate(START)

    with patch.object(Group, "diverged", diverged):
        yield


@contextmanager
def removal_without_quorum() -> Iterator[None]:
    """Whoever isn't wanted any more is gone at once, whether or not the rest holds that."""

    def step_towards(self: Group, target: Sequence[int], now: float) -> None:
        new = tuple(it for it in self.voters if it.node in target or it == self.me)
        if isinstance(self.role, Leader) and new != self.voters:
            self._log.append_voters(new, self.term)
            self._effects.append(Sync())
            self._recount()
        else:
            original(self, target, now)

    original = Group.step_towards
    with patch.object(Group, "step_towards", step_towards):
        yield


@contextmanager
def elected_taken_for_leader() -> Iterator[None]:
    def win(self: Group, now: float) -> None:
        original(self, now)
        self._become(Leader(now))

    original = Group._win
    with patch.object(Group, "_win", win):
        yield


@contextmanager
def votes_counted_by_node() -> Iterator[None]:
    """Whoever answers for the node, even one that has forgotten all."""

    def vote_answered(self: Group, now: float, answer: VoteAnswer) -> None:
        voter = next((it for it in self.voters if it.node == answer.voter.node), answer.voter)
        original(self, now, answer._replace(voter=voter))

    original = Group.vote_answered
    with patch.object(Group, "vote_answered", vote_answered):
        yield


@contextmanager
def logs_compared_by_length() -> Iterator[None]:
    def may_lead(self: Group, vote: Vote) -> bool:
        return vote.position.offset >= self._log.position.offset

    with patch.object(Group, "_may_lead", may_lead):
        yield


MEMBERS: dict[str, type[Member]] = {
    "vote not persisted": ForgetsVotes,
    "ack before sync": AcknowledgesBeforeSync,
    "answer before the vote is saved": AnswersBeforeSave,
    "announcement before the term is saved": AnnouncesBeforeSave,
    "a wiped voter votes with its old identity": KeepsIdentity,
}

PATCHES = {
    "old-term entry committed by counting": old_terms_committed_by_counting,
    "truncation below commit": truncation_below_commit,
    "removal of a member without quorum": removal_without_quorum,
    "elected taken for leader": elected_taken_for_leader,
    "votes counted by node": votes_counted_by_node,
    "logs compared by length": logs_compared_by_length,
}
