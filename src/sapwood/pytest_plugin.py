"""Clusters for the whole test session, for tests that don't hurt them.

The fixture `sapwood` is a single node, `sapwood_cluster` has three. `bootstrap` goes to any Kafka
client; `topic()` makes a topic that no other test uses. A test that kills nodes starts a cluster of
its own, with `sapwood.Cluster()`.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sapwood.cluster import Cluster


class SharedCluster:
    """The session's cluster as a test sees it."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def topic(self, name: str = "topic", partitions: int = 1) -> str:
        """Create a topic of this test's own, and return its name."""
        unique = f"{name}-{next(self._numbers)}"
        self._cluster.create_topics({unique: partitions})
        return unique

    def log(self, index: int = 0) -> str:
        """What a node has logged, for a look after a failure."""
        return self._cluster.log(index)


@pytest.fixture(scope="session")
def sapwood() -> Iterator[SharedCluster]:
    """A running Sapwood that all tests of the session share."""
    from sapwood.cluster import Cluster

    with Cluster() as cluster:
        yield SharedCluster(cluster)


@pytest.fixture(scope="session")
def sapwood_cluster() -> Iterator[SharedCluster]:
    """Three running nodes that all tests of the session share."""
    from sapwood.cluster import Cluster

    with Cluster(nodes=3) as cluster:
        yield SharedCluster(cluster)
