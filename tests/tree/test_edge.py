"""One edge by itself: what it asks, what it takes for an answer, and what it does about silence."""

from __future__ import annotations

from typing import TypeVar

import pytest

from sapwood.tree.edge import Edge, Phase
from sapwood.tree.words import (
    NOWHERE,
    Advert,
    Ask,
    AskSupervisor,
    Attach,
    Attached,
    Effect,
    Part,
    Place,
    Refusal,
    Refused,
    Reply,
    Since,
    Standing,
    Timing,
)

T = TypeVar("T")

CORE, OTHER_CORE = Place(0, "core", 1), Place(1, "other", 1)
ME = Place(10_000, "me", 1)
B, D, SIBLING = Place(10_001, "b", 1), Place(10_002, "d", 1), Place(10_003, "s", 1)
CHILD = Place(10_009, "child", 1)
TIMING = Timing()


def only(kind: type[T], effects: list[Effect]) -> T:
    (found,) = [it for it in effects if isinstance(it, kind)]
    return found


class Driven:
    """An edge, the time, and the answers that it gets."""

    def __init__(self, known: tuple[Place, ...] = (CORE,), offered: Place | None = None) -> None:
        self.now = 0.0
        self.edge = Edge(ME, 1, known, TIMING, lambda: 0.5, 0.0, offered)
        self.effects: list[Effect] = []
        self.act()

    @property
    def phase(self) -> Phase:
        return self.edge.phase

    def act(self) -> list[Effect]:
        self.effects = self.edge.take_effects()
        return self.effects

    def wait(self, length_s: float) -> list[Effect]:
        """What was done meanwhile."""
        end, done = self.now + length_s, []
        while self.edge.deadline <= end:
            self.now = max(self.now, self.edge.deadline)
            self.edge.tick(self.now)
            done += self.act()
        self.now = end
        return done

    def answer(
        self,
        advert: Advert | None,
        *ancestors: Place,
        siblings: tuple[Place, ...] = (),
        is_cut_off: bool = False,
    ) -> list[Effect]:
        """The parent, or whoever was asked to be it, answers what it was asked last."""
        version = advert.beacon if advert is not None else -7
        cores = CORE, OTHER_CORE
        standing = Standing(version, advert, ancestors, cores, siblings, is_cut_off)
        self.edge.answered(self.now, self.edge.since, Attached(self.edge._number, standing))
        return self.act()

    def refuse(self, reason: Refusal) -> list[Effect]:
        self.edge.answered(self.now, self.edge.since, Refused(self.edge._number, reason))
        return self.act()

    def lose(self) -> list[Effect]:
        self.edge.lost(self.now, self.edge.since)
        return self.act()

    def offer(self, place: Place | None) -> list[Effect]:
        self.edge.offered(self.now, self.edge._offers, place)
        return self.act()

    def ask(self, child: Place = CHILD, feasible: Advert = NOWHERE) -> list[Effect]:
        attach = Attach(child, Since(1, 1), 1, renewing=False, feasible=feasible, wanted=-1)
        self.edge.asked(self.now, attach)
        return self.act()


def attached(*ancestors: Place, siblings: tuple[Place, ...] = ()) -> Driven:
    it = Driven(offered=ancestors[0])
    it.wait(0.0)
    it.answer(Advert(10, len(ancestors) - 1), *ancestors, siblings=siblings)
    assert it.phase is Phase.ATTACHED
    return it


def test_it_begins_with_the_supervisor_and_hangs_from_whom_it_is_offered() -> None:
    it = Driven()
    assert only(AskSupervisor, it.wait(0.0)).places == (CORE,)
    asked = only(Ask, it.offer(B))
    assert asked.place == B
    assert not asked.attach.renewing
    renewal = only(Ask, it.answer(Advert(5, 1), B, CORE))
    assert renewal.attach.renewing
    assert it.edge.parent == B
    assert it.edge.advert == it.edge.feasible == Advert(5, 2)
    assert it.edge.ancestors == (B, CORE)


def test_without_a_supervisor_it_asks_those_it_knows_and_then_pauses_ever_longer() -> None:
    it = Driven()
    it.wait(0.0)
    assert only(Ask, it.offer(None)).place == CORE
    it.refuse(Refusal.FULL)
    assert it.phase is Phase.SEEKING
    pauses = []
    for _ in range(8):
        pauses.append(it.edge.deadline - it.now)
        it.wait(pauses[-1])
        it.offer(None)
        it.refuse(Refusal.FULL)
    assert pauses == sorted(pauses)
    assert pauses[-1] == TIMING.longest_pause_s


def test_an_orphan_turns_to_its_ancestors_the_supervisor_the_core_and_those_beside() -> None:
    it = attached(D, B, CORE, siblings=(SIBLING,))
    asked = [only(Ask, it.lose()).place]
    for _ in range(2):
        effects = it.refuse(Refusal.FULL)
        asked += [effect.place for effect in effects if isinstance(effect, Ask)]
    assert asked == [B, CORE]
    only(AskSupervisor, effects)
    rest = [only(Ask, it.offer(None)).place]
    while it.phase is Phase.ASKING:
        rest += [effect.place for effect in it.lose() if isinstance(effect, Ask)]
    assert rest == [OTHER_CORE, SIBLING, D]


def test_one_that_does_not_answer_costs_an_attempt() -> None:
    it = attached(D, B, CORE)
    it.lose()
    attempt = it.edge.since
    effects = it.wait(TIMING.attempt_s)
    assert Part(B, attempt) in effects
    assert only(Ask, effects).place == CORE


def test_a_descendant_never_qualifies_and_an_ancestor_always_does() -> None:
    it = attached(D, B, CORE)
    assert it.edge.feasible == Advert(10, 3)
    it.lose()
    it.answer(Advert(10, 4), B, CHILD, CORE)
    assert it.edge.parent is None, "by the same beacon it is further out: it may be below"
    it.answer(Advert(9, 1), CORE, OTHER_CORE)
    assert it.edge.parent is None, "nobody knows what has become of that one since"
    it = attached(D, B, CORE)
    it.lose()
    it.answer(Advert(10, 1), B, CORE)
    assert it.edge.parent == B


def test_a_core_node_may_always_be_hung_from() -> None:
    it = attached(D, B, CORE)
    it.lose()
    it.answer(Advert(3, 0), CORE)
    assert it.edge.parent == CORE
    assert it.edge.advert == Advert(3, 1)
    assert it.edge.feasible == Advert(10, 3), "what it once told others stays told"


def test_it_remembers_the_smallest_depth_under_a_beacon_when_its_parent_moves_outwards() -> None:
    it = attached(B, CORE)
    it.answer(Advert(11, 1), B, CORE)
    it.answer(Advert(11, 5), B, D, SIBLING, CORE)
    assert it.edge.advert == Advert(11, 6)
    assert it.edge.feasible == Advert(11, 2)


def test_ancestors_are_renewed_by_every_answer() -> None:
    it = attached(D, B, CORE)
    it.answer(Advert(11, 1), D, CORE)
    assert it.edge.ancestors == (D, CORE)
    assert only(Ask, it.lose()).place == CORE


def test_a_silent_parent_is_given_up_and_one_that_answers_is_not() -> None:
    it = attached(B, CORE)
    for _ in range(20):
        it.wait(TIMING.silence_s / 4)
        it.answer(Advert(12, 1), B, CORE)
    assert it.edge.parent == B
    since = it.edge.since
    effects = it.wait(TIMING.silence_s)
    assert Part(B, since) in effects
    assert it.edge.parent is None


def test_an_orphan_takes_nobody_in_and_tells_its_children() -> None:
    it = attached(B, CORE)
    assert isinstance(only(Reply, it.ask()).answer, Attached)
    number = 2
    renewal = Attach(
        CHILD, Since(1, 1), number, True, Advert(10, 3), -1, it.edge._children.standing.version
    )
    it.edge.asked(it.now, renewal)
    it.act()
    told = only(Reply, it.lose()).answer
    assert isinstance(told, Attached)
    assert told.standing.advert is None
    refused = only(Reply, it.ask(SIBLING)).answer
    assert refused == Refused(1, Refusal.NO_WAY_UP)


def test_it_stays_with_a_parent_without_a_way_up_for_a_while_and_then_looks_elsewhere() -> None:
    it = attached(D, B, CORE)
    phases = []
    for advert in (None, Advert(11, 1)):
        it.answer(advert, D, B, CORE)
        phases.append((it.phase, it.edge.advert))
    assert phases == [(Phase.ADRIFT, None), (Phase.ATTACHED, Advert(11, 2))]
    it.answer(None, D, CORE)
    for _ in range(12):
        it.wait(0.2)
        if it.phase is Phase.ADRIFT:
            it.answer(None, D, CORE)
    assert it.phase is Phase.ASKING


def beats(it: Driven, count: int, *, is_cut_off: bool = True) -> list[Effect]:
    """What is done while the parent, a core node, answers so often."""
    done: list[Effect] = []
    for _ in range(count):
        done += it.answer(Advert(11, 0), CORE, is_cut_off=is_cut_off)
        done += it.wait(TIMING.beat_s)
    return done


def test_it_leaves_a_core_node_that_is_cut_off_once_the_others_have_a_supervisor() -> None:
    it = attached(CORE)
    asked = [each for each in beats(it, 40) if isinstance(each, AskSupervisor)]
    assert 3 < len(asked) < 12, "now and then, as long as nobody answers"
    assert {each.places for each in asked} == {(OTHER_CORE,)}
    for nowhere in (None, CORE):
        it.offer(nowhere)
        assert it.edge.parent == CORE
    assert only(Ask, it.offer(OTHER_CORE)).place == OTHER_CORE
    assert it.edge.parent is None
    it.answer(Advert(3, 0), OTHER_CORE)
    assert it.edge.parent == OTHER_CORE


def test_it_stays_with_a_core_node_that_was_cut_off_and_is_no_longer() -> None:
    it = attached(CORE)
    assert any(isinstance(each, AskSupervisor) for each in beats(it, 8))
    assert not any(isinstance(each, AskSupervisor) for each in beats(it, 40, is_cut_off=False))
    it.offer(OTHER_CORE)
    assert it.edge.parent == CORE


def test_a_restarted_parent_that_knows_nothing_of_its_child_is_left() -> None:
    it = attached(B, CORE)
    effects = it.refuse(Refusal.NOT_A_CHILD)
    assert only(Ask, effects).place == CORE


def test_answers_to_what_was_given_up_change_nothing() -> None:
    it = attached(D, B, CORE)
    old = it.edge.since
    it.lose()
    before = it.phase, it.edge.parent
    it.edge.answered(it.now, old, Attached(99, Standing(1, Advert(99, 0), (CORE,), ())))
    it.edge.lost(it.now, old)
    assert (it.phase, it.edge.parent) == before


def test_what_changes_below_goes_up_at_once_and_is_told_once() -> None:
    it = attached(B, CORE)
    it.ask()
    it.edge.asked(it.now, Attach(CHILD, Since(1, 1), 2, True, NOWHERE, -1))
    sent = only(Ask, it.act()).attach
    assert sent.claims is not None
    assert [(claim.child, claim.father) for claim in sent.claims] == [(CHILD, ME.node_id)]
    assert only(Ask, it.answer(Advert(12, 1), B, CORE)).attach.claims is None
    gone = it.wait(TIMING.silence_s - 0.1)
    it.answer(Advert(13, 1), B, CORE)
    gone += it.wait(0.2)
    assert () in [effect.attach.claims for effect in gone if isinstance(effect, Ask)]


def test_whoever_needs_a_newer_beacon_has_it_asked_for() -> None:
    it = attached(B, CORE)
    effects = it.ask(feasible=Advert(10, 1))
    assert only(Reply, effects).answer == Refused(1, Refusal.NOT_BETTER)
    assert only(Ask, effects).attach.wanted == 10
    assert only(Ask, it.answer(Advert(11, 1), B, CORE)).attach.wanted == -1
    assert isinstance(only(Reply, it.ask(feasible=Advert(10, 1))).answer, Attached)


def test_an_ancestor_is_not_taken_in() -> None:
    it = attached(B, CORE)
    assert only(Reply, it.ask(B)).answer == Refused(1, Refusal.BELOW)


def test_healing_is_measured_from_the_loss() -> None:
    it = attached(D, B, CORE)
    it.lose()
    it.now += 0.1
    renewal = only(Ask, it.answer(Advert(10, 1), B, CORE)).attach
    assert renewal.healing_ms == pytest.approx(100, abs=1)
