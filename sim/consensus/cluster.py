"""Replicas of one group in memory: a bag of messages, disks that forget, and a clock of its own.

Everything but what raft/ asks of its caller may happen at any moment, and happens by one source of
chance, so that a seed is a run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from sapwood.raft import Effect, Timing, Voter, Voters
from sim.consensus.invariants import Invariants
from sim.consensus.member import Member
from sim.consensus.memory import Tree
from sim.consensus.messages import Fetched, Message
from sim.trace import Trace


@dataclass(slots=True)
class Weather:
    """What the network and the disks are like."""

    loss: float = 0.0
    repeats: float = 0.0
    delay_s: float = 0.005
    straggling: float = 0.0
    """How many messages take seconds."""
    sync_s: float = 0.003


class Cluster:
    """`first` nodes found the group; there are as many members as `nodes`, all down at first."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        first: Sequence[int],
        *,
        flush_os: Sequence[int] = (),
        member: type[Member] = Member,
        traced: bool = False,
    ) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.tree = Tree()
        self.timing = Timing()
        self.weather = Weather()
        self.first_voters: Voters = tuple(Voter(it, 0) for it in first)
        self.target: list[int] = list(first)
        self.incarnations = 0
        self.fetches = 0
        self.cut: set[tuple[int, int]] = set()
        """Links, from and to, that carry nothing."""
        self.watch: Callable[[Member, Effect], None] = lambda member, effect: None
        """Called with everything that raft/ orders."""
        self.era = 0
        """Messages of another one are gone."""
        self.events = 0
        self.story = Trace()
        self._is_traced = traced
        self.members = {it: member(self, it, 0, flush_os=it in flush_os) for it in range(nodes)}
        self.invariants = Invariants(self.members)
        self._events: list[tuple[float, int, Member | None, int, Callable[[], None]]] = []
        self._count = 0

    def trace(self, member: Member | None, what: str, *details: object) -> None:
        if self._is_traced:
            who = f"{member.me.node}.{member.me.incarnation}" if member is not None else "-"
            said = " ".join([what, *map(str, details)]).strip()
            self.story.add(f"{self.now:12.6f} {who:<6} {said}", self.events)

    def later(self, delay_s: float, member: Member | None, action: Callable[[], None]) -> None:
        self._count += 1
        life = member.life if member else 0
        heapq.heappush(self._events, (self.now + delay_s, self._count, member, life, action))

    def incarnation(self) -> int:
        self.incarnations += 1
        return self.incarnations

    def sync_time(self) -> float:
        return self.rng.expovariate(1.0) * self.weather.sync_s

    def post(self, sender: Member, node: int, message: Message) -> None:
        self.invariants.told(sender, message)
        if isinstance(message, Fetched):
            for entry in message.entries:
                entry.told = True
        rng, weather = self.rng, self.weather
        source, era = sender.me.node, self.era
        copies = 1 if rng.random() >= weather.repeats else 2
        for _ in range(copies):
            delay = rng.expovariate(1.0) * weather.delay_s
            if rng.random() < weather.straggling:
                delay += rng.random() * 5.0
            if rng.random() >= weather.loss:
                self.later(delay, None, lambda: self.arrive(era, source, node, message))

    def arrive(self, era: int, source: int, node: int, message: Message) -> None:
        if era == self.era:
            self.deliver(source, node, message)

    def deliver(self, source: int, node: int, message: Message) -> None:
        member = self.members[node]
        if not member.up or (source, node) in self.cut:
            return
        if member.paused:
            member.waiting.append(lambda: self.deliver(source, node, message))
            return
        self.trace(member, f"<- {source}", message)
        member.receive(source, message)

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Whether it was done before the time was up."""
        events = self._events
        while events and events[0][0] <= end:
            if done is not None and done():
                return True
            when, _, member, life, action = heapq.heappop(events)
            self.now = max(self.now, when)
            if member is not None:
                if life != member.life:
                    continue
                if member.paused and action != member.go_on:
                    member.waiting.append(action)
                    continue
            self.events += 1
            action()
        self.now = end
        return done is not None and done()
