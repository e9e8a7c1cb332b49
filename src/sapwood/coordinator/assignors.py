"""Who gets which partitions: pure functions from subscriptions to an assignment.

Both take the members in the order in which they are to be served, what each is subscribed to, how
many partitions each topic has, and who was to have what so far. Every partition of a topic that
somebody is subscribed to goes to exactly one of its subscribers.
"""

from collections import deque
from collections.abc import Callable, Mapping, Set
from heapq import heapify, heapreplace

TopicPartition = tuple[bytes, int]
"""Topic id and partition."""
Assignment = frozenset[TopicPartition]

Subscriptions = Mapping[str, Set[bytes]]
Assignor = Callable[
    [Subscriptions, Mapping[bytes, int], Mapping[str, Assignment]], dict[str, Assignment]
]

NOTHING: Assignment = frozenset()


def range_assignor(
    subscriptions: Subscriptions, partitions: Mapping[bytes, int], _: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Neighbouring partitions of each topic together, in the members' order.

    Topics with the same subscribers and as many partitions are split alike, for joins.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic, subscribers in _subscribers(subscriptions, partitions).items():
        share, more = divmod(partitions[topic], len(subscribers))
        first = 0
        for rank, member in enumerate(subscribers):
            end = first + share + (rank < more)
            assigned[member] += [(topic, index) for index in range(first, end)]
            first = end
    return {member: frozenset(owned) for member, owned in assigned.items()}


def uniform_assignor(
    subscriptions: Subscriptions, partitions: Mapping[bytes, int], before: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """As even as the subscriptions allow, and nothing moves that needn't.

    Everybody keeps what may be kept; what nobody has goes to the least loaded subscriber. Then
    partitions pass from the most loaded member to the least loaded one that can be reached, maybe
    through others: with loads of 3, 2 and 1 the first may share no topic with the last.
    """
    return _Evening(subscriptions, partitions, before).run()


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform_assignor, "range": range_assignor}
"""By Kafka's names; the first is the default."""


def _subscribers(
    subscriptions: Subscriptions, partitions: Mapping[bytes, int]
) -> dict[bytes, list[str]]:
    """By topic, in an order that is the same everywhere."""
    found: dict[bytes, list[str]] = {topic: [] for topic in sorted(partitions)}
    for member, topics in subscriptions.items():
        for topic in topics:
            if topic in found:
                found[topic].append(member)
    return {topic: members for topic, members in found.items() if members}


class _Evening:
    def __init__(
        self,
        subscriptions: Subscriptions,
        partitions: Mapping[bytes, int],
        before: Mapping[str, Assignment],
    ) -> None:
        self.subscribers = _subscribers(subscriptions, partitions)
        self.owned: dict[str, dict[bytes, list[int]]] = {member: {} for member in subscriptions}
        self.load = dict.fromkeys(subscriptions, 0)
        self._keep(subscriptions, partitions, before)
        self._fill(partitions)

    def run(self) -> dict[str, Assignment]:
        # Whoever is reached in vain from the most loaded member is settled for good: none of them
        # has two less than it, they lead to nobody else, and no later way, from somebody with a
        # lower load yet, ends among them.
        unsettled = dict(self.load)
        while unsettled:
            source = max(unsettled, key=self.load.__getitem__)
            reached = self._reached_from(source)
            target = min(reached, key=self.load.__getitem__)
            if self.load[source] - self.load[target] < 2:
                for member in reached:
                    unsettled.pop(member, None)
            else:
                self._pass_on(reached, target)
        return {
            member: frozenset((topic, index) for topic in topics for index in topics[topic])
            for member, topics in self.owned.items()
        }

    def _keep(
        self,
        subscriptions: Subscriptions,
        partitions: Mapping[bytes, int],
        before: Mapping[str, Assignment],
    ) -> None:
        taken: set[TopicPartition] = set()
        for member, topics in subscriptions.items():
            for topic, index in sorted(before.get(member, NOTHING)):
                kept = topic in topics and index < partitions.get(topic, 0)
                if kept and (topic, index) not in taken:
                    taken.add((topic, index))
                    self.owned[member].setdefault(topic, []).append(index)
                    self.load[member] += 1
        self.taken = taken

    def _fill(self, partitions: Mapping[bytes, int]) -> None:
        # Topics with few subscribers first: theirs have less choice.
        for topic, subscribers in sorted(self.subscribers.items(), key=lambda it: len(it[1])):
            missing = [i for i in range(partitions[topic]) if (topic, i) not in self.taken]
            if not missing:
                continue
            loads = [(self.load[member], rank) for rank, member in enumerate(subscribers)]
            heapify(loads)
            for index in missing:
                load, rank = loads[0]
                heapreplace(loads, (load + 1, rank))
                member = subscribers[rank]
                self.owned[member].setdefault(topic, []).append(index)
                self.load[member] += 1

    def _reached_from(self, source: str) -> dict[str, tuple[str, bytes] | None]:
        """Who can be given one, with the member it comes from and its topic; nearest first."""
        reached: dict[str, tuple[str, bytes] | None] = {source: None}
        seen: set[bytes] = set()
        waiting = deque([source])
        while waiting and len(reached) < len(self.load):
            giver = waiting.popleft()
            for topic, indexes in self.owned[giver].items():
                if not indexes or topic in seen:
                    continue
                seen.add(topic)
                for member in self.subscribers[topic]:
                    if member not in reached:
                        reached[member] = (giver, topic)
                        waiting.append(member)
        return reached

    def _pass_on(self, reached: Mapping[str, tuple[str, bytes] | None], target: str) -> None:
        self.load[target] += 1
        taker = target
        while (step := reached[taker]) is not None:
            giver, topic = step
            self.owned[taker].setdefault(topic, []).append(self.owned[giver][topic].pop())
            taker = giver
        self.load[taker] -= 1
