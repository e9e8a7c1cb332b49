"""Keys find their shard as in Kafka, and what belongs together stays together."""

import pytest

from sapwood.coordinator.sharding import shard_of


@pytest.mark.parametrize(
    ("key", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        # Integer.MIN_VALUE, which has no absolute value: Kafka masks the sign instead.
        ("polygenelubricants", 0),
        ("Hello, World!", 1498789909),
        # Two UTF-16 units in Java: a surrogate pair.
        ("\U0001f600", 1772899),
    ],
)
def test_a_key_is_hashed_as_java_hashes_strings(key: str, hash_code: int) -> None:
    assert shard_of(key, 2**31) == hash_code


def test_a_key_belongs_to_the_same_shard_whatever_follows_the_separator() -> None:
    shards = {shard_of(f"orders\u241f{name}", 16) for name in ("alice", "bob", "", "x\u241fy")}
    assert shards == {shard_of("orders", 16)}
