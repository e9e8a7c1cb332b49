"""Which partition a record goes to: by its key as Java's client does, else evenly."""

from __future__ import annotations

from sapwood.client.cluster import Topic


def murmur2(data: bytes) -> int:
    """Java's `Utils.murmur2`, as an unsigned number: every client must agree on a key's place."""
    length = len(data)
    h = (0x9747B28C ^ length) & 0xFFFFFFFF
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        k = (k ^ k >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        h = h * 0x5BD1E995 & 0xFFFFFFFF ^ k
    if length != whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class KeylessPartitioner:
    """Goes round the partitions that have a leader, staying with each for `stay_bytes`.

    Staying fills batches: a record to every partition in turn would make many small ones.
    `stay_bytes=0` is plain round-robin.
    """

    __slots__ = ("_current", "_partitions", "_stay_bytes", "_topic", "_used_bytes")

    def __init__(self, first: int, stay_bytes: int) -> None:
        self._current = first
        self._stay_bytes = stay_bytes
        self._used_bytes = 0
        self._topic: Topic | None = None
        self._partitions: list[int] = []

    def choose(self, topic: Topic, size_bytes: int) -> int:
        """`topic` may change from call to call, but must have partitions."""
        if topic is not self._topic:
            self._topic = topic
            self._partitions = topic.led_partitions or list(topic.partitions)
        chosen = self._partitions[self._current % len(self._partitions)]
        self._used_bytes += size_bytes
        if self._used_bytes >= self._stay_bytes:
            self._used_bytes = 0
            self._current += 1
        return chosen
