"""An edge's rules: whom it hangs from, and to whom it turns when that one is gone.

    SEEKING ──▶ ASKING ──▶ ATTACHED ◀──▶ ADRIFT
       ▲ ◀─────── │            │           │
       └──────────┴────────────┴───────────┘

SEEKING pauses before another round; ASKING waits for one that may become the parent, or for the
supervisor; ADRIFT has a parent that has no way up at present. Only ATTACHED takes children in.

One whose parent is a core node that is cut off from the controller asks the others for the
supervisor now and then, and goes where that sends it. It stays while nobody answers: if the core
has no quorum at all, every place is as good as this one.

No loops, by Babel's rule of feasibility. An edge remembers the best `Advert` that it ever gave. It
takes an edge for its parent only if that one's advert is better still. Whoever is below it got
their adverts from it, and theirs are worse: they never qualify. Its ancestors always do, so it can
heal by what it knows. For siblings and strangers a newer beacon may be needed, which is asked for
on the way. Core nodes hang from nobody, and may always be hung from.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator

from sapwood.tree.children import Children
from sapwood.tree.words import (
    NOWHERE,
    Advert,
    Answer,
    Ask,
    AskSupervisor,
    Attach,
    Changed,
    Claim,
    Effect,
    Part,
    Place,
    Refused,
    Since,
    Standing,
    Timing,
    TreeViolation,
)

NEVER = float("inf")
_MOST_DOUBLINGS = 10


class Phase(enum.Enum):
    SEEKING = enum.auto()
    ASKING = enum.auto()
    ATTACHED = enum.auto()
    ADRIFT = enum.auto()


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.SEEKING: frozenset({Phase.ASKING}),
    Phase.ASKING: frozenset({Phase.SEEKING, Phase.ASKING, Phase.ATTACHED}),
    Phase.ATTACHED: frozenset({Phase.SEEKING, Phase.ADRIFT}),
    Phase.ADRIFT: frozenset({Phase.SEEKING, Phase.ATTACHED}),
}


class _Supervisor:
    """Stands for whomever the supervisor names, among those that are asked in turn."""


SUPERVISOR = _Supervisor()


class Edge:
    """`draw` gives numbers in [0, 1): the only randomness there is.

    `known` are places to begin with: core nodes, or whoever else may be there. The supervisor is
    asked at them as well. `offered` is the father that it has named already, if it has.
    """

    def __init__(
        self,
        me: Place,
        incarnation: int,
        known: tuple[Place, ...],
        timing: Timing,
        draw: Callable[[], float],
        now: float,
        offered: Place | None = None,
    ) -> None:
        self.me = me
        self.phase = Phase.SEEKING
        self.parent: Place | None = None
        self.ancestors: tuple[Place, ...] = ()
        """The parent first, a core node last; those of the lost parent, while there is none."""
        self.siblings: tuple[Place, ...] = ()
        self.cores: tuple[Place, ...] = ()
        self.feasible: Advert = NOWHERE
        """The best advert that was ever given: it only gets better."""
        self.load = 0
        self._incarnation = incarnation
        self._known = known
        self._timing = timing
        self._draw = draw
        self._children = Children(me, timing)
        self._effects: list[Effect] = []
        # Looking for a parent
        self._queue: deque[Place | _Supervisor] = deque([offered] if offered else [])
        self._asked: Place | _Supervisor | None = None
        self._offers = 0
        self._rounds = 0
        self._is_cut_off = False
        """Whether the parent says so of itself."""
        self._left_behind: tuple[Place, ...] = ()
        """Children when the parent was lost: they may find a way up before this one does."""
        self._lost_at: float | None = None
        self._healing_ms = 0
        # Asking one that is, or may become, the parent
        self._way: Place | None = None
        """Where that one is, as it was found; it may call itself otherwise."""
        self._attachments = 0
        self._number = 0
        self._answered = 0
        self._seen = -1
        self._told: tuple[object, ...] = ()
        self._claims: tuple[Claim, ...] = ()
        self._claims_number = 0
        # Moments
        self._deadline = now
        """Of the phase: the next round, the end of an attempt, or of patience."""
        self._heard_at = now
        self._sent_at = now

    # -- what others see ---------------------------------------------------------------------

    @property
    def advert(self) -> Advert | None:
        """None without a way up."""
        return self._children.standing.advert

    @property
    def since(self) -> Since:
        return Since(self._incarnation, self._attachments)

    @property
    def children(self) -> tuple[Place, ...]:
        return self._children.places

    @property
    def healing_ms(self) -> int:
        """How long it took last to find another parent; 0 if none was lost yet."""
        return self._healing_ms

    @property
    def deadline(self) -> float:
        """When it wants to be ticked."""
        due = min(self._deadline, self._children.deadline)
        return min(due, self._silent_at(), self._again_at()) if self._has_parent() else due

    def claims(self) -> tuple[Claim, ...]:
        """Who hangs below, as they and their fathers say."""
        return self._children.claims()

    def take_effects(self) -> list[Effect]:
        effects = self._effects + self._children.take_effects()
        self._effects = []
        return effects

    # -- time --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        self._children.tick(now)
        if self._has_parent() and now >= self._silent_at():
            self._lose(now)
        elif now >= self._deadline:
            match self.phase:
                case Phase.SEEKING:
                    self._queue.extend(self._candidates())
                    self._ask_next(now)
                case Phase.ASKING:
                    self._fail(now)
                case Phase.ADRIFT:
                    self._lose(now)
                case Phase.ATTACHED:
                    self._look_round(now)
        elif self._has_parent() and now >= self._again_at():
            self._send(now, renewing=True)
        self._pass_on(now)

    def _has_parent(self) -> bool:
        return self.phase in (Phase.ATTACHED, Phase.ADRIFT)

    def _silent_at(self) -> float:
        return self._heard_at + self._timing.silence_s

    def _again_at(self) -> float:
        """A request or its answer may have been lost on the way."""
        return self._sent_at + 2 * self._timing.beat_s

    def _become(self, phase: Phase, deadline: float) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise TreeViolation(f"edge {self.me.node_id}: {self.phase} can't become {phase}")
        self.phase = phase
        self._deadline = deadline
        self._effects.append(Changed())

    # -- looking for a parent ----------------------------------------------------------------

    def _candidates(self) -> Iterator[Place | _Supervisor]:
        """Whom to ask, in this order: those above, the supervisor, the core, those beside."""
        lost, above = self.ancestors[:1], self.ancestors[1:]
        beside = (*self.siblings, *lost, *self._known, *self._left_behind)
        turns: list[Place | _Supervisor] = [*above, SUPERVISOR, *self.cores, *beside]
        seen = {(self.me.host, self.me.port)}
        for it in turns:
            if isinstance(it, Place):
                if (it.host, it.port) in seen:
                    continue
                seen.add((it.host, it.port))
            yield it

    def _ask_next(self, now: float) -> None:
        self._asked = self._way = None
        if not self._queue:
            pause_s = self._timing.first_pause_s * 2 ** min(self._rounds, _MOST_DOUBLINGS)
            pause_s = min(pause_s, self._timing.longest_pause_s) * (0.5 + self._draw())
            self._rounds += 1
            self._become(Phase.SEEKING, now + pause_s)
            return
        self._asked = asked = self._queue.popleft()
        if isinstance(asked, Place):
            self._attachments += 1
            self._way = asked
            self._become(Phase.ASKING, now + self._timing.attempt_s)
            self._send(now, renewing=False)
        else:
            self._become(Phase.ASKING, now + self._timing.supervisor_s)
            self._ask_supervisor()

    def _ask_supervisor(self) -> None:
        self._offers += 1
        places = {(it.host, it.port): it for it in (*self.cores, *self._known)}
        if self._way is not None:
            places.pop((self._way.host, self._way.port), None)
        self._effects.append(AskSupervisor(self._offers, tuple(places.values())))

    def _look_round(self, now: float) -> None:
        """The parent is cut off, others may not be."""
        self._deadline = now + 2 * self._timing.supervisor_s * (0.5 + self._draw())
        self._ask_supervisor()

    def offered(self, now: float, number: int, place: Place | None) -> None:
        """The supervisor named somebody; or nobody answered for it."""
        if self.phase is Phase.ASKING and self._asked is SUPERVISOR and number == self._offers:
            if place is not None:
                self._queue.appendleft(place)
            self._ask_next(now)
        elif self.phase is Phase.ATTACHED and self._is_cut_off and place not in (None, self.parent):
            self._lose(now, place)

    def _fail(self, now: float) -> None:
        """The one that was asked won't be the parent."""
        if self._way is not None:
            self._effects.append(Part(self._way, self.since))
        self._ask_next(now)

    # -- a parent's answers ------------------------------------------------------------------

    def answered(self, now: float, since: Since, answer: Answer) -> None:
        if since != self.since or answer.number <= self._answered:
            return  # to something that was given up, or overtaken
        self._answered = answer.number
        if self.phase is Phase.ASKING and self._way is not None:
            if isinstance(answer, Refused) or not self._may_hang_from(answer.standing):
                self._fail(now)
            else:
                self._attach(now, answer.standing)
        elif self._has_parent():
            if isinstance(answer, Refused):
                self._lose(now)
                return
            self._heard_at = now
            self._take(now, answer.standing)
            if answer.number == self._number:
                self._send(now, renewing=True)

    def _may_hang_from(self, standing: Standing) -> bool:
        advert = standing.advert
        if advert is None or not standing.ancestors:
            return False
        return advert.depth == 0 or advert.is_better_than(self.feasible)

    def _attach(self, now: float, standing: Standing) -> None:
        self._become(Phase.ATTACHED, NEVER)
        self._heard_at = now
        self._rounds = 0
        if self._lost_at is not None:
            self._healing_ms = max(1, round(1000 * (now - self._lost_at)))
        self._lost_at = self._asked = None
        self._queue.clear()
        self._take(now, standing)
        self._send(now, renewing=True)

    def _take(self, now: float, standing: Standing) -> None:
        """What the parent says of itself says how this one stands."""
        self._seen = standing.version
        self.siblings = standing.siblings
        self.cores = standing.cores or self.cores
        if standing.ancestors:
            self.ancestors = standing.ancestors
            self.parent = standing.ancestors[0]
        if standing.advert is None:
            if self.phase is Phase.ATTACHED:
                self._become(Phase.ADRIFT, now + self._timing.patience_s * (1 + self._draw()))
            self._stand(None)
            return
        if self.phase is Phase.ADRIFT:
            self._become(Phase.ATTACHED, NEVER)
        self._is_cut_off = standing.is_cut_off
        if not self._is_cut_off:
            self._deadline = NEVER
        elif self._deadline == NEVER:
            self._deadline = now + self._timing.beat_s * self._draw()
        mine = Advert(standing.advert.beacon, standing.advert.depth + 1)
        if mine.is_better_than(self.feasible):
            self.feasible = mine
        self._stand(mine)

    def _stand(self, advert: Advert | None) -> None:
        self._children.stand(advert, (self.me, *self.ancestors), self.cores)

    # -- the parent is gone ------------------------------------------------------------------

    def lost(self, now: float, since: Since) -> None:
        """The connection over which this attachment, or the attempt at it, went has ended."""
        if since != self.since:
            return
        if self._has_parent():
            self._lose(now)
        elif self._way is not None:
            self._fail(now)

    def _lose(self, now: float, offered: Place | None = None) -> None:
        if self._way is not None:
            self._effects.append(Part(self._way, self.since))
        self.parent = None
        self._lost_at = now
        self._left_behind = self.children
        self._become(Phase.SEEKING, now)
        self._stand(None)
        self._queue = deque([*([offered] if offered else []), *self._candidates()])
        self._ask_next(now)

    # -- children ----------------------------------------------------------------------------

    def asked(self, now: float, attach: Attach) -> None:
        self._children.asked(now, attach)
        self._pass_on(now)

    def child_lost(self, now: float, node_id: int, since: Since) -> None:
        self._children.lost(node_id, since)
        self._pass_on(now)

    # -- asking ------------------------------------------------------------------------------

    def _pass_on(self, now: float) -> None:
        """News from below go up at once, without waiting for an answer."""
        if self._has_parent() and self._told != self._news():
            self._send(now, renewing=True)

    def _news(self) -> tuple[object, ...]:
        """Loads change all the time, and can wait for the next beat."""
        return self._wanted(), [(it.child, it.father, it.since) for it in self.claims()]

    def _wanted(self) -> int:
        wanted, advert = self._children.wanted, self.advert
        return wanted if advert is None or wanted >= advert.beacon else -1

    def _send(self, now: float, *, renewing: bool) -> None:
        if self._way is None:
            raise TreeViolation(f"edge {self.me.node_id} has nobody to ask")
        claims = self.claims()
        is_known = renewing and claims == self._claims and self._answered >= self._claims_number
        self._number += 1
        self._sent_at = now
        self._told = self._news()
        if not is_known:
            self._claims, self._claims_number = claims, self._number
        attach = Attach(
            child=self.me,
            since=self.since,
            number=self._number,
            renewing=renewing,
            feasible=self.feasible,
            wanted=self._wanted(),
            seen=self._seen if renewing else -1,
            claims=None if is_known else claims,
            healing_ms=self._healing_ms,
            load=self.load,
        )
        self._effects.append(Ask(self._way, attach))
