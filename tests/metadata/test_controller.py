"""The controller's decisions, against images built from records alone."""

import pytest

from sapwood.metadata import controller
from sapwood.metadata import records as r
from sapwood.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from sapwood.wire.errors import ErrorCode
from tests.metadata.images import image_of, refused

ID = bytes(range(16))


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_a_topic_made_without_counts_gets_a_partition_per_node_and_up_to_three_replicas(
    nodes: int,
) -> None:
    record = controller.create_topic(image_of(nodes), "t", ID)
    assert len(record.partitions) == nodes
    assert all(len(replicas) == min(3, nodes) for replicas in record.partitions)
    assert sorted(replicas[0] for replicas in record.partitions) == list(range(nodes))
    assert record.replication_factor == 3, "the target outlives the size that the cluster has now"


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
    image = image_of(3)
    record = controller.create_topic(image, "t", ID, assignments={1: [0, 2], 0: [1, 0]})
    assert record.partitions == [[1, 0], [0, 2]]
    assert record.replication_factor == 2
    image.apply(record)
    image.apply(controller.add_partitions(image, "t", 3, [[2, 1]]))
    image.apply(controller.add_partitions(image, "t", 4, None))
    assert image.topics["t"].partitions[:3] == [[1, 0], [0, 2], [2, 1]]
    assert image.topics["t"].pinned == {0, 1, 2}


def test_a_partition_begins_with_the_incarnations_that_its_nodes_have_then() -> None:
    image = image_of(2)
    image.apply(controller.create_topic(image, "t", ID, partition_count=1))
    image.apply(r.NodeRegistered(node_id=0, incarnation=77, listeners={"kafka": ("h", 1)}))
    image.apply(controller.add_partitions(image, "t", 2, None))
    first, second = image.topics["t"].voters
    assert dict(first) == {0: 1000, 1: 1001}
    assert dict(second) == {0: 77, 1: 1001}


def test_a_topic_made_while_nodes_are_away_is_placed_on_those_that_are_there() -> None:
    image = image_of(4, r.NodeChanged(node_id=1, alive=False))
    image.apply(r.NodeChanged(node_id=2, draining=True))
    record = controller.create_topic(image, "t", ID)
    assert len(record.partitions) == 4, "a partition for every node, there or not"
    assert all(sorted(replicas) == [0, 3] for replicas in record.partitions)
    assert record.replication_factor == 3
    exact = controller.create_topic(image, "exact", bytes(16), replication_factor=4)
    assert all(sorted(replicas) == [0, 1, 2, 3] for replicas in exact.partitions)


def test_partitions_that_are_added_get_the_replicas_that_the_topic_is_to_have() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "grows", ID, partition_count=1))
    image.apply(
        controller.create_topic(image, "stays", bytes(16), partition_count=1, replication_factor=1)
    )
    for node_id in (1, 2):
        image.apply(r.NodeRegistered(node_id=node_id, listeners={"kafka": ("h", node_id)}))
    assert len(controller.add_partitions(image, "grows", 2, None).partitions[0]) == 3
    assert len(controller.add_partitions(image, "stays", 2, None).partitions[0]) == 1


def test_an_operator_reassigns_a_partition_and_calls_it_off() -> None:
    image = image_of(4)
    image.apply(controller.create_topic(image, "t", ID, assignments={0: [0, 1, 2]}))
    image.apply(controller.reassign(image, "t", 0, [0, 1, 3]))
    assert image.topics["t"].partitions == [[0, 1, 3]]
    assert image.topics["t"].pinned == {0}
    # The group's leader has added node 3 and has yet to remove node 2.
    image.apply(controller.reassign(image, "t", 0, None, current=[0, 1, 2, 3]))
    assert image.topics["t"].partitions == [[0, 1, 2]]
    assert image.topics["t"].pinned == set()
    for current in ([], [2, 1, 0]):
        with refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
            controller.reassign(image, "t", 0, None, current=current)
    for replicas in ([], [0, 0], [0, 9]):
        with refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT):
            controller.reassign(image, "t", 0, replicas)
    for topic, partition in (("t", 1), ("t", -1), ("u", 0)):
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            controller.reassign(image, topic, partition, [0])


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


@pytest.mark.parametrize("name", sorted(controller.INTERNAL_TOPICS))
def test_the_log_of_coordinators_is_compacted_whoever_makes_it_and_stays_so(name: str) -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, name, ID, overrides={"cleanup.policy": "delete"}))
    assert image.overrides(TOPIC_RESOURCE, name)["cleanup.policy"] == "compact"
    for change in ({"cleanup.policy": "delete"}, {"cleanup.policy": None}, {"flush": "os"}):
        with refused(ErrorCode.POLICY_VIOLATION):
            controller.change_configs(image, TOPIC_RESOURCE, name, change)
    controller.change_configs(image, TOPIC_RESOURCE, name, {"segment.bytes": "1048576"})
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION):
        controller.add_partitions(image, name, 99, None)


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
