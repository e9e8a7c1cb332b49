"""An image follows from its records, and can be turned into records again."""

from sapwood.metadata import records as r
from sapwood.metadata.image import TOPIC_RESOURCE, Client, Image, Node
from tests.metadata.images import image_of
from tests.metadata.test_records import EXAMPLES


def rebuilt(image: Image) -> Image:
    other = Image()
    for record in image.records():
        other.apply(r.decode(r.encode(record)))
    return other


def test_the_same_records_give_the_same_image_and_a_snapshot_of_it_gives_it_again() -> None:
    images = [Image(), Image()]
    for record in EXAMPLES:
        for image in images:
            image.apply(r.decode(r.encode(record)))
        assert images[0] == images[1]
        assert rebuilt(images[0]) == images[0], f"after {type(record).__name__}"
    assert images[0].cluster_id == "c"
    assert images[0].next_producer_id == 7


def test_a_snapshot_keeps_nodes_topics_configs_and_clients() -> None:
    image = image_of(
        3,
        r.NodeChanged(node_id=0, draining=True),
        r.NodeChanged(node_id=1, alive=False),
        r.NodeRemoved(node_id=2, incarnation=1002),
        r.TopicCreated(name="old", topic_id=b"o" * 16, replication_factor=3, partitions=[[0], [1]]),
        r.TopicCreated(
            name="new",
            topic_id=b"n" * 16,
            replication_factor=1,
            partitions=[[0]],
            configs={"retention.ms": "5"},
            pinned=[0],
        ),
        r.PartitionReassigned(topic_id=b"o" * 16, partition=1, replicas=[1, 0], pinned=True),
        r.ProducerRegistered(name="p", topic="new"),
        r.ConsumerRegistered(name="c", topic="new", partition=0),
        r.TopicDeleted(topic_id=b"x" * 16),
    )
    assert rebuilt(image) == image
    assert [topic.name for topic in rebuilt(image).topics.values()] == ["old", "new"]
    assert image.overrides(TOPIC_RESOURCE, "new") == {"retention.ms": "5"}
    assert image.topics["old"].voters == [[(0, 1000)], [(1, 1001)]], "as registered then"
    assert image.topics["old"].pinned == {1}
    assert [node.node_id for node in image.eligible()] == []


def test_a_node_that_registers_again_is_alive_and_still_draining() -> None:
    image = image_of(1, r.NodeChanged(node_id=0, alive=False, draining=True))
    image.apply(r.NodeRegistered(node_id=0, incarnation=2, listeners={"k": ("i", 3)}, version="2"))
    assert image.nodes[0] == Node(0, 2, {"k": ("i", 3)}, None, "2", True, True)


def test_a_deleted_topic_takes_its_clients_along() -> None:
    topic = r.TopicCreated(name="t", topic_id=bytes(16), replication_factor=1, partitions=[[0]])
    image = image_of(1, topic, r.ProducerRegistered(name="p", topic="t"))
    image.apply(r.ConsumerRegistered(name="c", topic="u", partition=1))
    image.apply(r.TopicDeleted(topic_id=bytes(16)))
    assert not image.producers
    assert list(image.consumers) == [Client("c", "u", 1)]


def test_a_removed_node_takes_its_configs_along() -> None:
    image = image_of(1, r.ConfigChanged(resource_type=4, resource_name="0", values={"a": "b"}))
    image.apply(r.NodeRemoved(node_id=0, incarnation=1000))
    assert not image.configs
    assert image.removed_nodes == {0: 1000}
