"""One node of a cluster asked by itself, as its clients, other nodes and tools ask it."""

from sapwood import Cluster
from sapwood.node import secret
from sapwood.node.asking import NodeConnection
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct
from sapwood.wire.errors import ErrorCode

PRODUCER, CONSUMER = 1, 2
REGISTER, REMOVE = 1, 2


class Manager(NodeConnection):
    """Exactly this node answers, or passes on what it can't answer itself."""

    def __enter__(self) -> "Manager":
        return self

    def create_topic(self, topic: str, partitions: int = 1, replicas: int = -1) -> ErrorCode:
        wanted = Struct(name=topic, num_partitions=partitions, replication_factor=replicas)
        wanted.assignments = wanted.configs = []
        message = Struct(topics=[wanted], timeout=30_000, validate_only=False)
        return ErrorCode(self._ask(Api.CREATE_TOPICS, message, 7).topics[0].error_code)

    def replicas(self, topic: str) -> list[list[int]] | None:
        """The nodes of each partition, the preferred leader first; None: no such topic."""
        message = Struct(
            topics=[Struct(topic_id=bytes(16), name=topic)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        (found,) = self._ask(Api.METADATA, message, 12).topics
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        return [it.replica_nodes for it in found.partitions]

    def register(self, kind: int, name: str, topic: str, action: int = REGISTER) -> ErrorCode:
        message = Struct(kind=kind, action=action, name=name, topic=topic, partition=-1)
        return ErrorCode(self._ask(Api.CHANGE_CLIENT, message).error_code)

    def clients(self) -> tuple[list[str], list[str]]:
        """The names of all registered producers, and of all consumers."""
        answer = self._ask(Api.LIST_CLIENTS, Struct())
        return [it.name for it in answer.producers], [it.name for it in answer.consumers]


def manager(cluster: Cluster, index: int) -> Manager:
    return Manager(cluster.address(index), secret.read(cluster.layout.secret_file), timeout_s=30)
