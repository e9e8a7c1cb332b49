"""Assignors: everything once, only to subscribers, evenly, and nothing moves that needn't."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.coordinator.assignors import (
    ASSIGNORS,
    Assignment,
    range_assignor,
    uniform_assignor,
)

TOPICS = [bytes([number]) * 16 for number in range(4)]
MEMBERS = [f"member-{number}" for number in range(7)]

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))
topic_sets = st.frozensets(st.sampled_from(TOPICS))
subscriptions = st.dictionaries(st.sampled_from(MEMBERS), topic_sets).map(
    lambda made: dict(sorted(made.items()))
)


def loads(assigned: Mapping[str, Assignment]) -> list[int]:
    return sorted(map(len, assigned.values()))


def check_complete(
    assigned: Mapping[str, Assignment],
    subscribed: Mapping[str, frozenset[bytes]],
    partitions: Mapping[bytes, int],
) -> None:
    wanted = frozenset[bytes]().union(*subscribed.values())
    everything = {
        (topic, index)
        for topic, count in partitions.items()
        if topic in wanted
        for index in range(count)
    }
    assert Counter(one for owned in assigned.values() for one in owned) == Counter(everything)
    assert assigned.keys() == subscribed.keys()
    for member, owned in assigned.items():
        assert {topic for topic, _ in owned} <= subscribed[member]


def best_loads(
    subscribed: Mapping[str, frozenset[bytes]], partitions: Mapping[bytes, int]
) -> list[int]:
    """The evenest there is, found the slow way: improve along any path until none is left."""
    owner = {
        (topic, index): next(member for member in subscribed if topic in subscribed[member])
        for topic, count in partitions.items()
        if any(topic in topics for topics in subscribed.values())
        for index in range(count)
    }

    def improve() -> bool:
        load = Counter(owner.values())
        for source in subscribed:
            ways = {source: [source]}
            for at in (frontier := [source]):
                for (topic, _), holder in owner.items():
                    if holder != at:
                        continue
                    for member in subscribed:
                        if topic in subscribed[member] and member not in ways:
                            ways[member] = [*ways[at], member]
                            frontier.append(member)
            for target, way in ways.items():
                if load[source] - load[target] >= 2:
                    for giver, taker in pairwise(way):
                        moved = next(
                            one
                            for one in owner
                            if owner[one] == giver and one[0] in subscribed[taker]
                        )
                        owner[moved] = taker
                    return True
        return False

    while improve():
        pass
    load = Counter(owner.values())
    return sorted(load[member] for member in subscribed)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(subscribed=subscriptions, partitions=partition_counts)
def test_every_partition_goes_once_and_only_to_subscribers(
    name: str, subscribed: dict[str, frozenset[bytes]], partitions: dict[bytes, int]
) -> None:
    check_complete(ASSIGNORS[name](subscribed, partitions, {}), subscribed, partitions)


@given(
    members=st.sets(st.sampled_from(MEMBERS), min_size=1),
    partitions=partition_counts,
    earlier=subscriptions,
)
def test_uniform_is_even_to_one_and_moves_as_little_as_that_allows(
    members: set[str], partitions: dict[bytes, int], earlier: dict[str, frozenset[bytes]]
) -> None:
    before = uniform_assignor(earlier, partitions, {})
    subscribed = {member: frozenset(TOPICS) for member in sorted(members)}
    assigned = uniform_assignor(subscribed, partitions, before)
    check_complete(assigned, subscribed, partitions)
    total = sum(partitions.values())
    low, more = divmod(total, len(members))
    assert loads(assigned) == sorted([low + 1] * more + [low] * (len(members) - more))

    kept = sum(len(assigned[member] & before.get(member, frozenset())) for member in members)
    had = sorted((len(before.get(member, ())) for member in members), reverse=True)
    shares = [low + 1] * more + [low] * (len(members) - more)
    assert kept == sum(map(min, had, shares))


@given(subscribed=subscriptions, partitions=partition_counts, earlier=subscriptions)
def test_uniform_is_as_even_as_different_subscriptions_allow(
    subscribed: dict[str, frozenset[bytes]],
    partitions: dict[bytes, int],
    earlier: dict[str, frozenset[bytes]],
) -> None:
    before = uniform_assignor(earlier, partitions, {})
    assigned = uniform_assignor(subscribed, partitions, before)
    check_complete(assigned, subscribed, partitions)
    assert loads(assigned) == best_loads(subscribed, partitions)
    # Asked again, it leaves everything where it is.
    assert uniform_assignor(subscribed, partitions, assigned) == assigned


def test_uniform_passes_partitions_on_through_a_third_member() -> None:
    one, two = TOPICS[:2]
    subscribed = {"a": {one}, "b": {one, two}, "c": {two}}
    before = {
        "a": frozenset({(one, 0), (one, 1), (one, 2)}),
        "b": frozenset({(two, 0), (two, 1)}),
        "c": frozenset({(two, 2)}),
    }
    assigned = uniform_assignor(subscribed, {one: 3, two: 3}, before)
    assert loads(assigned) == [2, 2, 2]
    assert sum(len(assigned[member] & before[member]) for member in before) == 4


def test_range_splits_topics_alike_and_gives_the_first_members_more() -> None:
    one, two = TOPICS[:2]
    everything = frozenset({one, two})
    assigned = range_assignor({"a": everything, "b": everything}, {one: 3, two: 3}, {})
    assert assigned["a"] == {(one, 0), (one, 1), (two, 0), (two, 1)}
    assert assigned["b"] == {(one, 2), (two, 2)}
