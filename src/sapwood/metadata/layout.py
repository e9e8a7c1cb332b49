"""Which node is to hold and to lead what, counted, so that placement can try changes out."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from sapwood.metadata.image import Image

Key = tuple[bytes, int]
"""A partition: topic id and index."""
Change = tuple[Key, list[int]]


@dataclass(slots=True)
class Shares:
    """How many target replicas and preferred leaderships each node has."""

    held: Counter[int] = field(default_factory=Counter)
    led: Counter[int] = field(default_factory=Counter)

    def add(self, replicas: Sequence[int], times: int) -> None:
        for node in replicas:
            self.held[node] += times
        self.led[replicas[0]] += times


class Layout:
    def __init__(self, image: Image) -> None:
        self.eligible: dict[int, None] = {node.node_id: None for node in image.eligible()}
        self.racks: dict[int, str | None] = {
            node.node_id: node.rack for node in image.nodes.values()
        }
        self.replicas: dict[Key, list[int]] = {
            (topic.topic_id, index): replicas
            for topic in image.topics.values()
            for index, replicas in enumerate(topic.partitions)
        }
        self.pinned: set[Key] = {
            (topic.topic_id, index) for topic in image.topics.values() for index in topic.pinned
        }
        self.shares = Shares()
        self.successors: Counter[tuple[int, int]] = Counter()
        """By (preferred leader, the replica after it)."""
        self.shared: Counter[tuple[int, int]] = Counter()
        """The partitions that two nodes have in common."""
        self._image = image
        self._shares_of: dict[bytes, Shares] = {}
        # There are many partitions, but not many ways to put them on a few nodes.
        for ways, times in Counter(map(tuple, self.replicas.values())).items():
            self._count(ways, times)

    def shares_of(self, topic_id: bytes) -> Shares:
        """Of one topic; counted when they are first asked for, because most never are."""
        shares = self._shares_of.get(topic_id)
        if shares is None:
            shares = self._shares_of[topic_id] = Shares()
            topic = self._image.topics_by_id.get(topic_id)
            for replicas in topic.partitions if topic else ():
                shares.add(replicas, 1)
        return shares

    def put(self, key: Key, replicas: list[int]) -> None:
        shares = self.shares_of(key[0])
        before = self.replicas.get(key)
        if before is not None:
            self._count(before, -1)
            shares.add(before, -1)
        self._count(replicas, 1)
        shares.add(replicas, 1)
        self.replicas[key] = replicas

    def _count(self, replicas: Sequence[int], times: int) -> None:
        self.shares.add(replicas, times)
        for pair in permutations(replicas, 2):
            self.shared[pair] += times
        if len(replicas) > 1:
            self.successors[replicas[0], replicas[1]] += times

    def crowds(self, replicas: Sequence[int]) -> Mapping[str | None, int]:
        """How many of these replicas each rack has."""
        return Counter(self.racks.get(node) for node in replicas)

    def newcomer(self, key: Key, replicas: Sequence[int]) -> int | None:
        """The node that should get one more replica of the partition, if any can."""
        crowds = self.crowds(replicas)
        of_topic = self.shares_of(key[0])
        return min(
            (node for node in self.eligible if node not in replicas),
            key=lambda node: (
                crowds.get(self.racks[node], 0),
                self.shares.held[node],
                of_topic.held[node],
                node,
            ),
            default=None,
        )

    def arranged(self, leader: int, replicas: Sequence[int]) -> list[int]:
        """The leader first; of those behind it first the one that succeeds it most seldom.

        So the partitions that a dead node led are taken over by all of the others.
        """
        followers = [node for node in replicas if node != leader]
        followers.sort(key=lambda node: (node not in self.eligible, self.successors[leader, node]))
        return [leader, *followers]

    def replaced(self, key: Key, old: int, new: int) -> list[int]:
        """The partition's replicas with one node in another's place, as leader, too."""
        replicas = [new if node == old else node for node in self.replicas[key]]
        return replicas if key in self.pinned else self.arranged(replicas[0], replicas)

    def evenly_led(
        self, keys: Collection[Key], load: Callable[[int], int], *, step: int = 1
    ) -> Iterator[Change]:
        """Changes of preferred leaders within `keys`, until no exchange makes them more even.

        A leadership weighs `step` in a node's `load`. A node that leads too much may have nothing
        in common with one that leads too little, so leaderships also move along chains of nodes.
        Where no chain leads from the one to the other, nothing else helps, either.
        """
        while chain := self._relief(keys, load, step):
            # From the far end, so that no node on the way is ever worse off than the first one was.
            for key, leader in reversed(chain):
                yield key, self.arranged(leader, self.replicas[key])

    def _relief(
        self, keys: Collection[Key], load: Callable[[int], int], step: int
    ) -> list[tuple[Key, int]]:
        """The shortest chain (partition, its new leader) from a node that leads too much."""
        loads = {node: load(node) for node in self.eligible}
        least = min(loads.values(), default=0)
        for source in sorted(loads, key=lambda node: (-loads[node], node)):
            if least + step >= loads[source]:
                break
            chains: dict[int, list[tuple[Key, int]]] = {source: []}
            queue = deque([source])
            while queue:
                node = queue.popleft()
                heirs = self._heirs(node, keys)
                for heir in sorted(heirs, key=lambda heir: (loads[heir], heir)):
                    if heir in chains:
                        continue
                    chains[heir] = [*chains[node], (heirs[heir], heir)]
                    if loads[heir] + step < loads[source]:
                        return chains[heir]
                    queue.append(heir)
        return []

    def _heirs(self, leader: int, keys: Collection[Key]) -> dict[int, Key]:
        """Who could lead something instead, and what: of the topic that this evens out most."""
        heirs: dict[int, tuple[int, Key]] = {}
        for key in keys:
            replicas = self.replicas[key]
            if replicas[0] != leader:
                continue
            led = self.shares_of(key[0]).led
            for node in replicas[1:]:
                if node in self.eligible:
                    gain = led[leader] - led[node]
                    if node not in heirs or gain > heirs[node][0]:
                        heirs[node] = (gain, key)
        return {node: key for node, (_, key) in heirs.items()}
