"""Stored records: what was written is read, and what can't be read is named."""

import pytest

from sapwood.metadata import records as r
from sapwood.metadata.image import Image

EXAMPLES: list[r.Record] = [
    r.ClusterCreated(cluster_id="c"),
    r.NodeRegistered(node_id=2, listeners={"kafka": ("h", 1)}, rack="a"),
    r.TopicCreated(
        name="t", topic_id=bytes(16), replication_factor=3, partitions=[[2]], configs={"a": "b"}
    ),
    r.PartitionsAdded(topic_id=bytes(16), partitions=[[2], [2]]),
    r.ConfigChanged(resource_type=2, resource_name="t", values={"a": None, "c": "d"}),
    r.ProducerIdsReserved(next_id=7),
    r.TopicDeleted(topic_id=bytes(16)),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: r.Record) -> None:
    assert r.decode(r.encode(record)) == record


def test_the_same_records_give_the_same_image() -> None:
    images = [Image(), Image()]
    for image in images:
        for record in EXAMPLES:
            image.apply(r.decode(r.encode(record)))
    assert images[0] == images[1]
    assert images[0].cluster_id == "c"
    assert images[0].next_producer_id == 7


@pytest.mark.parametrize(
    "data", [b"", b"\x02\x80", b"\x01", b"\x01\xff", b"\x01\x81\xa4kind\xa7Unknown"]
)
def test_a_record_that_is_not_understood_is_never_guessed_at(data: bytes) -> None:
    with pytest.raises(r.UnreadableMetadata):
        r.decode(data)


def test_a_field_of_a_later_release_is_ignored() -> None:
    stored = r.encode(r.ProducerIdsReserved(next_id=7))
    later = stored[:1] + bytes([stored[1] + 1]) + stored[2:] + b"\xa5later\x01"
    assert r.decode(later) == r.ProducerIdsReserved(next_id=7)
