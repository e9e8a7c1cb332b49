"""What must hold after every event, whatever happened.

- One leader per epoch; terms and durable votes never go back; nobody votes twice in a term, nor
  tells a vote that is not durable.
- Logs match (`memory.Tree` sees to it), and whoever is elected holds all that was committed before.
- What is committed is durable on a majority of the voters, together with the leader's own marker,
  is one value per offset, and is never cut. A replica's high watermark never goes back.
- What a confirmed leader reports as committed is at least all that was before its epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sapwood.raft import Elected, HardState, Leader, VoteAnswer, Voter, majority
from sim.consensus.memory import Broken, Entry, MemoryLog
from sim.consensus.messages import Fetch, Fetched, Handed, Message

if TYPE_CHECKING:
    from sim.consensus.member import Member


class Invariants:
    def __init__(self, members: Mapping[int, Member]) -> None:
        self._members = members
        self.history: list[Entry] = []
        """What is committed, at its offset."""
        self.committed_in: list[int] = []
        """In whose epoch it was."""
        self.leaders: dict[int, Voter] = {}
        self._elected_with: dict[int, list[Entry]] = {}
        self._votes: dict[tuple[Voter, int], Voter | None] = {}
        self._graves: dict[Voter, MemoryLog] = {}
        self._terms: dict[Voter, int] = {}

    # -- elections ---------------------------------------------------------------------------

    def started(self, member: Member) -> None:
        term = self._terms.get(member.me, 0)
        if member.group.term < term:
            raise Broken(f"{member.me} was at term {term} and starts at {member.group.term}")
        for epoch in [it for it in self.leaders if it > member.group.term]:
            if self.leaders[epoch] == member.me:
                # It was not saved, so nobody was told: as if it had never been.
                del self.leaders[epoch], self._elected_with[epoch]

    def saved(self, member: Member, state: HardState) -> None:
        old = member.journal
        if state.term < old.term or (state.term == old.term and old.vote not in (None, state.vote)):
            raise Broken(f"{member.me} saves {state} over {old}")

    def told(self, member: Member, message: Message) -> None:
        """A message leaves: from now on others rely on it."""
        if isinstance(message, Fetch | Fetched | Handed):
            return
        group = member.group
        if group.term != member.journal.term and member.log.durable_position.epoch < group.term:
            raise Broken(f"{member.me} speaks in term {group.term}, but saved {member.journal}")
        if isinstance(message, VoteAnswer):
            self._terms[message.voter] = max(message.term, self._terms.get(message.voter, 0))
            if message.granted and not message.pre:
                vote = group.state.vote
                if self._votes.setdefault((message.voter, message.term), vote) != vote:
                    raise Broken(f"{message.voter} votes twice in term {message.term}")

    def changed(self, member: Member) -> None:
        group = member.group
        if not isinstance(group.role, Elected):
            return
        epoch = group.term
        if self.leaders.setdefault(epoch, group.me) != group.me:
            raise Broken(f"{self.leaders[epoch]} and {group.me} both lead in epoch {epoch}")
        records = member.log.records
        if epoch not in self._elected_with:
            self._elected_with[epoch] = list(records)
        for offset, entry in enumerate(self.history):
            if self.committed_in[offset] < epoch:
                self._must_hold(group.me, epoch, records, offset, entry)

    def _must_hold(
        self, leader: Voter, epoch: int, records: list[Entry], offset: int, entry: Entry
    ) -> None:
        if len(records) <= offset or records[offset] is not entry:
            raise Broken(f"{leader} leads in epoch {epoch} without the committed {entry}")

    # -- commits -----------------------------------------------------------------------------

    def committed(self, member: Member) -> None:
        group, log = member.group, member.log
        end = min(group.high_watermark, len(log.records))
        known = min(log.kept, end)
        for offset in range(known, end):
            entry = log.records[offset]
            if offset < len(self.history):
                if self.history[offset] is not entry:
                    raise Broken(f"{entry} and {self.history[offset]} are both committed")
                continue
            if self.leaders.get(group.term) != group.me:
                raise Broken(f"{group.me} takes {entry} for committed, but no leader does")
            self._commit(member, entry)

    def _commit(self, member: Member, entry: Entry) -> None:
        group, epoch = member.group, member.group.term
        marker = member.log.marker(epoch)
        holding = sum(self._holds(it, entry, marker) for it in group.voters)
        if holding < majority(len(group.voters)):
            raise Broken(f"{entry} is committed, but {holding} of {group.voters} hold it durably")
        self.history.append(entry)
        self.committed_in.append(epoch)
        for later, records in self._elected_with.items():
            if later > epoch:
                offset = len(self.history) - 1
                self._must_hold(self.leaders[later], later, records, offset, entry)

    def _holds(self, voter: Voter, entry: Entry, marker: Entry) -> bool:
        member = self._members[voter.node]
        log = member.log if member.me == voter else self._graves.get(voter)
        return log is not None and log.holds(entry) and log.holds(marker)

    def buried(self, member: Member) -> None:
        """That voter will never act again, but what it had acknowledged may still arrive."""
        self._graves[member.me] = member.log

    # -- always ------------------------------------------------------------------------------

    def acted(self, member: Member) -> None:
        group, log = member.group, member.log
        if group.high_watermark < log.kept:
            raise Broken(f"{group.me} goes back from {log.kept} to {group.high_watermark}")
        log.kept = group.high_watermark
        if isinstance(group.role, Leader) and group.high_watermark < len(self.history):
            reported = group.high_watermark
            if self.committed_in[reported] < group.term:
                raise Broken(f"{group.me} reports {reported}, but {self.history[reported]} is, too")
