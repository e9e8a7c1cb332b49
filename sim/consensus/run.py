"""One seed of tier 1: replicas of one group through faults, then healing.

Each seed draws which kinds of faults it has at all, so that a fault that hides another bug is often
absent. Wipes are drawn only while a majority of every configuration in any log stays alive: the
death of a majority is not a bug.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from random import Random

from sapwood.raft import (
    Committed,
    Effect,
    Elected,
    Leader,
    RaftViolation,
    Sync,
    Timing,
    Voter,
    Voters,
    majority,
)
from sim.consensus.cluster import Cluster, Weather
from sim.consensus.member import Member
from sim.consensus.memory import Broken
from sim.consensus.planted import PLANTS
from sim.plan import Outcome, Plan, check_faults, trace_path
from sim.planting import planted

FAULTS_S = 20.0
"""For how long a seed has faults unless told otherwise: more seeds find more than longer ones."""
ROUNDS = 10
CALM = Weather()
CHURN = ("kill", "power cut", "isolation", "split", "duel")
"""Each seed has one of these: without a change of leaders nothing can go wrong."""


class Run:
    """One seed: faults, then healing."""

    def __init__(
        self,
        seed: int,
        *,
        faults_s: float = FAULTS_S,
        nodes: int | None = None,
        only: Sequence[str] = (),
        traced: bool = False,
    ) -> None:
        rng = Random(seed)
        drawn = rng.choice((1, 2, 3, 3, 3, 3, 4, 5))
        founders = nodes or drawn
        spare = rng.choice((0, 0, 1, 2))
        everybody = list(range(founders + spare))
        first = rng.sample(everybody, founders)
        flush_os = [it for it in everybody if rng.random() < 0.5] if rng.random() < 0.2 else []
        cluster = Cluster(seed, len(everybody), first, flush_os=flush_os, traced=traced)
        if rng.random() < 0.7:
            cluster.timing = Timing(silence_s=0.3, round_s=0.1, stagger_s=0.03)
        self.cluster = cluster
        self.faults_s = faults_s
        self.rng = cluster.rng
        self.pace = rng.choice((0.03, 0.1, 0.3))
        self.dead: list[tuple[Voter, float]] = []
        self.counts: dict[str, int] = {}
        self.all: dict[str, Callable[[Member], None]] = {
            "kill": self.kill,
            "power cut": self.cut_power,
            "power cut of all": self.cut_all_power,
            "pause": self.pause,
            "isolation": self.isolate,
            "split": self.split,
            "one-way cuts": self.one_way,
            "wipe": self.wipe,
            "other voters": self.retarget,
            "hand-over": self.hand_over,
            "retention": self.retire,
            "lost leader": self.lose_leader,
            "campaign": self.campaign,
            "duel": self.duel,
        }
        check_faults(only, self.all)
        share = rng.choice((0.2, 0.4, 0.7))
        kinds = [rng.choice(CHURN), *(it for it in self.all if rng.random() < share)]
        if rng.random() < 0.5:
            kinds.append("other voters")
        self.kinds = list(only) or kinds
        self.ambush = rng.choice((0.0, 0.03, 0.1, 0.3))
        cluster.watch = self.lie_in_wait
        cluster.weather = Weather(
            loss=rng.choice((0.0, 0.0, 0.05, 0.3)),
            repeats=rng.choice((0.0, 0.1)),
            delay_s=rng.choice((0.002, 0.02, 0.1, 0.2)),
            straggling=rng.choice((0.0, 0.02, 0.1)),
            sync_s=rng.choice((0.002, 0.02, 0.2)),
        )

    def go(self) -> None:
        cluster = self.cluster
        cluster.trace(None, f"faults: {', '.join(dict.fromkeys(self.kinds))}; {cluster.weather}")
        for member in cluster.members.values():
            member.start()
        cluster.later(0.05, None, self.append)
        cluster.later(self.pace, None, self.strike)
        cluster.run_until(self.faults_s)
        cluster.trace(None, "faults end")
        self.heal()

    # -- what clients do ---------------------------------------------------------------------

    def append(self) -> None:
        rng = self.rng
        for member in self.cluster.members.values():
            if rng.random() < 0.7:
                self.append_to(member)
        self.cluster.later(rng.expovariate(8.0), None, self.append)

    def append_to(self, member: Member) -> None:
        if member.up and not member.paused:
            role = member.group.role
            if isinstance(role, Elected) and role.successor is None:
                for _ in range(self.rng.choice((1, 2, 3, 9))):
                    member.log.grow(member.group.term)
                member.sync()
                member.carry_out()

    # -- faults ------------------------------------------------------------------------------

    def strike(self) -> None:
        if self.cluster.now >= self.faults_s:
            return
        members = list(self.cluster.members.values())
        victim = self.rng.choice(members)
        leading = [it for it in members if it.up and isinstance(it.group.role, Elected)]
        if leading and self.rng.random() < 0.5:
            victim = self.rng.choice(leading)
            self.append_to(victim)  # something that nobody else has yet
        self.hit(victim)
        if self.rng.random() < 0.25:
            self.cluster.later(self.rng.expovariate(1.0), None, self.calm_down)
        else:
            self.cluster.later(self.rng.expovariate(1.0) * self.pace, None, self.strike)

    def hit(self, member: Member) -> None:
        if self.cluster.now < self.faults_s:
            kind = self.rng.choice(self.kinds)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.cluster.trace(None, f"fault: {kind} ({member.me.node})")
            self.all[kind](member)

    def calm_down(self) -> None:
        """Faults come in waves: without a leader now and then, little can go wrong."""
        rng = self.rng
        if rng.random() < 0.9:
            self.cluster.cut.clear()
        for member in self.cluster.members.values():
            if member.paused and rng.random() < 0.9:
                member.go_on()
        self.cluster.later(rng.choice((0.3, 1.0, 2.0)) * rng.random(), None, self.strike)

    def lie_in_wait(self, member: Member, effect: Effect) -> None:
        """The most interesting moment is just after something was decided."""
        rng = self.rng
        voters, end = member.log.voters, member.log.position.offset
        is_change_of_voters = voters is not None and voters[0] == end - 1
        if isinstance(effect, Sync | Committed) and not is_change_of_voters:
            return
        if rng.random() < self.ambush * (1 + 2 * is_change_of_voters):
            self.cluster.later(rng.expovariate(50.0), None, lambda: self.hit(member))

    def stop(self, member: Member, *, power: bool) -> None:
        if member.up:
            member.stop(power=power)
            rate = self.rng.choice((2.0, 20.0, 50.0))
            self.cluster.later(self.rng.expovariate(rate), None, lambda: self.start(member))

    def start(self, member: Member) -> None:
        if not member.up:
            member.start()

    def kill(self, member: Member) -> None:
        self.stop(member, power=False)

    def cut_power(self, member: Member) -> None:
        if member.up:
            self.stop(member, power=not member.flush_os or self.may_die(member))

    def cut_all_power(self, _: Member) -> None:
        for member in self.cluster.members.values():
            self.stop(member, power=not member.flush_os)

    def wipe(self, member: Member) -> None:
        if member.up and self.may_die(member):
            self.kill(member)
            member.wipe()

    def may_die(self, member: Member) -> bool:
        """Whether every set of voters that may come into force can spare it; then it will die."""
        members = self.cluster.members.values()
        history = self.cluster.invariants.history
        last = history[-1].config if history else None
        found: dict[Voters, None] = {last[1] if last else self.cluster.first_voters: None}
        for it in members:
            for entry in it.log.entries:
                if entry.config is not None and entry.config[0] >= len(history):
                    found[entry.config[1]] = None
        # A leader may still make a voter of one that died a moment ago.
        lately = [who for who, when in self.dead if when > self.cluster.now - 8.0]
        alive = {it.me for it in members} - {member.me}
        for voters in found:
            possible = {*voters, *lately, member.me}
            if len(alive & possible) < majority(len(possible)):
                return False
        self.dead.append((member.me, self.cluster.now))
        return True

    def pause(self, member: Member) -> None:
        if member.up and not member.paused:
            length = self.rng.expovariate(1.0)
            member.pause(60.0 * self.rng.random() if self.rng.random() < 0.03 else length)

    def isolate(self, member: Member) -> None:
        self.separate([member.me.node])

    def split(self, _: Member) -> None:
        nodes = list(self.cluster.members)
        self.separate(self.rng.sample(nodes, self.rng.randint(1, len(nodes))))

    def separate(self, some: list[int]) -> None:
        cut = self.cluster.cut
        cut.clear()
        for a in some:
            for b in self.cluster.members:
                if b not in some:
                    cut.update({(a, b), (b, a)})
        self.cluster.trace(None, "apart from the others:", sorted(some))
        self.mend()

    def mend(self) -> None:
        """Some time later, all links work again."""
        if self.rng.random() < 0.8:
            self.cluster.later(self.rng.expovariate(1.0), None, self.cluster.cut.clear)

    def one_way(self, member: Member) -> None:
        nodes = list(self.cluster.members)
        pairs = [(a, b) for a in nodes for b in nodes if a != b]
        if pairs:
            self.cluster.cut.update(self.rng.sample(pairs, self.rng.randint(1, len(nodes) - 1)))
            self.mend()

    def retarget(self, _: Member) -> None:
        nodes = list(self.cluster.members)
        self.cluster.target = self.rng.sample(nodes, self.rng.randint(1, len(nodes)))
        self.cluster.trace(None, "target", self.cluster.target)

    def hand_over(self, member: Member) -> None:
        if member.up and not member.paused:
            node = self.rng.choice(list(self.cluster.members))
            member.group.hand_over(node, self.cluster.now)
            member.carry_out()

    def lose_leader(self, member: Member) -> None:
        if member.up and not member.paused:
            member.group.leader_lost(self.cluster.now)
            member.carry_out()

    def campaign(self, member: Member) -> None:
        """An order to take over that comes at any time: nothing may depend on its not coming."""
        if member.up and not member.paused:
            member.group.handed(self.cluster.now, member.group.term)
            member.carry_out()

    def duel(self, member: Member) -> None:
        """All stand at once, and one whom they ask has been gone for a moment."""
        for it in self.cluster.members.values():
            self.campaign(it)
        self.cluster.later(self.rng.expovariate(30.0), None, lambda: self.blink(member))

    def blink(self, member: Member) -> None:
        if member.up and not member.flush_os:
            member.stop(power=True)
            self.cluster.later(self.rng.expovariate(50.0), None, lambda: self.start(member))

    def retire(self, member: Member) -> None:
        """Old records go; never what is not committed, nor what is not durable."""
        log = member.log
        if member.up:
            end = min(member.group.high_watermark, log.durable_position.offset)
            if end > log.start_offset:
                log.start_offset = self.rng.randint(log.start_offset, end)

    # -- healing -----------------------------------------------------------------------------

    def heal(self) -> None:
        cluster = self.cluster
        cluster.weather = CALM
        cluster.cut.clear()
        for member in cluster.members.values():
            if member.paused:
                member.go_on()
            self.start(member)
        if self.rng.random() < 0.5:
            cluster.era += 1
        else:
            cluster.run_until(cluster.now + 5.0)  # what was under way comes late
        if not self.can_heal():
            return
        limit = cluster.timing.silence_s + ROUNDS * cluster.timing.round_s
        if not cluster.run_until(cluster.now + limit, self.has_leader):
            raise Broken(f"no leader {limit} s after the last fault: {self.shown()}")
        if not cluster.run_until(cluster.now + 10.0, self.is_settled) and self.can_heal():
            raise Broken("the replicas don't settle: " + self.shown())

    def can_heal(self) -> bool:
        """Rarely, a leader made a voter of one that had just died: then all may be lost."""
        members = self.cluster.members.values()
        alive = {it.me for it in members}
        return all(
            len(alive.intersection(it.group.voters)) >= majority(len(it.group.voters))
            for it in members
            if it.log.position == max(other.log.position for other in members)
        )

    def leaders(self) -> list[Member]:
        return [it for it in self.cluster.members.values() if isinstance(it.group.role, Leader)]

    def has_leader(self) -> bool:
        return bool(self.leaders())

    def is_settled(self) -> bool:
        """All follow one leader and know all but the last of what is committed."""
        cluster = self.cluster
        members = cluster.members.values()
        leaders = self.leaders()
        if len(leaders) != 1 or len({it.group.term for it in members}) != 1:
            return False
        leader = leaders[0]
        if {it.node for it in leader.group.voters} != set(cluster.target):
            return False
        if any(cluster.members[it.node].me != it for it in leader.group.voters):
            return False
        lowest = min(it.group.high_watermark for it in members)
        return lowest > leader.group.high_watermark - 20 and lowest > 0

    def shown(self) -> str:
        return f"target {self.cluster.target}; " + "; ".join(
            f"{tuple(it.me)} {type(it.group.role).__name__} term {it.group.term} at "
            f"{tuple(it.log.position)} high {it.group.high_watermark} "
            f"voters {[tuple(voter) for voter in it.group.voters]}"
            for it in self.cluster.members.values()
        )


def failure_of(run: Run) -> str:
    """What is wrong with a run, if anything is."""
    try:
        run.go()
    except (Broken, RaftViolation) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_seed(seed: int, plan: Plan) -> Outcome:
    began = time.perf_counter()
    failure = details = ""
    with planted(PLANTS, plan.plant):
        run = Run(seed, faults_s=plan.minutes * 60, nodes=plan.nodes, only=plan.faults, traced=True)
        try:
            run.go()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            details = "".join(traceback.format_exception(error))
    cluster = run.cluster
    if plan.traces is not None and (failure or plan.always_trace):
        cluster.story.write(trace_path(plan.traces, seed), f"{failure}\n\n{details}")
    return Outcome(
        seed=seed,
        simulated_s=cluster.now,
        wall_s=time.perf_counter() - began,
        events=cluster.events,
        digest=cluster.story.digest(),
        acknowledged=len(cluster.invariants.history),
        faults=run.counts,
        failure=failure,
    )
