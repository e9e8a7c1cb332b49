"""A core node as a parent."""

from sapwood.tree.root import Root
from sapwood.tree.words import (
    Advert,
    Attach,
    Attached,
    Claim,
    Place,
    Refusal,
    Refused,
    Reply,
    Since,
    Timing,
)

ME = Place(0, "core", 1)
B, C = Place(10_001, "b", 1), Place(10_002, "c", 1)
TIMING = Timing()


def ask(
    root: Root, now: float, child: Place, number: int, *, renewing: bool = True, seen: int = -1
) -> list[Attached | Refused]:
    feasible = Advert(-1, 0)
    root.asked(now, Attach(child, Since(1, 1), number, renewing, feasible, -1, seen))
    return answers(root)


def answers(root: Root) -> list[Attached | Refused]:
    return [it.answer for it in root.take_effects() if isinstance(it, Reply)]


def test_a_child_is_answered_with_the_next_beacon_and_told_of_its_siblings() -> None:
    root = Root(ME, TIMING, 0.0)
    (first,) = ask(root, 0.0, B, 1, renewing=False)
    assert isinstance(first, Attached)
    assert first.standing.ancestors == (ME,)
    assert ask(root, 0.1, B, 2, seen=first.standing.version) == []
    ask(root, 0.1, C, 1, renewing=False)
    root.tick(root.deadline)
    (beat,) = answers(root)
    assert isinstance(beat, Attached)
    assert beat.number == 2
    assert beat.standing.siblings == (C,)
    assert first.standing.advert is not None
    assert beat.standing.advert == Advert(first.standing.advert.beacon + 1, 0)


def test_a_newer_request_releases_the_one_that_waits() -> None:
    root = Root(ME, TIMING, 0.0)
    (first,) = ask(root, 0.0, B, 1, renewing=False)
    assert isinstance(first, Attached)
    seen = first.standing.version
    assert ask(root, 0.1, B, 2, seen=seen) == []
    assert [it.number for it in ask(root, 0.1, B, 3, seen=seen)] == [2]


def test_whoever_is_no_child_is_told_so() -> None:
    root = Root(ME, TIMING, 0.0)
    assert ask(root, 0.0, B, 1) == [Refused(1, Refusal.NOT_A_CHILD)]
    ask(root, 0.0, B, 2, renewing=False)
    root.lost(B.node_id, Since(1, 1))
    root.take_effects()
    assert ask(root, 0.1, B, 3) == [Refused(3, Refusal.NOT_A_CHILD)]


def test_a_silent_child_is_gone_and_so_are_its_claims() -> None:
    root = Root(ME, TIMING, 0.0)
    below = Claim(C, B.node_id, Since(1, 1))
    for number in (1, 2):
        attach = Attach(B, Since(1, 1), number, number > 1, Advert(-1, 0), -1, -1, (below,))
        root.asked(0.0, attach)
    assert root.claims() == (Claim(B, 0, Since(1, 1)), below)
    root.tick(TIMING.silence_s)
    assert root.claims() == ()


def test_a_core_node_that_restarted_goes_beyond_the_beacons_that_its_children_have_heard() -> None:
    root = Root(ME, TIMING, 0.0)
    root.asked(0.0, Attach(B, Since(1, 1), 1, False, Advert(500, 1), -1))
    root.take_effects()
    (told,) = ask(root, 0.0, B, 2)
    assert isinstance(told, Attached)
    assert told.standing.advert == Advert(501, 0)


def test_children_are_told_at_once_that_it_is_cut_off_and_that_it_is_no_longer() -> None:
    root = Root(ME, TIMING, 0.0)
    (told,) = ask(root, 0.0, B, 1, renewing=False)
    for number, is_cut_off in ((2, True), (3, False)):
        assert isinstance(told, Attached)
        assert ask(root, 0.0, B, number, seen=told.standing.version) == []
        root.cut_off(is_cut_off)
        (told,) = answers(root)
        assert isinstance(told, Attached)
        assert told.standing.is_cut_off is is_cut_off


def test_an_absurd_wish_for_a_beacon_is_bounded() -> None:
    root = Root(ME, TIMING, 0.0)
    root.asked(0.0, Attach(B, Since(1, 1), 1, False, Advert(2**63 - 1, 1), 2**63 - 1))
    (told,) = answers(root)
    assert isinstance(told, Attached)
    for number in range(2, 50):
        (told,) = ask(root, 0.0, B, number)
    assert isinstance(told, Attached)
    assert told.standing.advert is not None
    assert told.standing.advert.beacon <= 2**62 + 1


def test_a_father_has_an_end_of_places() -> None:
    root = Root(ME, TIMING, 0.0)
    for number in range(64):
        ask(root, 0.0, Place(20_000 + number, "h", number), 1, renewing=False)
    assert ask(root, 0.0, B, 1, renewing=False) == [Refused(1, Refusal.FULL)]
