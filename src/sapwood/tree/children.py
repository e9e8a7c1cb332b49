"""A parent's side: who hangs below it, what they wait for, and what they have to say.

The same at a core node and at an edge. A child always has a request waiting here, as a fetch waits
for records: the next beacon answers it, and a newer request releases it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.tree.words import (
    LARGEST_BEACON,
    Advert,
    Attach,
    Attached,
    Changed,
    Claim,
    Effect,
    Place,
    Refusal,
    Refused,
    Reply,
    Since,
    Standing,
    Timing,
)

MOST_CHILDREN = 64
"""Far above what the supervisor gives one: orphans are better off in a crowd than nowhere."""
MOST_DEPTH = 64
MOST_CLAIMS = 10_000


@dataclass(slots=True)
class _Child:
    place: Place
    since: Since
    heard_at: float
    number: int = 0
    has_come: bool = False
    """It was taken in, and has taken that."""
    claims: tuple[Claim, ...] = ()
    healing_ms: int = 0
    load: int = 0
    waiting: Attach | None = None
    waiting_since: float = 0.0

    def said(self, attach: Attach) -> bool:
        """Whether this is news about what hangs below."""
        before = self.place, self.claims, self.healing_ms, self.load
        self.place, self.healing_ms, self.load = attach.child, attach.healing_ms, attach.load
        if attach.claims is not None:
            self.claims = attach.claims[:MOST_CLAIMS]
        return before != (self.place, self.claims, self.healing_ms, self.load)


class Children:
    def __init__(self, me: Place, timing: Timing) -> None:
        self._me = me
        self._timing = timing
        self._children: dict[int, _Child] = {}
        self._standing = Standing(0, None, (), ())
        self._effects: list[Effect] = []
        self.wanted = -1
        """The newest beacon that wasn't new enough for somebody here."""

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(it.place for it in self._children.values())

    @property
    def standing(self) -> Standing:
        """Of the node, as its children are told."""
        return self._standing

    @property
    def deadline(self) -> float:
        return min(map(self._due, self._children.values()), default=float("inf"))

    def claims(self) -> tuple[Claim, ...]:
        """Of all who hang below this node, near ones first."""
        near = [
            Claim(it.place, self._me.node_id, it.since, it.healing_ms, it.load)
            for it in self._children.values()
            if it.has_come
        ]
        return (*near, *(claim for it in self._children.values() for claim in it.claims))

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # -- how this node stands ----------------------------------------------------------------

    def stand(
        self, advert: Advert | None, ancestors: tuple[Place, ...], cores: tuple[Place, ...]
    ) -> None:
        """This is what children and those who want to be are to be told from now on."""
        now = (advert, ancestors, cores)
        if now != self._standing[1:4]:
            advert, ancestors, cores = now
            self._standing = self._standing._replace(
                version=self._standing.version + 1, advert=advert, ancestors=ancestors, cores=cores
            )
            self._release()

    def cut_off(self, is_cut_off: bool) -> None:
        """Whether this node, a core node, has long been without a controller."""
        if is_cut_off != self._standing.is_cut_off:
            version = self._standing.version + 1
            self._standing = self._standing._replace(version=version, is_cut_off=is_cut_off)
            self._release()

    def _release(self) -> None:
        for child in list(self._children.values()):
            self._answer(child)

    # -- requests ----------------------------------------------------------------------------

    def asked(self, now: float, attach: Attach) -> None:
        child = self._children.get(attach.child.node_id)
        self._want(attach.wanted)
        if attach.renewing:
            if child is None or child.since != attach.since:
                self._refuse(attach, Refusal.NOT_A_CHILD)
                return
            if attach.number <= child.number:
                self._reply(child, attach.number)  # a later one has overtaken it
                return
            if not child.has_come:
                child.has_come = True
                self._effects.append(Changed())
        else:
            refusal = self._refusal(attach, child)
            if refusal is not None:
                self._refuse(attach, refusal)
                return
            if child is not None and child.waiting is not None:
                self._refuse(child.waiting, Refusal.NOT_A_CHILD)
            child = self._children[attach.child.node_id] = _Child(attach.child, attach.since, now)
            self._standing = self._standing._replace(version=self._standing.version + 1)
            self._effects.append(Changed())
        advert = self._standing.advert
        if advert is not None and advert.beacon < attach.feasible.beacon:
            self._want(attach.feasible.beacon)
        self._answer(child)
        child.heard_at = child.waiting_since = now
        child.waiting, child.number = attach, attach.number
        if child.said(attach):
            self._effects.append(Changed())
        if attach.seen != self._standing.version:
            self._answer(child)

    def _refusal(self, attach: Attach, child: _Child | None) -> Refusal | None:
        standing, node_id = self._standing, attach.child.node_id
        if standing.advert is None or len(standing.ancestors) > MOST_DEPTH:
            return Refusal.NO_WAY_UP
        if any(it.node_id == node_id for it in standing.ancestors):
            return Refusal.BELOW
        if child is not None and child.since >= attach.since:
            return Refusal.NOT_A_CHILD  # it took another way since it has asked for this
        if child is None and len(self._children) >= MOST_CHILDREN:
            return Refusal.FULL
        if standing.advert.depth and not standing.advert.is_better_than(attach.feasible):
            self._want(attach.feasible.beacon)
            return Refusal.NOT_BETTER
        return None

    def _want(self, beacon: int) -> None:
        self.wanted = max(self.wanted, min(beacon, LARGEST_BEACON))

    def _refuse(self, attach: Attach, reason: Refusal) -> None:
        answer = Refused(attach.number, reason)
        self._effects.append(Reply(attach.child.node_id, attach.since, answer))

    def _answer(self, child: _Child) -> None:
        if child.waiting is not None:
            self._reply(child, child.waiting.number)
            child.waiting = None

    def _reply(self, child: _Child, number: int) -> None:
        siblings = tuple(it.place for it in self._children.values() if it is not child)
        answer = Attached(number, self._standing._replace(siblings=siblings))
        self._effects.append(Reply(child.place.node_id, child.since, answer))

    # -- loss and time -----------------------------------------------------------------------

    def lost(self, node_id: int, since: Since) -> None:
        """The child's connection has ended."""
        child = self._children.get(node_id)
        if child is not None and child.since == since:
            self._drop(child)

    def _drop(self, child: _Child) -> None:
        del self._children[child.place.node_id]
        if child.waiting is not None:
            self._refuse(child.waiting, Refusal.NOT_A_CHILD)
        self._standing = self._standing._replace(version=self._standing.version + 1)
        self._effects.append(Changed())

    def tick(self, now: float) -> None:
        for child in list(self._children.values()):
            if now - child.heard_at >= self._timing.silence_s:
                self._drop(child)
            elif child.waiting is not None and self._due(child) <= now:
                self._answer(child)

    def _due(self, child: _Child) -> float:
        silent_at = child.heard_at + self._timing.silence_s
        if child.waiting is None:
            return silent_at
        return min(silent_at, child.waiting_since + self._timing.beat_s)
