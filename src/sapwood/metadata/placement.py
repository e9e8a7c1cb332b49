"""Where replicas go."""

from sapwood.metadata.image import Image
from sapwood.wire.errors import ErrorCode, KafkaError


def place(image: Image, count: int, replicas: int, start: int) -> list[list[int]]:
    """Spread `count` partitions over the nodes, leaders and followers alike."""
    nodes = [node.node_id for node in image.eligible()]
    if len(nodes) < replicas:
        nodes = sorted(image.nodes)
    if not 1 <= replicas <= len(nodes):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {replicas} needs as many nodes, there are {len(nodes)}",
        )
    return [
        [nodes[(start + partition + replica) % len(nodes)] for replica in range(replicas)]
        for partition in range(count)
    ]
