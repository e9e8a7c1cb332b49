"""The controller's decisions, against images built from records alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.metadata import controller
from sapwood.metadata import records as r
from sapwood.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image
from sapwood.wire.errors import ErrorCode, KafkaError

ID = bytes(range(16))


def image_of(nodes: int, *records: r.Record) -> Image:
    image = Image()
    for node_id in range(nodes):
        image.apply(r.NodeRegistered(node_id=node_id, listeners={"kafka": ("h", 9092 + node_id)}))
    for record in records:
        image.apply(record)
    return image


def refused(code: ErrorCode) -> "pytest.RaisesExc[KafkaError]":
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_a_topic_made_without_counts_gets_a_partition_per_node_and_up_to_three_replicas(
    nodes: int,
) -> None:
    record = controller.create_topic(image_of(nodes), "t", ID)
    assert len(record.partitions) == nodes
    assert all(len(replicas) == min(3, nodes) for replicas in record.partitions)
    assert sorted(replicas[0] for replicas in record.partitions) == list(range(nodes))
    assert record.replication_factor == 3, "the target outlives the size that the cluster has now"


@given(nodes=st.integers(1, 9), count=st.integers(1, 50), data=st.data())
def test_placement_spreads_replicas_evenly_and_never_twice_on_a_node(
    nodes: int, count: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, nodes))
    placed = controller.place(image_of(nodes), count, replicas, start=data.draw(st.integers(0, 99)))
    assert all(len(set(p)) == replicas for p in placed)
    held = [sum(node in p for p in placed) for node in range(nodes)]
    assert max(held) - min(held) <= replicas


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250, "a\n", "a\0"])
def test_an_illegal_topic_name_is_refused(name: str) -> None:
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION):
        controller.create_topic(image_of(1), name, ID)


def test_a_topic_that_exists_is_not_made_again() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "t", ID))
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        controller.create_topic(image, "t", bytes(16))


@pytest.mark.parametrize("count", [0, -2, controller.MAX_PARTITIONS + 1])
def test_a_senseless_number_of_partitions_is_refused(count: int) -> None:
    with refused(ErrorCode.INVALID_PARTITIONS):
        controller.create_topic(image_of(1), "t", ID, partition_count=count)


@pytest.mark.parametrize("factor", [0, 2, -2])
def test_more_replicas_than_nodes_are_refused(factor: int) -> None:
    with refused(ErrorCode.INVALID_REPLICATION_FACTOR):
        controller.create_topic(image_of(1), "t", ID, replication_factor=factor)


@pytest.mark.parametrize(
    "assignments", [{1: [0]}, {0: []}, {0: [0, 0]}, {0: [7]}, {0: [0], 1: [0, 1]}]
)
def test_a_bad_assignment_is_refused(assignments: dict[int, list[int]]) -> None:
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT):
        controller.create_topic(image_of(2), "t", ID, assignments=assignments)


def test_an_assignment_is_taken_as_it_is() -> None:
    record = controller.create_topic(image_of(3), "t", ID, assignments={1: [0, 2], 0: [1, 0]})
    assert record.partitions == [[1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,shred"),
        ("compression.type", "rar"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("preallocate", "yes"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("cleanup.policy", "delete,,compact"),
        ("max.message.bytes", str(2**31)),
        ("no.such.config", "1"),
        ("unclean.leader.election.enable", "perhaps"),
    ],
)
def test_a_bad_config_is_refused(name: str, value: str) -> None:
    with refused(ErrorCode.INVALID_CONFIG):
        controller.create_topic(image_of(1), "t", ID, overrides={name: value})


def test_partitions_can_only_grow() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "t", ID, partition_count=3))
    for count in (0, 2, 3):
        with refused(ErrorCode.INVALID_PARTITIONS):
            controller.add_partitions(image, "t", count, None)
    image.apply(controller.add_partitions(image, "t", 5, None))
    assert len(image.topics["t"].partitions) == 5
    with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT):
        controller.add_partitions(image, "t", 7, [[0]])


def test_what_is_fixed_at_the_start_of_a_node_can_not_be_changed() -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        controller.change_configs(image_of(1), BROKER_RESOURCE, "0", {"node.id": "4"})


def test_a_config_that_does_not_exist_can_be_deleted() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "t", ID))
    image.apply(controller.change_configs(image, TOPIC_RESOURCE, "t", {"no.such.config": None}))
    assert image.overrides(TOPIC_RESOURCE, "t") == {}


def test_bounds_of_compaction_that_contradict_each_other_are_refused() -> None:
    low, high = {"min.compaction.lag.ms": "20"}, {"max.compaction.lag.ms": "10"}
    image = image_of(1)
    with refused(ErrorCode.INVALID_CONFIG):
        controller.create_topic(image, "t", ID, overrides={**low, **high})
    image.apply(controller.create_topic(image, "t", ID, overrides=low))
    with refused(ErrorCode.INVALID_CONFIG):
        controller.change_configs(image, TOPIC_RESOURCE, "t", high)
    controller.change_configs(image, TOPIC_RESOURCE, "t", {**high, "min.compaction.lag.ms": None})


@pytest.mark.parametrize(
    ("kind", "name"), [(BROKER_RESOURCE, "9"), (BROKER_RESOURCE, "x"), (3, "")]
)
def test_configs_of_what_does_not_exist_are_refused(kind: int, name: str) -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        controller.change_configs(image_of(1), kind, name, {"message.max.bytes": "1"})


def test_deleting_a_topic_forgets_its_configs_and_remembers_its_id() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "t", ID, overrides={"retention.ms": "5"}))
    assert image.overrides(TOPIC_RESOURCE, "t") == {"retention.ms": "5"}
    image.apply(r.TopicDeleted(topic_id=ID))
    assert "t" not in image.topics
    assert image.overrides(TOPIC_RESOURCE, "t") == {}
    assert image.deleted_topics == {ID}
    with refused(ErrorCode.UNKNOWN_TOPIC_ID):
        controller.find_topic(image, None, ID)


def test_producer_ids_are_reserved_once() -> None:
    image = image_of(1)
    seen: set[int] = set()
    for _ in range(3):
        first = image.next_producer_id
        record = controller.reserve_producer_ids(image)
        block = set(range(first, record.next_id))
        assert block
        assert not block & seen
        seen |= block
        image.apply(record)
