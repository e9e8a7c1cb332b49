"""A node whose metadata log is damaged fills it again from the other nodes."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

import sapwood
from sapwood.node import identity
from sapwood.node.identity import Identity
from tests.helpers import eventually

LOG = "logs/__cluster_metadata-0*/*.log"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 0x10
    path.write_bytes(data)


def _known(directory: Path) -> Identity:
    known = identity.read(directory)
    assert known is not None
    return known


def _put(cluster: sapwood.Cluster, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    errors: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]


@pytest.mark.parametrize("node", [0, 2])
def test_a_flipped_byte_in_the_metadata_log_is_noticed_and_repaired(
    tmp_path: Path, node: int
) -> None:
    """Of the founder, too, which once had nobody to ask."""
    with sapwood.Cluster(nodes=3, data_dir=tmp_path) as cluster:
        cluster.create_topics({"orders": 3})
        _put(cluster, "orders", b"1")
        cluster.wait_healthy()
        directory = cluster.layout.node_directory(node)
        eventually(lambda: len(_known(directory).members) == 2)
        cluster.stop(node)
        (path,) = directory.glob(LOG)
        _flip(path)
        cluster.restart(node)
        cluster.wait_healthy()
        assert "the metadata log is damaged" in cluster.log(node)
        assert len(list(directory.glob("logs/__cluster_metadata-0*damaged-*"))) == 1
        # It votes again: without another one it makes the majority. What is committed behind the
        # change that made it a voter shows that this was committed, too.
        cluster.create_topics({"behind": 1})
        cluster.kill(next(it for it in (1, 2) if it != node))
        cluster.create_topics({"more": 1})
        _put(cluster, "orders", b"2")


def test_the_only_copy_of_the_metadata_is_never_set_aside(tmp_path: Path) -> None:
    with sapwood.Cluster(nodes=1, data_dir=tmp_path) as cluster:
        cluster.create_topics({"orders": 1})
        cluster.stop(0)
        directory = cluster.layout.node_directory(0)
        (path,) = directory.glob(LOG)
        _flip(path)
        damaged = path.read_bytes()
        with pytest.raises(Exception, match="the metadata log is damaged"):
            cluster.restart(0)
        assert path.read_bytes() == damaged
