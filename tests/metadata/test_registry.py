"""Who may join, who may leave, and who is known by name."""

import pytest

from sapwood.metadata import controller, registry
from sapwood.metadata import records as r
from sapwood.metadata.image import Client, Image
from sapwood.wire.errors import ErrorCode
from tests.metadata.images import image_of, refused

ID = bytes(range(16))


def join(image: Image, node_id: int, incarnation: int, *, port: int = 1, alive: bool = True) -> int:
    node_id, records = registry.register_node(
        image, node_id, incarnation, {"kafka": ("h", port)}, is_alive=lambda _: alive
    )
    for record in records:
        image.apply(record)
    return node_id


def test_nodes_that_ask_for_an_id_get_one_that_nobody_ever_had() -> None:
    image = Image()
    assert [join(image, -1, n, port=n) for n in (11, 12, 13)] == [0, 1, 2]
    assert join(image, 7, 14) == 7
    for node_id in (7, 1):
        image.apply(r.NodeChanged(node_id=node_id, draining=True))
        for record in registry.remove_node(image, node_id):
            image.apply(record)
    snapshot = Image()
    for record in image.records():
        snapshot.apply(record)
    assert join(image, -1, 15) == 8
    assert join(snapshot, -1, 15) == 8


def test_a_node_that_asks_again_because_the_answer_was_lost_keeps_its_id() -> None:
    image = Image()
    assert join(image, -1, 11) == 0
    assert join(image, -1, 11) == 0
    assert join(image, -1, 12) == 1


def test_an_id_whose_owner_is_alive_is_not_given_to_another_data_directory() -> None:
    image = image_of(1)
    with refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION):
        join(image, 0, 5)
    assert join(image, 0, 1000, port=5) == 0, "the owner itself may move"
    assert join(image, 0, 5, alive=False) == 0, "a wiped directory takes the place of a dead owner"
    assert image.nodes[0].incarnation == 5


def test_nothing_is_written_when_nothing_changes() -> None:
    image = image_of(2)
    listeners = dict(image.nodes[1].listeners)
    again = registry.register_node(image, 1, 1001, listeners, is_alive=lambda _: True)
    assert again == (1, [])
    assert registry.change_node(image, 1, alive=True, draining=False) == []
    for change in ({"rack": "r"}, {"version": "2"}):
        _, records = registry.register_node(
            image, 1, 1001, listeners, is_alive=lambda _: True, **change
        )
        assert len(records) == 1
    image.apply(r.NodeChanged(node_id=1, alive=False))
    _, records = registry.register_node(image, 1, 1001, listeners, is_alive=lambda _: False)
    assert len(records) == 1, "it is back"


def test_a_removed_node_stays_away_unless_it_begins_anew() -> None:
    image = image_of(2, r.NodeChanged(node_id=1, alive=False))
    for record in registry.remove_node(image, 1):
        image.apply(record)
    with refused(ErrorCode.INVALID_REGISTRATION):
        join(image, 1, 1001)
    assert join(image, 1, 5) == 1
    assert not image.nodes[1].draining


@pytest.mark.parametrize(("node_id", "listeners"), [(-2, {"kafka": ("h", 1)}), (0, {})])
def test_a_senseless_registration_is_refused(
    node_id: int, listeners: dict[str, tuple[str, int]]
) -> None:
    with refused(ErrorCode.INVALID_REGISTRATION):
        registry.register_node(Image(), node_id, 1, listeners, is_alive=lambda _: True)


def test_a_node_is_changed_one_side_at_a_time() -> None:
    image = image_of(1)
    for record in registry.change_node(image, 0, draining=True, alive=True):
        assert record == r.NodeChanged(node_id=0, draining=True)
        image.apply(record)
    for record in registry.change_node(image, 0, alive=False):
        image.apply(record)
    assert (image.nodes[0].alive, image.nodes[0].draining) == (False, True)
    with refused(ErrorCode.BROKER_ID_NOT_REGISTERED):
        registry.change_node(image, 1, alive=False)


def test_only_a_node_that_holds_nothing_and_is_dead_or_drained_can_be_removed() -> None:
    image = image_of(3)
    image.apply(controller.create_topic(image, "t", ID, assignments={0: [0, 1]}))
    with refused(ErrorCode.INVALID_REQUEST):
        registry.remove_node(image, 2)
    image.apply(r.NodeChanged(node_id=1, alive=False, draining=True))
    with refused(ErrorCode.INVALID_REQUEST):
        registry.remove_node(image, 1)
    image.apply(controller.reassign(image, "t", 0, [0, 2]))
    with refused(ErrorCode.INVALID_REQUEST):
        registry.remove_node(image, 1, votes=1)
    image.apply(registry.remove_node(image, 1)[0])
    assert sorted(image.nodes) == [0, 2]
    with refused(ErrorCode.BROKER_ID_NOT_REGISTERED):
        registry.remove_node(image, 1)


def test_producers_and_consumers_are_registered_once_and_listed() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "t", ID, partition_count=2))
    for _ in range(2):
        for record in (
            *registry.register_producer(image, "p", "t"),
            *registry.register_producer(image, "p", "t", 1),
            *registry.register_consumer(image, "c", "t", 0),
        ):
            image.apply(record)
    assert registry.register_producer(image, "p", "t") == []
    assert registry.register_consumer(image, "c", "t", 0) == []
    assert list(image.producers) == [Client("p", "t"), Client("p", "t", 1)]
    assert list(image.consumers) == [Client("c", "t", 0)]
    image.apply(registry.remove_producer(image, "p", "t")[0])
    image.apply(registry.remove_consumer(image, "c", "t", 0)[0])
    assert list(image.producers) == [Client("p", "t", 1)]
    assert list(image.consumers) == []
    for remove in (registry.remove_producer, registry.remove_consumer):
        with refused(ErrorCode.RESOURCE_NOT_FOUND):
            remove(image, "p", "t")


@pytest.mark.parametrize(
    ("name", "topic", "partition", "code"),
    [
        ("", "t", -1, ErrorCode.INVALID_REQUEST),
        ("x" * 250, "t", -1, ErrorCode.INVALID_REQUEST),
        ("p", "u", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("p", "t", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("p", "t", -2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_client_of_what_does_not_exist_is_refused(
    name: str, topic: str, partition: int, code: ErrorCode
) -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "t", ID, partition_count=2))
    for register in (registry.register_producer, registry.register_consumer):
        with refused(code):
            register(image, name, topic, partition)


def test_the_number_of_clients_is_bounded() -> None:
    image = image_of(1)
    image.apply(controller.create_topic(image, "t", ID))
    for n in range(registry.MAX_CLIENTS):
        image.apply(r.ProducerRegistered(name=str(n), topic="t"))
    assert registry.register_producer(image, "0", "t") == []
    with refused(ErrorCode.POLICY_VIOLATION):
        registry.register_producer(image, "one more", "t")
