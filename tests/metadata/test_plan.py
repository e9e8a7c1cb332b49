"""What moves when the cluster changes: enough, not more, and never at the price of a replica."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.metadata import controller
from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.metadata.placement import plan
from tests.metadata.clusters import EVENTS, Cluster, check_settled, check_step
from tests.metadata.images import image_of
from tests.metadata.test_image import rebuilt

ID = bytes(range(16))


def settle(image: Image, limit: int = 10) -> int:
    """Carry out plan after plan; how many replicas moved."""
    moved = 0
    while steps := plan(image, limit):
        assert len(steps) <= limit
        for step in steps:
            moved += check_step(image, step)
            image.apply(step)
    check_settled(image)
    return moved


def join(image: Image, node_id: int, rack: str | None = None) -> None:
    image.apply(r.NodeRegistered(node_id=node_id, listeners={"kafka": ("h", 1)}, rack=rack))


def shares(image: Image) -> dict[int, int]:
    """Replicas by node."""
    return dict(
        Counter(
            node
            for topic in image.topics.values()
            for replicas in topic.partitions
            for node in replicas
        )
    )


def leaders(image: Image) -> dict[int, int]:
    return dict(
        Counter(replicas[0] for topic in image.topics.values() for replicas in topic.partitions)
    )


def create(image: Image, name: str, count: int, factor: int) -> None:
    image.apply(
        controller.create_topic(
            image,
            name,
            len(image.topics).to_bytes(16, "big"),
            partition_count=count,
            replication_factor=factor,
        )
    )


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    racks=st.integers(1, 3),
    nodes=st.integers(1, 4),
    events=st.lists(st.sampled_from(list(EVENTS)), max_size=40),
)
def test_whatever_happens_to_a_cluster_it_settles_by_steps_that_are_safe(
    seed: int, racks: int, nodes: int, events: list[str]
) -> None:
    cluster = Cluster(seed, racks=racks)
    for event in ["join"] * nodes + ["create"] + events:
        cluster.live(event)
    assert rebuilt(cluster.image) == cluster.image
    cluster.settle()
    assert plan(cluster.image, 100) == []


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(1, 6),
    joining=st.integers(1, 3),
    topics=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=1, max_size=6),
)
def test_nodes_that_join_get_their_share_and_nothing_moves_that_need_not(
    seed: int, nodes: int, joining: int, topics: list[tuple[int, int]]
) -> None:
    cluster = Cluster(seed)
    for _ in range(nodes):
        cluster.join()
    for n, (count, factor) in enumerate(topics):
        create(cluster.image, f"t{n}", count, min(factor, nodes))
    cluster.settle()
    before = cluster.moved
    for _ in range(joining):
        cluster.join()
    share, rest = divmod(sum(shares(cluster.image).values()), nodes + joining)
    # As many nodes as there is a rest keep one replica more: those that have most.
    held = sorted(shares(cluster.image).values(), reverse=True)
    fewest = sum(max(0, n - share - (place < rest)) for place, n in enumerate(held))
    cluster.settle()
    assert cluster.moved - before == fewest
    assert all(n in (share, share + 1) for n in shares(cluster.image).values())


def test_a_fourth_node_gets_a_quarter_of_sixty_partitions_by_forty_five_moves() -> None:
    image = image_of(3)
    create(image, "t", 60, 3)
    assert plan(image, 100) == []
    join(image, 3)
    assert settle(image) == 45
    assert shares(image) == dict.fromkeys(range(4), 45)
    assert leaders(image) == dict.fromkeys(range(4), 15)


def test_draining_a_node_empties_it_and_undraining_fills_it_again() -> None:
    image = image_of(4)
    create(image, "t", 60, 3)
    image.apply(r.NodeChanged(node_id=2, draining=True))
    assert settle(image) == 45
    assert shares(image) == dict.fromkeys((0, 1, 3), 60)
    assert leaders(image) == dict.fromkeys((0, 1, 3), 20)
    image.apply(r.NodeChanged(node_id=2, draining=False))
    assert settle(image) == 45
    assert leaders(image) == dict.fromkeys(range(4), 15)


def test_a_drain_that_would_cost_replicas_waits_for_another_node_but_gives_up_leading() -> None:
    image = image_of(3)
    create(image, "t", 6, 3)
    image.apply(r.NodeChanged(node_id=0, draining=True))
    assert settle(image) == 0
    assert shares(image) == dict.fromkeys(range(3), 6)
    assert leaders(image) == {1: 3, 2: 3}
    join(image, 3)
    assert settle(image) == 6
    assert shares(image) == dict.fromkeys((1, 2, 3), 6)


def test_a_cluster_that_grows_from_one_node_replicates_what_it_had_up_to_three_times() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "grows", ID, partition_count=12))
    create(image, "stays", 12, 1)
    for nodes in (2, 3, 4):
        join(image, nodes - 1)
        settle(image)
        assert {len(p) for p in image.topics["grows"].partitions} == {min(3, nodes)}
        assert {len(p) for p in image.topics["stays"].partitions} == {1}
        assert max(leaders(image).values()) - min(leaders(image).values()) <= 1


def test_nothing_moves_when_a_node_dies_or_when_it_comes_back() -> None:
    image = image_of(4)
    create(image, "t", 60, 3)
    image.apply(r.NodeChanged(node_id=1, alive=False))
    assert plan(image, 100) == []
    image.apply(r.NodeChanged(node_id=1, alive=True))
    assert plan(image, 100) == []


def test_a_dead_node_that_is_drained_is_given_up() -> None:
    image = image_of(4)
    create(image, "t", 60, 3)
    image.apply(r.NodeChanged(node_id=1, alive=False, draining=True))
    assert settle(image) == 45
    assert shares(image) == dict.fromkeys((0, 2, 3), 60)


def test_what_an_operator_placed_is_not_moved_for_balance_but_leaves_a_draining_node() -> None:
    image = image_of(3)
    by_hand = {n: [0, 1] for n in range(6)}
    image.apply(controller.create_topic(image, "t", ID, assignments=by_hand))
    assert plan(image, 100) == []
    create(image, "balances", 6, 1)
    assert leaders(image) == {0: 8, 1: 2, 2: 2}, "its own topic is spread over all nodes at first"
    settle(image)
    assert [replicas[0] for replicas in image.topics["balances"].partitions] == [2] * 6
    image.apply(r.NodeChanged(node_id=0, draining=True))
    settle(image)
    assert image.topics["t"].partitions == [[2, 1]] * 6, "in the order that the operator chose"
    assert image.topics["t"].pinned == set(range(6))


def test_a_new_rack_gets_a_replica_of_every_partition() -> None:
    image = Image()
    for node_id in range(3):
        join(image, node_id, "a")
    create(image, "t", 12, 3)
    join(image, 3, "b")
    assert settle(image) == 12
    assert shares(image) == {0: 8, 1: 8, 2: 8, 3: 12}


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_those_that_move_already_count_and_are_left_alone(limit: int) -> None:
    image = image_of(3)
    create(image, "t", 60, 3)
    join(image, 3)
    under_way = plan(image, 2)
    for step in under_way:
        image.apply(step)
    moving = [(step.topic_id, step.partition) for step in under_way]
    more = plan(image, limit, moving)
    assert len(more) == max(0, limit - 2)
    assert not {(step.topic_id, step.partition) for step in more} & set(moving)


def test_leaderships_reach_a_node_that_has_nothing_in_common_with_the_busiest_one() -> None:
    partitions = [[0, 1], [0, 1], [0, 1], [1, 2], [2, 1], [2, 0], [2, 3], [3, 2], [1, 3], [3, 0]]
    image = image_of(4)
    topic = r.TopicCreated(name="t", topic_id=ID, replication_factor=2, partitions=partitions)
    image.apply(topic)
    settle(image)
    assert max(leaders(image).values()) - min(leaders(image).values()) <= 1


def test_the_same_image_always_gives_the_same_plan() -> None:
    image = image_of(3)
    create(image, "t", 60, 3)
    create(image, "u", 7, 2)
    join(image, 3)
    assert plan(image, 30) == plan(rebuilt(image), 30)
