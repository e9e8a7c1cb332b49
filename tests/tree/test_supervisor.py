"""The supervisor: by word and by link, and words that aren't true."""

import pytest

from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.tree import supervisor
from sapwood.tree.supervisor import GRACE_S, MOST_EDGES, PENDING_S, PLACES, SILENCE_S, Supervisor
from sapwood.tree.words import Claim, Place, Since
from sapwood.wire.errors import ErrorCode
from tests.metadata.images import image_of, refused


def alive(image: Image) -> supervisor.IsAlive:
    return lambda node: node in image.nodes and image.nodes[node].alive


def apply(image: Image, records: list[r.Record]) -> None:
    for record in records:
        image.apply(record)


def register(image: Image, port: int, wish: str = "", edge_id: int = -1) -> tuple[int, Place]:
    edge_id, father, records = supervisor.register(
        image, edge_id, "e", port, wish, is_alive=alive(image), loads={}
    )
    apply(image, records)
    return edge_id, father


def grown(image: Image, port: int, wish: str = "") -> int:
    """An edge that registered and was confirmed."""
    edge_id, father = register(image, port, wish)
    apply(image, supervisor.confirm(image, str(father.node_id), str(edge_id)))
    return edge_id


def fathers(image: Image) -> dict[int, int]:
    return {it.edge_id: it.father for it in image.edges.known.values() if it.confirmed}


def claim(child: int, father: int, attachment: int = 1) -> Claim:
    return Claim(Place(child, "e", child - 9_999), father, Since(1, attachment))


def settle(image: Image, it: Supervisor, now: float, **reports: tuple[Claim, ...]) -> None:
    for core, claims in reports.items():
        it.reported(int(core.removeprefix("core")), claims, now)
    apply(image, it.turn(image, alive(image), now))


# -- by word -----------------------------------------------------------------------------------


def test_a_node_registers_is_pending_and_appears_when_its_father_confirms_it() -> None:
    image = image_of(3)
    edge_id, father = register(image, 1, wish="h:9094")
    assert father == Place(2, "h", 9094)
    assert fathers(image) == {}
    apply(image, supervisor.confirm(image, "h:9094", "e:1"))
    assert fathers(image) == {edge_id: 2}
    assert supervisor.confirm(image, "2", str(edge_id)) == [], "once is enough"


def test_who_asks_twice_is_the_same_node() -> None:
    image = image_of(1)
    first, _ = register(image, 1)
    assert register(image, 1)[0] == first
    assert register(image, 2)[0] == first + 1
    assert register(image, 5, edge_id=first)[0] == first
    assert image.edges.known[first].port == 5


def test_places_near_the_core_go_first_then_those_with_fewer_children() -> None:
    image = image_of(2)
    chosen = []
    for port in range(1, 2 * PLACES + 3):
        grown(image, port)
        chosen.append(list(fathers(image).values())[-1])
    assert chosen[: 2 * PLACES] == [0, 1] * PLACES
    first, second = list(fathers(image))[:2]
    assert chosen[2 * PLACES :] == [first, second]


def test_a_wish_for_one_that_is_full_or_pending_is_not_met_and_a_false_one_is_refused() -> None:
    image = image_of(2)
    pending, _ = register(image, 50)
    assert register(image, 51, wish=str(pending))[1].node_id in image.nodes
    for port in range(1, PLACES + 1):
        assert grown(image, port, wish="1")
    assert register(image, 60, wish="1")[1].node_id == 0
    for wish in ("nobody:1", "77", "e:99999", "x" * 5000):
        with refused(ErrorCode.RESOURCE_NOT_FOUND):
            register(image, 61, wish=wish)


def test_nobody_is_sent_below_itself() -> None:
    image = image_of(1)
    above = grown(image, 1)
    below = grown(image, 2, wish=str(above))
    assert register(image, 1, wish=str(below))[1].node_id == 0


def test_bad_registrations_are_refused() -> None:
    image = image_of(1)
    for host, port in (("", 1), ("e", 0), ("e", 65536), ("x" * 300, 1)):
        with refused(ErrorCode.INVALID_REGISTRATION):
            supervisor.register(image, -1, host, port, is_alive=alive(image), loads={})
    with refused(ErrorCode.INVALID_REGISTRATION):
        register(image, 1, edge_id=123_456)
    with refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION):
        supervisor.register(image, -1, "h", 9092, is_alive=alive(image), loads={})
    for port in range(1, MOST_EDGES + 1):
        image.apply(r.EdgeRegistered(edge_id=9_999 + port, host="e", port=port, father=0))
    with refused(ErrorCode.POLICY_VIOLATION):
        register(image, 5000)


def test_only_the_father_that_was_offered_confirms_and_only_whom_it_was_sent() -> None:
    image = image_of(2)
    edge_id, _ = register(image, 1, wish="0")
    with refused(ErrorCode.INVALID_REQUEST):
        supervisor.confirm(image, "1", str(edge_id))
    with refused(ErrorCode.RESOURCE_NOT_FOUND):
        supervisor.confirm(image, "0", "stranger:1")
    with refused(ErrorCode.INVALID_REQUEST):
        supervisor.confirm(image, "0", "1")


def test_a_dead_node_is_erased_when_father_and_children_have_reported_it() -> None:
    image = image_of(1)
    b = grown(image, 1)
    d = grown(image, 2, wish=str(b))
    e = grown(image, 3, wish=str(d))
    apply(image, supervisor.report_down(image, str(b), str(d)))
    assert d in image.edges.known, "its child has not said so yet"
    apply(image, supervisor.report_down(image, str(e), str(d)))
    assert d not in image.edges.known
    assert e not in image.edges.known, "that was its last relation, too"
    assert fathers(image) == {b: 0}


def test_a_child_that_gets_a_new_father_has_no_relation_to_the_dead_one() -> None:
    image = image_of(1)
    b = grown(image, 1)
    d = grown(image, 2, wish=str(b))
    e = grown(image, 3, wish=str(d))
    apply(image, supervisor.report_down(image, str(b), str(d)))
    assert register(image, 3, wish=str(b), edge_id=e)[1].node_id == b
    assert d not in image.edges.known
    apply(image, supervisor.confirm(image, str(b), str(e)))
    assert fathers(image) == {b: 0, e: b}


def test_a_report_by_a_stranger_is_refused() -> None:
    image = image_of(2)
    b, c = grown(image, 1), grown(image, 2)
    for reporter, node in ((b, c), (c, b), (1, b), (b, 1)):
        if image.edges.known[b].father != 1 or 1 not in (reporter, node):
            with refused(ErrorCode.INVALID_REQUEST):
                supervisor.report_down(image, str(reporter), str(node))


# -- by link -----------------------------------------------------------------------------------


def test_what_core_nodes_tell_becomes_the_tree() -> None:
    image = image_of(2)
    b, _ = register(image, 1)
    d, _ = register(image, 2)
    it = Supervisor(0.0)
    settle(image, it, 1.0, core0=(claim(b, 0), claim(d, b)), core1=())
    assert fathers(image) == {b: 0, d: b}
    assert it.turn(image, alive(image), 1.1) == []
    settle(image, it, 1.2, core0=(claim(b, 0),), core1=(claim(d, 1, 2),))
    assert fathers(image) == {b: 0, d: 1}
    settle(image, it, 1.3, core0=(claim(b, 0), claim(d, b, 1)))
    assert fathers(image) == {b: 0, d: 1}, "an old father speaks late"


def test_a_living_node_that_is_reported_down_is_back_at_the_next_turn() -> None:
    image = image_of(1)
    b, _ = register(image, 1)
    it = Supervisor(0.0)
    settle(image, it, 1.0, core0=(claim(b, 0),))
    apply(image, supervisor.report_down(image, "0", str(b)))
    assert fathers(image) == {}
    settle(image, it, 1.25)
    assert fathers(image) == {b: 0}
    register(image, 1, wish="0")
    assert fathers(image) == {}, "somebody registers in its name"
    settle(image, it, 1.5)
    assert fathers(image) == {b: 0}


def test_a_father_that_is_heard_of_would_know_and_one_that_is_not_may_be_on_its_way() -> None:
    image = image_of(1)
    b, _ = register(image, 1)
    d, _ = register(image, 2)
    e, _ = register(image, 3)
    it = Supervisor(0.0)
    claims = (claim(b, 0), claim(d, b), claim(e, d))
    settle(image, it, 10.0, core0=claims)
    settle(image, it, 10.1, core0=(claim(b, 0),))
    assert fathers(image) == {b: 0, e: d}, "d is gone, but e may turn up elsewhere"
    settle(image, it, 10.2, core0=(claim(b, 0), claim(e, b, 2)))
    assert fathers(image) == {b: 0, e: b}
    assert d not in image.edges.known


def test_two_that_died_together_are_erased_after_a_while() -> None:
    image = image_of(1)
    b, _ = register(image, 1)
    d, _ = register(image, 2)
    it = Supervisor(0.0)
    settle(image, it, 10.0, core0=(claim(b, 0), claim(d, b)))
    settle(image, it, 10.1, core0=())
    assert b in image.edges.known, "d has not said so"
    settle(image, it, 10.2 + GRACE_S, core0=())
    assert image.edges.known == {}


def test_a_turn_that_is_taken_again_before_it_is_written_down_says_the_same() -> None:
    """The controller looks whether there is anything, and asks once more when it may write."""
    image = image_of(1)
    b, _ = register(image, 1)
    d, _ = register(image, 2)
    it = Supervisor(0.0)
    settle(image, it, 10.0, core0=(claim(b, 0), claim(d, b)))
    settle(image, it, 10.1, core0=())
    it.reported(0, (), 10.2 + GRACE_S)
    turns = [it.turn(image, lambda _: True, 10.2 + GRACE_S) for _ in range(2)]
    assert turns[0] == turns[1] == [r.EdgeDetached(edge_id=d)]


def test_a_new_controller_waits_until_it_has_heard_of_the_core_nodes() -> None:
    image = image_of(2)
    b, _ = register(image, 1)
    settle(image, Supervisor(0.0), 1.0, core1=(claim(b, 1),))
    it = Supervisor(100.0)
    settle(image, it, 100.1, core0=())
    settle(image, it, 100.0 + SILENCE_S, core0=())
    assert fathers(image) == {b: 1}
    settle(image, it, 100.1 + SILENCE_S + GRACE_S, core0=())
    assert fathers(image) == {}, "core node 1 was silent all the time"


def test_children_by_word_of_a_core_node_that_died_go_with_it() -> None:
    image = image_of(2)
    b = grown(image, 1, wish="1")
    it = Supervisor(0.0)
    settle(image, it, 10.0, core0=(), core1=())
    assert fathers(image) == {b: 1}, "nobody promised to tell of it"
    image.apply(r.NodeChanged(node_id=1, alive=False))
    settle(image, it, 20.0, core0=())
    settle(image, it, 20.1 + GRACE_S, core0=())
    assert fathers(image) == {}


def test_who_registers_and_never_comes_is_forgotten() -> None:
    image = image_of(1)
    b, _ = register(image, 1)
    it = Supervisor(0.0)
    settle(image, it, 1.0, core0=())
    settle(image, it, PENDING_S, core0=())
    assert b in image.edges.known
    settle(image, it, PENDING_S + 1.1, core0=())
    assert image.edges.known == {}
    assert register(image, 2)[0] == b + 1, "no id is given twice"


@pytest.mark.parametrize("edge_id", [-1, 5, 10_000])
def test_a_claim_of_an_edge_that_nobody_registered_is_not_believed(edge_id: int) -> None:
    image = image_of(1)
    settle(image, Supervisor(0.0), 1.0, core0=(claim(edge_id, 0),))
    assert image.edges.known == {}
