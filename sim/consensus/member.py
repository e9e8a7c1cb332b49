"""One replica around raft/: its disk, its process, and what it says to the others.

A `Member` carries out what raft/ orders exactly as it asks for: nobody hears of a vote or of a new
leader before every `Save` so far is durable, and what is told as durable is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sapwood.raft import (
    NOBODY,
    Ask,
    Behind,
    Changed,
    Committed,
    Diverging,
    Elected,
    Follower,
    Group,
    HandOver,
    HardState,
    InStep,
    NotLeader,
    Position,
    Save,
    Sync,
    Vote,
    VoteAnswer,
    Voter,
)
from sim.consensus.memory import MemoryLog
from sim.consensus.messages import Announce, Fetch, Fetched, Handed, Message

if TYPE_CHECKING:
    from sim.consensus.cluster import Cluster

NEVER = float("inf")
MOST_ENTRIES = 6
"""In one answer to a fetch."""


@dataclass(slots=True)
class Contact:
    heard_at: float = -NEVER
    promised: int = -1


class Member:
    """One node's replica: its disk, and while it is up its process."""

    def __init__(self, cluster: Cluster, node: int, incarnation: int, *, flush_os: bool) -> None:
        self.cluster = cluster
        self.me = Voter(node, incarnation)
        self.flush_os = flush_os
        self.log = MemoryLog(cluster.tree, flush_os=flush_os)
        self.journal = HardState()
        self.noted = 0
        """The high watermark in the journal."""
        self.up = False
        self.paused = False
        self.life = 0
        self.waiting: list[Callable[[], None]] = []
        """What is to be done when the process goes on."""

    # -- its life ----------------------------------------------------------------------------

    def start(self) -> None:
        cluster = self.cluster
        self.up = True
        self.saves: list[HardState] = []
        self.outbox: list[tuple[int, Message]] = []
        self.saving = self.syncing = False
        self.contacts: dict[int, Contact] = {}
        self.asked: dict[int, Position] = {}
        """Fetches under way, and from where."""
        self.heard_at = -NEVER
        self.next_tick = NEVER
        self.log.kept = self.noted
        self.group = Group(
            self.me,
            self.log,
            cluster.first_voters,
            self.journal,
            high_watermark=self.noted,
            timing=cluster.timing,
            now=cluster.now,
        )
        cluster.trace(self, "starts", self.group.state, self.log.position)
        cluster.invariants.started(self)
        self.carry_out()
        self.later(0.25 * cluster.rng.random(), self.beat)

    def stop(self, *, power: bool) -> None:
        """Killed, or without power: then some of what was not synced is gone."""
        rng = self.cluster.rng
        self.cluster.trace(self, "loses power" if power else "is killed")
        self.up = self.paused = False
        self.life += 1
        self.waiting.clear()
        for state in self.saves[: rng.randint(0, len(self.saves))]:
            self.journal = state
        if power:
            if self.flush_os:
                self.cluster.invariants.buried(self)
                self.log = self.log.copy()
                self.me = self.new_identity(self.cluster.incarnation())
            self.log.lose_power(rng)

    def wipe(self) -> None:
        """Everything is lost: another one comes back."""
        self.cluster.invariants.buried(self)
        self.log = MemoryLog(self.cluster.tree, flush_os=self.flush_os)
        self.journal, self.noted = HardState(), 0
        self.me = self.new_identity(self.cluster.incarnation())
        self.cluster.trace(self, "has forgotten all")

    def new_identity(self, incarnation: int) -> Voter:
        return Voter(self.me.node, incarnation)

    def pause(self, length_s: float) -> None:
        self.cluster.trace(self, f"is paused for {length_s:.1f} s")
        self.later(length_s, self.go_on)
        self.paused = True

    def go_on(self) -> None:
        """Timers that are due and messages in the sockets are met in any order."""
        self.paused = False
        self.cluster.rng.shuffle(self.waiting)
        for action in self.waiting:
            self.later(0.0, action)
        self.waiting.clear()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.cluster.later(delay_s, self, action)

    # -- what raft/ orders -------------------------------------------------------------------

    def carry_out(self) -> None:
        cluster = self.cluster
        changed = False
        while effects := self.group.take():
            for effect in effects:
                cluster.trace(self, "", effect)
                cluster.watch(self, effect)
                match effect:
                    case Save(state):
                        self.save(state)
                    case Ask(vote, nodes):
                        for node in nodes:
                            self.send(node, vote)
                    case Sync():
                        self.sync()
                    case Changed():
                        changed = True
                        cluster.invariants.changed(self)
                    case Committed():
                        cluster.invariants.committed(self)
                    case HandOver(node, epoch):
                        self.send(node, Handed(epoch))
        if changed:
            self.changed()
        if self.group.deadline < self.next_tick:
            self.next_tick = self.group.deadline
            self.later(max(0.0, self.next_tick - cluster.now), self.tick)
        cluster.invariants.acted(self)

    def save(self, state: HardState) -> None:
        self.saves.append(state)
        if not self.saving:
            self.saving = True
            self.later(self.cluster.sync_time(), self.saved)

    def saved(self) -> None:
        """All that was to be saved is durable, and what was held back for it may go."""
        self.saving = False
        for state in self.saves:
            self.persist(state)
        self.saves.clear()
        self.noted = max(self.noted, min(self.group.high_watermark, self.log.position.offset))
        for node, message in self.outbox:
            self.cluster.post(self, node, message)
        self.outbox.clear()

    def persist(self, state: HardState) -> None:
        self.cluster.invariants.saved(self, state)
        self.journal = state

    def sync(self) -> None:
        if self.flush_os:
            self.group.synced(self.log.position)
        elif not self.syncing:
            self.syncing = True
            entries, truncations = len(self.log.entries), self.log.truncations
            self.later(self.cluster.sync_time(), lambda: self.synced(entries, truncations))

    def synced(self, entries: int, truncations: int) -> None:
        self.syncing = False
        if truncations == self.log.truncations:
            self.log.durable = max(self.log.durable, entries)
        self.group.synced(self.durable)
        if self.log.durable < len(self.log.entries):
            self.sync()
        elif isinstance(self.group.role, Follower):
            self.fetch()
        self.carry_out()

    @property
    def durable(self) -> Position:
        return self.log.durable_position

    def send(self, node: int, message: Message) -> None:
        if self.saves and isinstance(message, Vote | VoteAnswer | Announce):
            self.outbox.append((node, message))
        else:
            self.cluster.post(self, node, message)

    # -- the shell around raft/ --------------------------------------------------------------

    def changed(self) -> None:
        role = self.group.role
        if isinstance(role, Elected):
            self.announce()
        elif isinstance(role, Follower):
            self.heard_at = self.cluster.now
            self.asked.clear()
            self.fetch()

    def announce(self) -> None:
        for node in self.cluster.members:
            if node != self.me.node:
                self.send(node, Announce(self.me.node, self.group.term))

    def tick(self) -> None:
        self.next_tick = NEVER
        self.group.tick(self.cluster.now)
        self.carry_out()

    def beat(self) -> None:
        """What is looked after all the time."""
        group, now = self.group, self.cluster.now
        group.tick(now)
        role = group.role
        if isinstance(role, Elected):
            if self.cluster.rng.random() < 0.3:
                self.announce()
            self.manage()
        elif isinstance(role, Follower) and now - self.heard_at > self.cluster.timing.silence_s:
            group.leader_lost(now)
        elif isinstance(role, Follower):
            self.fetch()
        self.carry_out()
        some_s = (0.3 + 0.2 * self.cluster.rng.random()) * self.cluster.timing.silence_s
        self.later(some_s, self.beat)

    def manage(self) -> None:
        """Towards the voters that are wanted; a leader that is not among them hands over."""
        group, cluster = self.group, self.cluster
        target = cluster.target
        group.step_towards(target, cluster.now)
        nodes = [it.node for it in group.voters]
        if self.me.node not in target and set(target) <= set(nodes):
            group.hand_over(cluster.rng.choice(target), cluster.now)

    def fetch(self) -> None:
        role = self.group.role
        if isinstance(role, Follower):
            self.cluster.fetches += 1
            self.asked[self.cluster.fetches] = self.log.position
            self.send(
                role.leader,
                Fetch(
                    self.cluster.fetches,
                    self.me,
                    self.group.term,
                    self.log.position,
                    self.durable,
                    self.group.high_watermark,
                ),
            )

    def receive(self, sender: int, message: Message) -> None:
        group, now = self.group, self.cluster.now
        match message:
            case Vote():
                answer = group.vote_asked(now, message)
                self.carry_out()
                self.send(sender, answer)
            case VoteAnswer():
                group.vote_answered(now, message)
            case Announce(leader, epoch):
                group.announced(now, leader, epoch)
            case Handed(epoch):
                group.handed(now, epoch)
            case Fetch():
                self.serve(sender, message)
            case Fetched():
                self.follow(message)
        self.carry_out()

    def serve(self, sender: int, message: Fetch) -> None:
        group, now = self.group, self.cluster.now
        contact = self.contacts.setdefault(sender, Contact())
        contact.heard_at = now
        number, replica, epoch, position, durable, high_watermark = message
        verdict = group.fetched(replica, epoch, position, durable, high_watermark, contact, now)
        self.carry_out()
        entries = []
        if isinstance(verdict, InStep):
            entries = self.log.after(position, MOST_ENTRIES)
        elif isinstance(verdict, Behind):
            entries = self.log.snapshot()
        self.send(sender, Fetched(number, group.term, verdict, entries, group.high_watermark))

    def follow(self, answer: Fetched) -> None:
        group, now = self.group, self.cluster.now
        position = self.asked.pop(answer.number, None)
        if position is None or not isinstance(group.role, Follower):
            return
        verdict = answer.verdict
        if isinstance(verdict, NotLeader):
            if verdict.leader not in (NOBODY, group.role.leader) and verdict.epoch >= group.term:
                group.announced(now, verdict.leader, verdict.epoch)
            else:
                group.leader_lost(now)
            return
        if answer.epoch != group.term:
            return
        self.heard_at = now
        is_current = position == self.log.position
        if isinstance(verdict, InStep):
            for entry in answer.entries if is_current else []:
                self.log.append(entry)
            group.told(answer.high_watermark)
            if not answer.entries:
                return
            self.sync()
        elif not is_current:
            return  # was asked before the log was cut
        elif isinstance(verdict, Diverging):
            group.diverged(*verdict)
        else:
            self.log.reset(answer.entries)
        self.fetch()
