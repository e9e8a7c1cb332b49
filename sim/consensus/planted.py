"""Bugs that others have had, planted one at a time: a simulation that misses one proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

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
from sim.planting import Plant, patched

# -- in what carries out the rules -------------------------------------------------------------


def _vote_not_persisted(stack: ExitStack) -> None:
    def persist(self: Member, state: HardState) -> None:
        self.journal = HardState(state.term)

    stack.enter_context(patched(Member, "persist", persist))


def _ack_before_sync(stack: ExitStack) -> None:
    stack.enter_context(patched(Member, "durable", property(lambda self: self.log.position)))


def _answer_before_save(stack: ExitStack) -> None:
    def send(self: Member, node: int, message: Message) -> None:
        self.cluster.post(self, node, message)

    stack.enter_context(patched(Member, "send", send))


def _announcement_before_save(stack: ExitStack) -> None:
    """A single voter needs nobody to elect it, so it can lead before its term is durable."""

    def send(self: Member, node: int, message: Message) -> None:
        if isinstance(message, Announce):
            self.cluster.post(self, node, message)
        else:
            original(self, node, message)

    original = Member.send
    stack.enter_context(patched(Member, "send", send))


def _wiped_voter_keeps_its_identity(stack: ExitStack) -> None:
    def new_identity(self: Member, incarnation: int) -> Voter:
        return self.me

    stack.enter_context(patched(Member, "new_identity", new_identity))


# -- in the rules ------------------------------------------------------------------------------


def _old_term_committed_by_counting(stack: ExitStack) -> None:
    def counted(voters: Voters, durable: Mapping[Voter, Position], epoch: int) -> int | None:
        held = sorted((durable[it].offset for it in voters if it in durable), reverse=True)
        needed = majority(len(voters))
        return held[needed - 1] if len(held) >= needed else None

    stack.enter_context(patched(group_module, "committed", counted))


def _truncation_below_commit(stack: ExitStack) -> None:
    """Whoever diverges throws everything away, and not just what differs."""

    def diverged(self: Group, epoch: int, offset: int) -> None:
        self._log.truncate(START)

    stack.enter_context(patched(Group, "diverged", diverged))


def _removal_without_quorum(stack: ExitStack) -> None:
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
    stack.enter_context(patched(Group, "step_towards", step_towards))


def _unconfirmed_reads(stack: ExitStack) -> None:
    """Elected is taken for leader: it answers before its own term has committed anything."""

    def win(self: Group, now: float) -> None:
        original(self, now)
        self._become(Leader(now))

    original = Group._win
    stack.enter_context(patched(Group, "_win", win))


def _votes_counted_by_node(stack: ExitStack) -> None:
    """Whoever answers for the node, even one that has forgotten all."""

    def vote_answered(self: Group, now: float, answer: VoteAnswer) -> None:
        voter = next((it for it in self.voters if it.node == answer.voter.node), answer.voter)
        original(self, now, answer._replace(voter=voter))

    original = Group.vote_answered
    stack.enter_context(patched(Group, "vote_answered", vote_answered))


def _logs_compared_by_length(stack: ExitStack) -> None:
    def may_lead(self: Group, vote: Vote) -> bool:
        return vote.position.offset >= self._log.position.offset

    stack.enter_context(patched(Group, "_may_lead", may_lead))


PLANTS: dict[str, Plant] = {
    "ack-before-sync": _ack_before_sync,
    "vote-not-persisted": _vote_not_persisted,
    "answer-before-save": _answer_before_save,
    "announcement-before-save": _announcement_before_save,
    "old-term-committed-by-counting": _old_term_committed_by_counting,
    "truncation-below-commit": _truncation_below_commit,
    "removal-without-quorum": _removal_without_quorum,
    "unconfirmed-reads": _unconfirmed_reads,
    "wiped-voter-keeps-its-identity": _wiped_voter_keeps_its_identity,
    "votes-counted-by-node": _votes_counted_by_node,
    "logs-compared-by-length": _logs_compared_by_length,
}
