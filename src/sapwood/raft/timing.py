"""When to stand for election: soon, one after the other, and never for ever at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from sapwood.raft.words import Voters

_MOST_ROUNDS = 4


@dataclass(slots=True, frozen=True)
class Timing:
    """In seconds."""

    silence_s: float = 1.0
    """After this long without a word a node counts as gone."""
    round_s: float = 0.3
    """What an election may take before it is tried again."""
    stagger_s: float = 0.1
    """Between one successor's attempt and the next one's."""

    @property
    def resign_s(self) -> float:
        """After this long without a majority a leader gives up.

        It lets nobody read after a silence already. But on a machine that is too busy all leaders
        of a node would go at once, and elections are what it needs least.
        """
        return 5 * self.silence_s

    @property
    def attempts_s(self) -> float:
        """While nobody leads, each voter that can be reached is heard of within this time."""
        return self.silence_s + 2 * _MOST_ROUNDS * self.round_s

    def turn_s(self, me: int, voters: Voters, last_leader: int) -> float:
        """Successors stand one after the other, in the voters' order behind the last leader."""
        nodes = [it.node for it in voters]
        if me not in nodes:
            return len(nodes) * self.stagger_s
        first = nodes.index(last_leader) + 1 if last_leader in nodes else 0
        return (nodes.index(me) - first) % len(nodes) * self.stagger_s

    def patience_s(self, me: int, term: int, tried: int) -> float:
        """How long an attempt may take before the next one.

        Longer each time, and by another amount at each node each time: two that stood together
        and split the votes must not do so for ever, however long their messages take.
        """
        rounds = min(max(tried, 1), _MOST_ROUNDS)
        drawn = blake2b(b"%d %d %d" % (me, term, tried), digest_size=4)
        scatter = int.from_bytes(drawn.digest(), "big") / 2**32
        return self.round_s * rounds * (1 + scatter)
