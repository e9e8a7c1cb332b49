"""A data directory that an earlier release wrote goes on being served."""

import tarfile
from pathlib import Path

import sapwood
from sapwood.client import KafkaClient
from sapwood.client.offsets import EARLIEST
from sapwood.node import identity

ARCHIVE = Path(__file__).with_name("data") / "one_node_0_1.tar.xz"
CLUSTER_ID = "kBbNbKENShOb7rRi5azgrA"


def test_a_node_of_release_0_1_goes_on_as_a_cluster_of_one_with_all_its_records(
    tmp_path: Path,
) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
        archive.extractall(tmp_path)
    for _ in range(2):
        with (
            sapwood.Cluster(data_dir=tmp_path) as cluster,
            KafkaClient(cluster.bootstrap) as client,
        ):
            metadata = client.metadata()
            assert metadata.cluster_id == CLUSTER_ID
            assert sorted(metadata.topics) == ["empty", "orders"]
            start = {("orders", 0): EARLIEST, ("orders", 1): EARLIEST}
            values = {record.value for record in client.consume(start, stop_at="end")}
            assert values == {b"order %d" % number for number in range(300)}
        known = identity.read(tmp_path / "node-0")
        assert known is not None
        assert (known.cluster_id, known.node_id, known.incarnation) == (CLUSTER_ID, 0, 0)
