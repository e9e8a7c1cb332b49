"""Which node is to hold and to lead what, counted, so that placement can try changes out.

`held` and `led` count target replicas and preferred leaderships by node, `held_of` and `led_of`
by topic and node; `successors` counts who comes next by (preferred leader, next replica), and
`shared` the partitions that two nodes have in common.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import permutations

from sapwood.metadata.image import Image

Key = tuple[bytes, int]
"""A partition: topic id and index."""
Change = tuple[Key, list[int]]


class Layout:
    def __init__(self, image: Image) -> None:
        self.eligible: dict[int, None] = {node.node_id: None for node in image.eligible()}
        self.racks: dict[int, str | None] = {
            node.node_id: node.rack for node in image.nodes.values()
        }
        self.replicas: dict[Key, list[int]] = {}
        self.held: defaultdict[int, int] = defaultdict(int)
        self.led: defaultdict[int, int] = defaultdict(int)
        self.held_of: defaultdict[tuple[bytes, int], int] = defaultdict(int)
        self.led_of: defaultdict[tuple[bytes, int], int] = defaultdict(int)
        self.successors: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.shared: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.pinned = {
            (topic.topic_id, index) for topic in image.topics.values() for index in topic.pinned
        }
        for topic in image.topics.values():
            for index, replicas in enumerate(topic.partitions):
                self.put((topic.topic_id, index), replicas)

    def put(self, key: Key, replicas: list[int]) -> None:
        self._count(key, self.replicas.get(key, []), -1)
        self._count(key, replicas, 1)
        self.replicas[key] = replicas

    def _count(self, key: Key, replicas: list[int], sign: int) -> None:
        topic_id = key[0]
        for node in replicas:
            self.held[node] += sign
            self.held_of[topic_id, node] += sign
        if replicas:
            self.led[replicas[0]] += sign
            self.led_of[topic_id, replicas[0]] += sign
        if len(replicas) > 1:
            self.successors[replicas[0], replicas[1]] += sign
            for pair in permutations(replicas, 2):
                self.shared[pair] += sign

    def crowds(self, replicas: Sequence[int]) -> Mapping[str | None, int]:
        """How many of these replicas each rack has."""
        return Counter(self.racks.get(node) for node in replicas)

    def newcomer(self, key: Key, replicas: Sequence[int]) -> int | None:
        """The node that should get one more replica of the partition, if any can."""
        crowds = self.crowds(replicas)
        return min(
            (node for node in self.eligible if node not in replicas),
            key=lambda node: (
                crowds.get(self.racks[node], 0),
                self.held[node],
                self.held_of[key[0], node],
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
            led = self.led_of[key[0], leader]
            for node in replicas[1:]:
                if node in self.eligible:
                    gain = led - self.led_of[key[0], node]
                    if node not in heirs or gain > heirs[node][0]:
                        heirs[node] = (gain, key)
        return {node: key for node, (_, key) in heirs.items()}
