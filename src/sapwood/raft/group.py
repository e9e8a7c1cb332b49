"""One replica of one group.

Methods in the past tense are news from outside; each leaves effects for `take`. The caller carries
them out in order. It asks for no vote, answers none and announces no leader before every `Save` so
far is durable, not only one that came along: a vote that is asked for twice is granted twice, the
second time without one; and a single voter leads without asking anybody.
"""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.raft.change import next_voters
from sapwood.raft.divergence import compare, meeting_point
from sapwood.raft.progress import Contact, LastWord, Progress
from sapwood.raft.quorum import acknowledged, agreed_time, committed, majority, one_step
from sapwood.raft.roles import (
    NEVER,
    TRANSITIONS,
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
    Changed,
    Committed,
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

TERMS_LEFT_OUT = 1_000_000


class Group:
    def __init__(
        self,
        me: Voter,
        log: RaftLog,
        first_voters: Voters,
        state: HardState,
        *,
        high_watermark: int,
        timing: Timing,
        now: float,
    ) -> None:
        """`high_watermark` is any offset that is known to be committed."""
        self.me = me
        self.high_watermark = max(high_watermark, log.start_offset)
        self.last_leader = NOBODY
        self._log = log
        self._first_voters = first_voters
        self.timing = timing
        self._effects: list[Effect] = []
        self._tried = 0
        """Attempts at an election since a leader was heard of."""
        self._lost = (NOBODY, 0, NEVER)
        """The leader that was lost last, its epoch, and when."""
        self._is_needed = False
        """Has no vote by its own log, but others can't do without it: see `_refused_a_vote`."""
        self._electors: dict[Voter, float] = {}
        """Who takes part in the election that is going on, and when that was last heard."""
        self.state = state
        if log.position.epoch > state.term:
            # The log was synced before the journal. Whoever voted in that epoch had saved it, so
            # this replica has not; it must not do so now, for it may have led.
            self._save(HardState(log.position.epoch, me))
        self.role: Role = Unattached(NEVER)
        self.role = Unattached(self._standing(now))

    # -- questions ---------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def voters(self) -> Voters:
        found = self._log.voters
        return self._first_voters if found is None else found[1]

    @property
    def voters_are_committed(self) -> bool:
        """Whether no others can come into force any more but by a change of these."""
        found = self._log.voters
        return found is None or found[0] < self.high_watermark

    @property
    def has_vote(self) -> bool:
        return self.me in self.voters

    @property
    def leader(self) -> int:
        """The node that leads at this term as far as is known."""
        if isinstance(self.role, Elected):
            return self.me.node
        return self.role.leader if isinstance(self.role, Follower) else NOBODY

    @property
    def deadline(self) -> float:
        """When `tick` has something to do; a leader's also has whenever a node falls silent."""
        role = self.role
        if isinstance(role, Elected):
            return role.successor_deadline
        return NEVER if isinstance(role, Follower) else role.deadline

    def has_quorum(self, now: float) -> bool:
        """Whether a majority, with this leader, was heard of lately."""
        return self._has_quorum_since(now - self.timing.silence_s)

    def holds_office(self, now: float) -> bool:
        """Whether it may go on as leader, though it can't be sure that it is the only one.

        Enough to append: what one appends that was replaced meanwhile is never committed.
        """
        return self._has_quorum_since(now - self.timing.resign_s)

    def _has_quorum_since(self, since: float) -> bool:
        role = self.role
        if not isinstance(role, Elected):
            return False
        voters = self.voters
        needed = majority(len(voters))
        if role.since > since:
            return True  # give them the time to find out
        return sum(it == self.me or role.hears(it, since) for it in voters) >= needed

    def in_sync(self, now: float) -> list[int]:
        """The voters that keep up: heard of, and they hold what is committed or lately was."""
        role = self.role
        if not isinstance(role, Elected):
            return []
        since = now - self.timing.resign_s
        held = self.high_watermark
        return [
            it.node
            for it in self.voters
            if it == self.me or (it in role.progress and role.progress[it].keeps_up(held, since))
        ]

    def speaks_for_minority(self, now: float) -> bool:
        """Whether this voter, and no other one, is to say what is known while nobody can lead.

        Not if enough for an election were heard of lately: one of them is about to lead. Of fewer
        it is the first, so that two who hear each other don't both say that they are the one.
        """
        since = now - self.timing.attempts_s
        heard = {it for it, at in self._electors.items() if at > since and it in self.voters}
        heard.add(self.me)
        return self.has_vote and not self._has_won(heard) and self.me.node == min(heard).node

    def acknowledged(self, replicas: int) -> int:
        """What is committed and held durably by that many voters."""
        role = self.role
        voters = self.voters
        if not isinstance(role, Elected) or replicas <= majority(len(voters)):
            return self.high_watermark
        held = acknowledged(voters, role.durable, self.term, replicas)
        return min(self.high_watermark, -1 if held is None else held)

    def agreed_time(self, own: int) -> int:
        """No later leader appends at that time or before; -1 if that can't be said of any.

        `own` is what this node's clock has passed for good. Only a leader whose own epoch is
        committed knows that: what an earlier one left behind could else be committed yet, at any
        time. A change of the voters is no way round it. Whoever wins by voters that were changed
        later holds that change, appended later than any time that was agreed on before; and
        majorities of voters one step apart meet.
        """
        role = self.role
        if not isinstance(role, Leader):
            return -1
        promised = {it: known.contact.promised for it, known in role.progress.items()}
        promised[self.me] = own
        return agreed_time(self.voters, promised)

    @property
    def is_being_joined(self) -> bool:
        """Whether a replica without a vote follows this leader."""
        role, voters = self.role, self.voters
        return isinstance(role, Elected) and any(it not in voters for it in role.progress)

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # -- time --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        role = self.role
        if isinstance(role, Elected):
            if not self.holds_office(now):
                self._become(Unattached(now + self.timing.round_s + self._turn()))
            elif now >= role.successor_deadline:
                role.successor, role.successor_deadline = None, NEVER
        elif not isinstance(role, Follower) and now >= role.deadline:
            if self._may_stand:
                self._stand(now)
            else:
                self._become(Unattached(NEVER))

    def leader_lost(self, now: float) -> None:
        """The link to the leader is dead."""
        if isinstance(self.role, Follower):
            self._lost = (self.role.leader, self.term, now)
            self._become(Unattached(self._standing(now)))

    def leader_refused(self, now: float) -> None:
        """Who was taken for the leader doesn't lead, and doesn't know who does."""
        self.leader_lost(now + self.timing.stagger_s)

    # -- elections ---------------------------------------------------------------------------

    def vote_asked(self, now: float, vote: Vote) -> VoteAnswer:
        self._electors[vote.candidate] = now
        granted = False
        if vote.pre:
            if vote.term > self.term and isinstance(self.role, Elected):
                # It stood once and nobody heard of it. Now it can't follow below its own term,
                # and nobody who is led would elect it: it would be left out for good.
                self._enter(vote.term, now + self.timing.stagger_s + self._turn())
            granted = vote.term >= self.term and not self._is_led(now) and self._may_lead(vote)
            if granted:
                self._make_way(now, vote)
        else:
            if vote.term > self.term:
                self._enter(vote.term, now + self.timing.round_s + self._turn())
            granted = (
                vote.term == self.term
                and self.state.vote in (None, vote.candidate)
                and isinstance(self.role, Unattached | Prospective)
                and self._may_lead(vote)
            )
            if granted:
                if self.state.vote is None:
                    self._save(HardState(self.term, vote.candidate))
                self._become(Unattached(now + 2 * self.timing.round_s + self._turn()))
        if not granted:
            self._refused_a_vote(now, vote)
        return VoteAnswer(self.term, self.me, granted, vote.pre, self.leader)

    def vote_answered(self, now: float, answer: VoteAnswer) -> None:
        self._electors[answer.voter] = now
        if answer.term > self.term:
            self._enter(answer.term, now + self.timing.stagger_s + self._turn())
        if answer.leader != NOBODY:
            if not self._is_rumour(now, answer):
                self.announced(now, answer.leader, answer.term)
            return
        role = self.role
        if not answer.granted or answer.voter not in self.voters:
            return
        if isinstance(role, Prospective) and answer.pre:
            role.granted.add(answer.voter)
            if self._has_won(role.granted):
                self._campaign(now)
        elif isinstance(role, Candidate) and not answer.pre and answer.term == self.term:
            role.granted.add(answer.voter)
            if self._has_won(role.granted):
                self._win(now)

    def announced(self, now: float, leader: int, epoch: int) -> None:
        """Somebody says who leads at that epoch."""
        role = self.role
        if leader == self.me.node:
            return
        if epoch < self.term:
            if not isinstance(role, Follower | Elected):
                # It leads without this replica, which can't follow below its own term.
                self._ask((leader,), pre=True)
            return
        if epoch == self.term and (
            isinstance(role, Elected) or (isinstance(role, Follower) and role.leader != leader)
        ):
            raise RaftViolation(f"nodes {self.leader} and {leader} both lead in epoch {epoch}")
        if epoch > self.term:
            self._save(HardState(epoch))
        elif isinstance(role, Follower):
            return
        self.last_leader = leader
        self._become(Follower(leader))

    def handed(self, now: float, epoch: int) -> None:
        """The leader asks this replica to take over: it need not ask first whether it would win."""
        if isinstance(self.role, Follower) and epoch == self.term and self.has_vote:
            self._campaign(now)

    def recover(self, now: float) -> None:
        """An operator's order to go on without the others, who may have had more.

        They may also have had leaders at terms that this replica never heard of. Were one of those
        terms used again, logs that differ would look alike: so a good many are left out.
        """
        self._save(HardState(self.term + TERMS_LEFT_OUT, self.me))
        self._become(Unattached(NEVER))
        self._win(now)
        self._log.append_voters((self.me,), self.term)
        self._effects.append(Sync())

    # -- leading -----------------------------------------------------------------------------

    def fetched(
        self,
        replica: Voter,
        epoch: int,
        position: Position,
        durable: Position,
        high_watermark: int,
        contact: Contact,
        now: float,
    ) -> Verdict:
        """A replica wants what comes after `position`, and holds `durable` for good."""
        if epoch > self.term:
            self._enter(epoch, now + self.timing.stagger_s + self._turn())
        role = self.role
        if not isinstance(role, Elected) or epoch != self.term:
            return NotLeader(self.term, self.leader)
        verdict = compare(self._log, position)
        durable = min(durable, position)
        if not isinstance(verdict, InStep):
            # What it holds counts for nothing. It follows for now; whether it goes on to when it
            # has cut back or begun anew, its node's being alive doesn't say.
            position, durable, contact = START, START, LastWord(contact.heard_at)
        known = role.progress.get(replica)
        if known is None:
            for other in [it for it in role.progress if it.node == replica.node]:
                self.forget(other)
            known = role.progress[replica] = Progress(contact)
        known.contact, known.position = contact, position
        known.durable, known.high_watermark = durable, high_watermark
        known.reached(self.high_watermark, now)
        role.durable[replica] = durable
        if replica in self.voters:
            self._recount()
        if role.successor == replica.node:
            self._hand_over_if_ready()
        return verdict

    def fell_behind(self, replica: Voter) -> None:
        """What the replica needs next is gone here. It follows for now; what its node says from
        here on doesn't speak for it until it has begun anew."""
        role = self.role
        if isinstance(role, Elected) and (known := role.progress.get(replica)) is not None:
            known.contact = LastWord(known.contact.heard_at)

    def forget(self, replica: Voter) -> None:
        """The replica no longer follows here, so its node's being alive says nothing about it."""
        role = self.role
        if isinstance(role, Elected):
            role.progress.pop(replica, None)
            role.durable.pop(replica, None)

    def synced(self, durable: Position) -> None:
        """The own log is durable up to there."""
        role = self.role
        if isinstance(role, Elected):
            role.durable[self.me] = durable
            self._recount()

    def hand_over(self, node: int, now: float) -> bool:
        """Give up leadership to a voter in step; False if it can't be done now."""
        role = self.role
        successor = next((it for it in self.voters if it.node == node and it != self.me), None)
        if not isinstance(role, Leader) or successor is None:
            return False
        if not role.hears(successor, now - self.timing.silence_s):
            return False
        role.successor, role.successor_deadline = node, now + self.timing.silence_s
        self._hand_over_if_ready()
        return True

    def step_towards(self, target: Sequence[int], now: float) -> None:
        """Change the voters by one step towards these nodes, if that can be done now.

        Only after a commit in the own epoch, and never before the last change is committed.
        """
        role = self.role
        if not isinstance(role, Leader) or role.successor is not None:
            return
        if not self.voters_are_committed:
            return
        since = now - self.timing.silence_s
        followers = role.progress.items()
        ready = [it for it, known in followers if known.keeps_up(self.high_watermark, since)]
        new = next_voters(self.voters, [self.me, *ready], target)
        if new is None:
            return
        if not one_step(self.voters, new) or self.me not in new:
            raise RaftViolation(f"voters {self.voters} can't become {new} in one step")
        self._log.append_voters(new, self.term)
        self._effects.append(Sync())
        self._recount()

    # -- following ---------------------------------------------------------------------------

    def told(self, high_watermark: int) -> None:
        """The leader, with whom the log is in step, says what is committed."""
        if isinstance(self.role, Follower):
            self._tried, self._is_needed = 0, False
            self._commit(min(high_watermark, self._log.position.offset))

    def meeting_point(self, epoch: int, offset: int) -> Position:
        """Where the log is to be cut if the leader says so."""
        return meeting_point(self._log, epoch, offset)

    def diverged(self, epoch: int, offset: int) -> None:
        """The leader knows of the own log only what it held when that epoch ended."""
        if not isinstance(self.role, Follower) or self._log.position.epoch == self.term:
            return  # an answer that came late: what the leader of this term wrote is in step
        cut = self.meeting_point(epoch, offset)
        if cut.offset < self.high_watermark:
            raise RaftViolation(
                f"told to cut back to {cut}, but all below {self.high_watermark} is committed"
            )
        self._log.truncate(cut)

    # -- inside ------------------------------------------------------------------------------

    def _become(self, role: Role) -> None:
        if type(role) not in TRANSITIONS[type(self.role)]:
            raise RaftViolation(f"{type(self.role).__name__} can't become {type(role).__name__}")
        if isinstance(role, Follower | Elected):
            self._electors.clear()
        self.role = role
        self._effects.append(Changed())

    def _save(self, state: HardState) -> None:
        if state.term < self.term or (
            state.term == self.term and self.state.vote not in (None, state.vote)
        ):
            raise RaftViolation(f"{state} after {self.state}")
        self.state = state
        self._effects.append(Save(state))

    def _enter(self, term: int, deadline: float) -> None:
        self._save(HardState(term))
        self._become(Unattached(deadline if self._may_stand else NEVER))

    @property
    def _may_stand(self) -> bool:
        return self.has_vote or self._is_needed

    def _is_rumour(self, now: float, answer: VoteAnswer) -> bool:
        """Whether somebody only hasn't noticed yet what this replica has: that the leader is gone.

        Two who lose it one after the other would else talk each other into following it again, and
        again, for as long as each finds out a moment before the other one.
        """
        leader, epoch, lost_at = self._lost
        is_same = (answer.leader, answer.term) == (leader, epoch)
        is_hearsay = answer.voter.node != leader
        return is_same and is_hearsay and now < lost_at + self.timing.silence_s

    def _make_way(self, now: float, vote: Vote) -> None:
        """Give one who would win the time to do so: two who stand together split the votes."""
        role = self.role
        if isinstance(role, Unattached):
            role.deadline = max(role.deadline, now + self.timing.round_s)
        elif isinstance(role, Prospective):
            # Of two who ask each other, both must find the same one to be the first.
            own = (self._log.position, -self.me.node)
            if (vote.position, -vote.candidate.node) > own:
                self._become(Unattached(now + self._patience()))

    def _refused_a_vote(self, now: float, vote: Vote) -> None:
        """Whoever is asked for a vote and holds more than the one who asks must stand itself.

        Even if it has no vote by its own log. Of four voters 0 to 3 the leader 0 removes 3, reaches
        nobody but 3 with that, and is lost for good. By the voters before, 1, 2 and 3 are enough,
        but 3 holds more and votes for neither; they will vote for it. Likewise with a replica that
        is made a voter by one leader and told by the next one only what came before.
        """
        if not (self._may_stand or self._is_led(now) or self._may_lead(vote)):
            self._is_needed = True
            self._become(Unattached(now + self._patience()))

    def _turn(self) -> float:
        turn_s = self.timing.turn_s(self.me.node, self.voters, self.last_leader)
        if turn_s and not self.term:
            # Nobody has ever stood. The first in the row may only be slower to learn of the group,
            # as with a topic of thousands; to forestall it means to elect it all the same later.
            turn_s += self.timing.silence_s
        return turn_s

    def _patience(self) -> float:
        return self.timing.patience_s(self.me.node, self.term, self._tried) + self._turn()

    def _standing(self, now: float) -> float:
        if not self._may_stand:
            return NEVER
        return now + (self._patience() if self._tried else self._turn())

    def _is_led(self, now: float) -> bool:
        return isinstance(self.role, Follower) or self.has_quorum(now)

    def _may_lead(self, vote: Vote) -> bool:
        return vote.position >= self._log.position

    def _has_won(self, granted: set[Voter]) -> bool:
        voters = self.voters
        return len(granted.intersection(voters)) >= majority(len(voters))

    def _stand(self, now: float) -> None:
        self._tried += 1
        role = Prospective(now + self._patience(), {self.me})
        self._become(role)
        if self._has_won(role.granted):
            self._campaign(now)
        else:
            self._ask(self._others(), pre=True)

    def _campaign(self, now: float) -> None:
        self._save(HardState(self.term + 1, self.me))
        role = Candidate(now + self._patience(), {self.me})
        self._become(role)
        if self._has_won(role.granted):
            self._win(now)
        else:
            self._ask(self._others(), pre=False)

    def _others(self) -> tuple[int, ...]:
        return tuple(it.node for it in self.voters if it.node != self.me.node)

    def _ask(self, nodes: tuple[int, ...], *, pre: bool) -> None:
        self._effects.append(Ask(Vote(self.term, self.me, self._log.position, pre), nodes))

    def _win(self, now: float) -> None:
        self.last_leader = self.me.node
        self._tried = 0
        self._become(Elected(now))
        self._log.append_marker(self.term)
        self._effects.append(Sync())

    def _recount(self) -> None:
        role = self.role
        if not isinstance(role, Elected):
            return
        offset = committed(self.voters, role.durable, self.term)
        if offset is None:
            return
        if not isinstance(role, Leader):
            self._become(Leader(role.since, role.durable, role.progress))
        self._commit(offset)
        if not self.has_vote:
            # Stood for what its log holds, which is on a majority of the voters now.
            self._become(Unattached(NEVER))

    def _commit(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._effects.append(Committed(offset))

    def _hand_over_if_ready(self) -> None:
        role = self.role
        if not isinstance(role, Elected) or role.successor is None:
            return
        for replica, progress in role.progress.items():
            if replica.node == role.successor and progress.position == self._log.position:
                self._effects.append(HandOver(replica.node, self.term))
