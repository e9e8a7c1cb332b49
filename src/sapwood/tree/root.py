"""A core node as a place to hang from: it always has a way up, and it gives out beacons.

Every core node gives out its own. What the rule against loops needs of a beacon is only that it
is newer than what others have heard; so whoever needs a newer one asks for it, through its parent,
and the core node goes beyond it at once.
"""

from __future__ import annotations

from sapwood.tree.children import Children
from sapwood.tree.words import Advert, Attach, Claim, Effect, Place, Since, Timing


class Root:
    def __init__(self, me: Place, timing: Timing, now: float) -> None:
        self._me = me
        self._timing = timing
        self._children = Children(me, timing)
        self._cores: tuple[Place, ...] = (me,)
        self._beacon = 0
        self._next_beat = now
        self.tick(now)

    @property
    def deadline(self) -> float:
        """When it wants to be ticked: never, as long as nobody hangs from it."""
        if not self._children.places:
            return float("inf")
        return min(self._next_beat, self._children.deadline)

    @property
    def children(self) -> tuple[Place, ...]:
        return self._children.places

    def claims(self) -> tuple[Claim, ...]:
        """Who hangs below this core node, as they and their fathers say."""
        return self._children.claims()

    def take_effects(self) -> list[Effect]:
        return self._children.take_effects()

    def know_cores(self, me: Place, cores: tuple[Place, ...]) -> None:
        """Where this core node and all that live are."""
        self._me, self._cores = me, cores
        self._stand()

    def cut_off(self, is_cut_off: bool) -> None:
        """Whether it has been without a controller for so long that others may have one: then its
        children look for another way, and stay if there is none."""
        self._children.cut_off(is_cut_off)

    def asked(self, now: float, attach: Attach) -> None:
        self.tick(now)
        self._children.asked(now, attach)
        if self._children.wanted >= self._beacon:
            self._beacon = self._children.wanted + 1
            self._stand()

    def lost(self, node_id: int, since: Since) -> None:
        self._children.lost(node_id, since)

    def tick(self, now: float) -> None:
        if now >= self._next_beat:
            self._next_beat = now + self._timing.beat_s
            self._beacon += 1
            self._stand()
        self._children.tick(now)

    def _stand(self) -> None:
        self._children.stand(Advert(self._beacon, 0), (self._me,), self._cores)
