"""Plays a script: a few replicas, and nothing happens but what a line says.

Lines that begin with ">" are stage directions, the others what comes of them. Messages wait until
they are delivered; a vote is saved at once, a log is synced when the script says so. To write down
how scripts go: `python -m tests.raft.stage FILE …`.

    > start 0 1 2            these replicas start; the first line of all names the founding voters
    > elect 0 1 2            the common beginning: 0 leads for certain, and 1 and 2 are in step
    > wait 0.1 [without 0]   time passes, and timers are met, except at those who are stopped
    > deliver [0 1]          all messages and what they lead to, or only those from 0 to 1
    > lose 0 1               the messages from 0 to 1 are lost
    > fetch 1 [2 …]          each fetches once from its leader, and gets the answer
    > sync 0 [1 …]           their logs are synced
    > append 0 3             three records come to 0
    > kill 0, wipe 0         gone; gone together with all that it had
    > lost 1 [2 …]           they lose the link to their leader
    > hear 0 2               2 hears that 0 leads
    > target 0 1 2           their leader is to step towards these voters
    > hand 0 2               0 is to hand leadership over to 2
    > recover 0              an operator orders 0 to go on alone
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sapwood.raft import (
    NOBODY,
    START,
    Ask,
    Behind,
    Changed,
    Committed,
    Diverging,
    Effect,
    Elected,
    Follower,
    HandOver,
    HardState,
    NotLeader,
    Position,
    Save,
    Sync,
    Vote,
    VoteAnswer,
    Voter,
)
from sim.consensus.cluster import Cluster
from sim.consensus.member import Member
from sim.consensus.messages import Announce, Fetch, Fetched, Handed, Message


def name(who: Voter) -> str:
    return f"{who.node}" + "'" * who.incarnation


def names(voters: Sequence[Voter]) -> str:
    return " ".join(map(name, voters))


def at(position: Position) -> str:
    return "nothing" if position == START else f"{position.epoch}/{position.offset}"


def asked(vote: Vote) -> str:
    kind = "would you vote" if vote.pre else "vote"
    return f"{kind} for {name(vote.candidate)} at term {vote.term}? log {at(vote.position)}"


def told(message: Message) -> str:
    match message:
        case Vote():
            return asked(message)
        case VoteAnswer(term, voter, granted, pre, leader):
            answer = ("would vote" if pre else "votes") if granted else "no"
            led = "" if leader == NOBODY else f", {leader} leads"
            return f"{name(voter)}: {answer}, term {term}{led}"
        case Announce(leader, epoch):
            return f"{leader} leads at {epoch}"
        case Handed(epoch):
            return f"take over from epoch {epoch}"
        case Fetch(_, replica, epoch, position, durable, high_watermark):
            return (
                f"{name(replica)} follows at {epoch}, log {at(position)}, durable {at(durable)}, "
                f"committed {high_watermark}"
            )
        case Fetched(_, epoch, verdict, entries, high_watermark):
            match verdict:
                case Diverging():
                    return f"diverging, cut back to {at(Position(*verdict))}"
                case Behind():
                    return "behind, begin anew"
                case NotLeader(other, leader):
                    led = "" if leader == NOBODY else f", {leader} leads"
                    return f"not the leader, term {other}{led}"
            sent = " ".join(map(str, entries)) or "nothing new"
            return f"epoch {epoch}: {sent}, committed {high_watermark}"


def ordered(member: Member, effect: Effect) -> str | None:
    match effect:
        case Save(HardState(term, vote)):
            return f"saves term {term}" + (f", vote for {name(vote)}" if vote else "")
        case Ask(vote, nodes):
            return f"asks {' '.join(map(str, nodes))}: {asked(vote)}"
        case Changed():
            group = member.group
            led = f" of {group.leader}" if isinstance(group.role, Follower) else ""
            return f"is {type(group.role).__name__}{led}, term {group.term}"
        case Committed(offset):
            return f"committed {offset}"
        case HandOver(node, _):
            return f"hands over to {node}"
        case Sync():
            last, voters = member.log.entries[-1], member.log.voters
            if last.takes_offset and voters and voters[0] == last.position.offset - 1:
                return f"appends voters {names(voters[1])}"
            return None


class Actor(Member):
    """Does nothing by itself, and saves at once."""

    def later(self, delay_s: float, action: object) -> None: ...

    def save(self, state: HardState) -> None:
        self.persist(state)

    def sync(self) -> None: ...

    def fetch(self) -> None: ...

    def new_identity(self, incarnation: int) -> Voter:
        return Voter(self.me.node, self.me.incarnation + 1)


class Stage(Cluster):
    def __init__(self, founders: Sequence[int], nodes: int) -> None:
        super().__init__(0, nodes, founders, member=Actor)
        self.lines: list[str] = []
        self.mail: list[tuple[int, int, Message]] = []
        self.watch = self.note

    def note(self, member: Member, effect: Effect) -> None:
        line = ordered(member, effect)
        if line is not None and self.lines[-1] != (said := f"  {name(member.me)} {line}"):
            self.lines.append(said)

    def post(self, sender: Member, node: int, message: Message) -> None:
        self.invariants.told(sender, message)
        self.mail.append((sender.me.node, node, message))

    # -- directions --------------------------------------------------------------------------

    def play(self, direction: str) -> None:
        self.lines.append(f"> {direction}")
        verb, *rest = direction.split()
        getattr(self, f"do_{verb}")(*rest)

    def do_start(self, *nodes: str) -> None:
        for node in nodes:
            self.members[int(node)].start()

    def do_elect(self, node: str, *others: str) -> None:
        """The common beginning: it leads for certain, and the others follow in step."""
        said = len(self.lines)
        self.do_wait("0.05")
        self.do_deliver()
        self.do_sync(node)
        for _ in range(3):
            self.do_fetch(*others)
            self.do_sync(*others)
        self.mail.clear()
        del self.lines[said:]

    def do_wait(self, length: str, *without: str) -> None:
        end = self.now + float(length)
        stopped = {int(it) for it in without[1:]}
        awake = [it for it in self.members.values() if it.up and it.me.node not in stopped]
        while awake:
            member = min(awake, key=lambda it: it.group.deadline)
            if member.group.deadline > end:
                break
            self.now = max(self.now, member.group.deadline)
            member.tick()
        self.now = end
        for member in awake:
            member.tick()

    def do_deliver(self, *between: str) -> None:
        found = True
        while found:
            found = False
            for letter in list(self.mail):
                if self._is_between(letter, between):
                    self.mail.remove(letter)
                    self.hand(*letter)
                    found = not between

    def do_lose(self, *between: str) -> None:
        self.mail = [it for it in self.mail if not self._is_between(it, between)]

    def _is_between(self, letter: tuple[int, int, Message], between: Sequence[str]) -> bool:
        return not between or [letter[0], letter[1]] == [int(it) for it in between]

    def hand(self, source: int, node: int, message: Message) -> None:
        member = self.members[node]
        if member.up:
            self.lines.append(f"  {source} -> {node}: {told(message)}")
            member.receive(source, message)

    def do_fetch(self, *nodes: str) -> None:
        for node in nodes:
            Member.fetch(self.members[int(node)])
            for kind in (Fetch, Fetched):
                for letter in [it for it in self.mail if isinstance(it[2], kind)]:
                    self.mail.remove(letter)
                    self.hand(*letter)

    def do_sync(self, *nodes: str) -> None:
        for node in nodes:
            member = self.members[int(node)]
            member.synced(len(member.log.entries), member.log.truncations)

    def do_append(self, node: str, count: str) -> None:
        member = self.members[int(node)]
        assert isinstance(member.group.role, Elected)
        for _ in range(int(count)):
            member.log.grow(member.group.term)

    def do_kill(self, node: str) -> None:
        member = self.members[int(node)]
        member.stop(power=False)
        self.mail = [it for it in self.mail if it[1] != member.me.node]

    def do_wipe(self, node: str) -> None:
        self.do_kill(node)
        self.members[int(node)].wipe()

    def do_lost(self, *nodes: str) -> None:
        for node in nodes:
            member = self.members[int(node)]
            member.group.leader_lost(self.now)
            member.carry_out()

    def do_target(self, *nodes: str) -> None:
        for member in self.members.values():
            if member.up and isinstance(member.group.role, Elected):
                member.group.step_towards([int(it) for it in nodes], self.now)
                member.carry_out()

    def do_hand(self, node: str, successor: str) -> None:
        member = self.members[int(node)]
        member.group.hand_over(int(successor), self.now)
        member.carry_out()

    def do_hear(self, leader: str, *nodes: str) -> None:
        term = self.members[int(leader)].group.term
        for node in nodes:
            self.hand(int(leader), int(node), Announce(int(leader), term))

    def do_recover(self, node: str) -> None:
        member = self.members[int(node)]
        member.group.recover(self.now)
        member.carry_out()


def played(script: str) -> str:
    """The script as it really goes: its directions, and what comes of them."""
    lines = script.splitlines()
    title = [it for it in lines if it.startswith("#")]
    directions = [it.removeprefix("> ") for it in lines if it.startswith("> ")]
    founders = [int(it) for it in directions[0].split()[1:]]
    nodes = {int(it) for line in directions for it in line.split()[1:] if it.isdigit()}
    stage = Stage(founders, max(nodes) + 1)
    for direction in directions:
        stage.play(direction)
    return "\n".join([*title, *stage.lines]) + "\n"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
