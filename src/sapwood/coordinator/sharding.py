"""Which shard is responsible for a group or a transactional id."""

import struct

SEPARATOR = "\u241f"
"""SYMBOL FOR UNIT SEPARATOR. What shares the part before it shares a shard."""


def shard_of(key: str, shards: int) -> int:
    """As Kafka chooses it: by Java's hash of the string."""
    return _java_hash(key.partition(SEPARATOR)[0]) % shards


def _java_hash(text: str) -> int:
    """`String.hashCode() & 0x7fffffff`, over UTF-16 units as Java has them."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
