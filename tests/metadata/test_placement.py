"""Where the replicas of new partitions go, and who votes on the metadata."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.metadata import controller
from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.metadata.placement import metadata_voters, place
from sapwood.wire.errors import ErrorCode
from tests.metadata.images import image_of, refused

ID = bytes(range(16))


def in_racks(racks: str) -> Image:
    """A node per letter."""
    image = Image()
    for node_id, rack in enumerate(racks):
        image.apply(
            r.NodeRegistered(node_id=node_id, listeners={"kafka": ("h", node_id)}, rack=rack)
        )
    return image


def spread(counted: Counter[int], nodes: int) -> int:
    counts = [counted[node] for node in range(nodes)]
    return max(counts) - min(counts)


@settings(deadline=None)
@given(
    nodes=st.integers(1, 9),
    count=st.integers(1, 50),
    start=st.integers(0, 99),
    others=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4),
    data=st.data(),
)
def test_a_topic_is_spread_evenly_over_all_nodes_whatever_else_they_have(
    nodes: int, count: int, start: int, others: list[tuple[int, int]], data: st.DataObject
) -> None:
    image = image_of(nodes)
    for n, (partitions, factor) in enumerate(others):
        image.apply(
            controller.create_topic(
                image,
                f"t{n}",
                bytes([n]) * 16,
                partition_count=partitions,
                replication_factor=min(nodes, factor),
            )
        )
    replicas = data.draw(st.integers(1, nodes))
    placed = place(image, count, replicas, start)
    assert len(placed) == count
    assert all(len(set(p)) == len(p) == replicas for p in placed)
    assert spread(Counter(node for p in placed for node in p), nodes) <= 1
    assert spread(Counter(p[0] for p in placed), nodes) <= 1
    if nodes > 1:
        assert all(a[0] != b[0] for a, b in pairwise(placed))
    assert place(image, count, replicas, start) == placed


@pytest.mark.parametrize(("nodes", "replicas"), [(3, 2), (3, 3), (4, 2), (4, 3), (6, 3), (7, 3)])
def test_what_a_dead_node_led_is_taken_over_by_all_others(nodes: int, replicas: int) -> None:
    placed = place(image_of(nodes), 60, replicas, start=0)
    for dead in range(nodes):
        heirs = Counter(p[1] for p in placed if p[0] == dead)
        assert len(heirs) == nodes - 1
        assert max(heirs.values()) - min(heirs.values()) <= 2


def test_small_topics_go_where_least_is() -> None:
    image = image_of(3)
    for n in range(9):
        record = controller.create_topic(
            image, f"t{n}", bytes([n]) * 16, partition_count=1, replication_factor=2
        )
        image.apply(record)
    partitions = [topic.partitions[0] for topic in image.topics.values()]
    assert Counter(node for p in partitions for node in p) == {0: 6, 1: 6, 2: 6}
    assert spread(Counter(p[0] for p in partitions), 3) <= 2


def test_partitions_that_are_added_go_where_least_of_their_topic_is() -> None:
    image = image_of(4)
    image.apply(controller.create_topic(image, "t", ID, partition_count=3, replication_factor=1))
    image.apply(controller.add_partitions(image, "t", 4, None))
    assert sorted(replicas[0] for replicas in image.topics["t"].partitions) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("racks", "replicas"), [("aab", 2), ("aabbcc", 3), ("abc", 3), ("aaab", 3), ("aabb", 4)]
)
def test_replicas_are_spread_over_racks_before_anything_else(racks: str, replicas: int) -> None:
    for replica_nodes in place(in_racks(racks), 20, replicas, start=0):
        assert len({racks[node] for node in replica_nodes}) == min(replicas, len(set(racks)))


def test_nodes_that_are_not_fit_are_used_only_as_far_as_needed_and_lead_nothing() -> None:
    image = image_of(5, r.NodeChanged(node_id=0, alive=False))
    image.apply(r.NodeChanged(node_id=1, draining=True))
    assert {node for p in place(image, 9, 3, start=0) for node in p} == {2, 3, 4}
    for replicas in place(image, 9, 4, start=0):
        assert sorted(replicas) == [1, 2, 3, 4], "rather a draining node than a dead one"
        assert replicas[0] != 1
        assert replicas[-1] == 1
    for replicas in place(image, 9, 5, start=0):
        assert replicas[0] not in (0, 1)


@pytest.mark.parametrize("replicas", [0, 4, -1])
def test_more_replicas_than_nodes_or_none_at_all_are_refused(replicas: int) -> None:
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR):
        place(image_of(3), 1, replicas, start=0)


@pytest.mark.parametrize(
    ("nodes", "voters"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (6, [0, 1, 2]), (7, [0, 1, 2, 3, 4])],
)
def test_three_nodes_vote_on_the_metadata_and_from_seven_on_five(
    nodes: int, voters: list[int]
) -> None:
    assert metadata_voters(image_of(nodes), []) == voters
    assert metadata_voters(image_of(nodes), [0]) == voters


def test_a_dead_or_draining_voter_is_replaced_once_another_can_take_its_place() -> None:
    for change in (
        r.NodeChanged(node_id=1, alive=False),
        r.NodeChanged(node_id=1, draining=True),
    ):
        assert metadata_voters(image_of(3, change), [0, 1, 2]) == [0, 1, 2]
        image = image_of(5, change)
        assert metadata_voters(image, [0, 1, 2]) == [0, 2, 3]
        assert metadata_voters(image, [0, 1, 2, 3]) == [0, 2, 3], "while it is being replaced"
        image.apply(r.NodeChanged(node_id=1, alive=True, draining=False))
        assert metadata_voters(image, [0, 2, 3]) == [0, 2, 3], "nobody goes who is fit"


def test_of_two_voters_that_are_not_fit_the_living_one_stays() -> None:
    image = image_of(4, r.NodeChanged(node_id=0, alive=False))
    image.apply(r.NodeChanged(node_id=1, draining=True))
    assert metadata_voters(image, [0, 1, 2]) == [1, 2, 3]


def test_a_removed_voter_goes_at_once() -> None:
    image = image_of(3, r.NodeRemoved(node_id=1))
    assert metadata_voters(image, [0, 1, 2]) == [0, 2]


def test_a_death_in_a_large_cluster_does_not_cost_two_voters() -> None:
    image = image_of(7, r.NodeChanged(node_id=6, alive=False))
    assert metadata_voters(image, [0, 1, 2, 3, 4]) == [0, 1, 2, 3, 4]
    image.apply(r.NodeChanged(node_id=0, alive=False))
    assert metadata_voters(image, [0, 1, 2, 3, 4]) == [1, 2, 3, 4, 5]
    for node in (0, 5, 6):
        image.apply(r.NodeRemoved(node_id=node))
    assert metadata_voters(image, [1, 2, 3, 4, 5]) == [1, 2, 3]


def test_new_metadata_voters_are_spread_over_racks() -> None:
    assert metadata_voters(in_racks("aabbc"), []) == [0, 2, 4]
    assert metadata_voters(in_racks("aaab"), [0, 1]) == [0, 1, 3]


@given(
    nodes=st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("abc")), max_size=9),
    voted=st.sets(st.integers(0, 10), max_size=6),
)
def test_metadata_voters_are_stable_and_odd_where_they_can_be(
    nodes: list[tuple[bool, bool, str]], voted: set[int]
) -> None:
    image = in_racks("".join(rack for _, _, rack in nodes))
    for node_id, (alive, draining, _) in enumerate(nodes):
        image.apply(r.NodeChanged(node_id=node_id, alive=alive, draining=draining))
    fit = {node.node_id for node in image.eligible()}
    current = sorted(voted)
    voters = metadata_voters(image, current)
    assert metadata_voters(image, voters) == voters
    assert set(voters) <= set(image.nodes)
    assert set(voters) <= fit | voted, "nobody is called who can't come"
    assert len(voters) in (3, 5) or len(voters) == len(set(image.nodes) & (fit | voted)) < 3
    if set(voters) - fit:
        assert fit <= set(voters), "each of the others could take its place"
    kept = voted & fit
    assert kept <= set(voters) or len(voters) == 3 < len(kept) or len(voters) == 5 < len(kept)
