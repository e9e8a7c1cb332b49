"""A cluster that lives through all that can happen to it, and a naive judge of every plan.

The judge shares nothing with the planner: it counts anew each time, and knows only what a step may
do and what must be true in the end.
"""

import random
from collections import Counter
from collections.abc import Callable

from sapwood.metadata import controller, registry
from sapwood.metadata import records as r
from sapwood.metadata.image import Image
from sapwood.metadata.placement import plan
from sapwood.wire.errors import KafkaError

MOST_ROUNDS = 3000


class Cluster:
    """Partitions that are given new targets arrive there some time later, in any order."""

    def __init__(self, seed: int, *, racks: int = 1) -> None:
        self.image = Image()
        self.moved = 0
        self._chance = random.Random(seed)
        self._racks = racks
        self._topics = 0

    def live(self, event: str) -> None:
        EVENTS[event](self)

    def join(self) -> None:
        number = len(self.image.nodes) + len(self.image.removed_nodes)
        rack = str(self._chance.randrange(self._racks)) if self._racks > 1 else None
        _, records = registry.register_node(
            self.image, -1, number, {"kafka": ("h", number)}, rack, is_alive=lambda _: True
        )
        self._apply(records)

    def die(self) -> None:
        self._change(alive=False)

    def come_back(self) -> None:
        self._change(alive=True)

    def drain(self) -> None:
        self._change(draining=True)

    def undrain(self) -> None:
        self._change(draining=False)

    def remove(self) -> None:
        for node in list(self.image.nodes):
            try:
                self._apply(registry.remove_node(self.image, node))
            except KafkaError:
                continue

    def create(self) -> None:
        """A topic of some kind, if the cluster is large enough for it."""
        self._topics += 1
        name, topic_id = f"t{self._topics}", self._topics.to_bytes(16, "big")
        nodes = sorted(self.image.nodes)
        if not nodes:
            return
        count, factor = self._chance.randint(1, 9), self._chance.randint(1, min(4, len(nodes)))
        match self._chance.randrange(4):
            case 0:
                record = controller.create_topic(self.image, name, topic_id)
            case 1:
                record = controller.create_topic(self.image, name, topic_id, partition_count=count)
            case 2:
                by_hand = {n: self._chance.sample(nodes, factor) for n in range(count)}
                record = controller.create_topic(self.image, name, topic_id, assignments=by_hand)
            case _:
                record = controller.create_topic(
                    self.image, name, topic_id, partition_count=count, replication_factor=factor
                )
        self._apply([record])

    def delete(self) -> None:
        if self.image.topics:
            topic = self._chance.choice(list(self.image.topics.values()))
            self._apply([r.TopicDeleted(topic_id=topic.topic_id)])

    def extend(self) -> None:
        if self.image.topics:
            topic = self._chance.choice(list(self.image.topics.values()))
            count = len(topic.partitions) + self._chance.randint(1, 4)
            self._apply([controller.add_partitions(self.image, topic.name, count, None)])

    def reassign(self) -> None:
        if self.image.topics:
            topic = self._chance.choice(list(self.image.topics.values()))
            partition = self._chance.randrange(len(topic.partitions))
            nodes = sorted(self.image.nodes)
            replicas = self._chance.sample(nodes, self._chance.randint(1, min(4, len(nodes))))
            self._apply([controller.reassign(self.image, topic.name, partition, replicas)])

    def work(self) -> None:
        """Some moves, not all."""
        self._move(rounds=self._chance.randint(1, 9))

    def settle(self) -> None:
        assert self._move(rounds=MOST_ROUNDS), "there is always something left to move"

    def _move(self, *, rounds: int) -> bool:
        """Whether everything is settled after that many rounds at most."""
        limit = self._chance.choice([1, 2, 5, 100])
        moving: list[tuple[bytes, int]] = []
        for _ in range(rounds):
            steps = plan(self.image, limit, moving)
            assert len(moving) + len(steps) <= limit
            moving += [(step.topic_id, step.partition) for step in steps]
            assert len(set(moving)) == len(moving), "a partition is given one target at a time"
            for step in steps:
                self.moved += check_step(self.image, step)
                self.image.apply(step)
            if not moving:
                check_settled(self.image)
                return True
            arrived = self._chance.sample(moving, self._chance.randint(1, len(moving)))
            moving = [key for key in moving if key not in arrived]
        return False

    def _change(self, *, alive: bool | None = None, draining: bool | None = None) -> None:
        if self.image.nodes:
            node = self._chance.choice(sorted(self.image.nodes))
            self._apply(registry.change_node(self.image, node, alive=alive, draining=draining))

    def _apply(self, records: list[r.Record]) -> None:
        for record in records:
            self.image.apply(record)


EVENTS: dict[str, Callable[[Cluster], None]] = {
    "join": Cluster.join,
    "die": Cluster.die,
    "come back": Cluster.come_back,
    "drain": Cluster.drain,
    "undrain": Cluster.undrain,
    "remove": Cluster.remove,
    "create": Cluster.create,
    "delete": Cluster.delete,
    "extend": Cluster.extend,
    "reassign": Cluster.reassign,
    "work": Cluster.work,
    "settle": Cluster.settle,
}


def is_fit(image: Image, node: int) -> bool:
    return image.nodes[node].alive and not image.nodes[node].draining


def check_step(image: Image, step: r.PartitionReassigned) -> int:
    """A step may do this and nothing else; how many replicas it moves."""
    topic = image.topics_by_id[step.topic_id]
    before, after = topic.partitions[step.partition], step.replicas
    fit = [node for node in image.nodes if is_fit(image, node)]
    gone, come = set(before) - set(after), set(after) - set(before)
    assert before != after
    assert len(set(after)) == len(after)
    assert all(node in fit for node in come)
    assert all(node in fit or image.nodes[node].draining for node in gone), "the dead may come back"
    if len(after) != len(before):
        assert len(before) < len(after) == min(topic.replication_factor, len(fit))
    assert step.pinned == (step.partition in topic.pinned)
    if step.pinned:
        assert len(after) == len(before)
        for old, new in zip(before, after, strict=True):
            assert old == new or image.nodes[old].draining
    return len(come)


def check_settled(image: Image) -> None:
    """What is true of a cluster that has nothing left to move."""
    fit = [node for node in image.nodes if is_fit(image, node)]
    ours = [
        (topic, replicas)
        for topic in image.topics.values()
        for index, replicas in enumerate(topic.partitions)
        if index not in topic.pinned
    ]
    everything = [replicas for topic in image.topics.values() for replicas in topic.partitions]
    for topic, replicas in ours:
        assert len(replicas) >= min(topic.replication_factor, len(fit))
    for replicas in everything:
        if any(image.nodes[node].draining for node in replicas):
            assert set(fit) <= set(replicas), "it could have gone elsewhere"
    held = Counter(node for replicas in everything for node in replicas)
    for _, replicas in ours:
        if image.nodes[replicas[0]].draining:
            assert not set(fit) & set(replicas), "another could lead it"
        for old in set(replicas) & set(fit):
            for new in set(fit) - set(replicas):
                moved = [new if node == old else node for node in replicas]
                now, then = crowding(image, replicas), crowding(image, moved)
                assert now <= then, "it could be spread over racks"
                assert now < then or held[old] <= held[new] + 1, "it could be spread over nodes"
    check_leaders(image, fit, [replicas for _, replicas in ours])


def crowding(image: Image, replicas: list[int]) -> int:
    return sum(n * n for n in Counter(image.nodes[node].rack for node in replicas).values())


def check_leaders(image: Image, fit: list[int], ours: list[list[int]]) -> None:
    """No leadership can go, directly or through others, to a node with two fewer."""
    led = Counter(replicas[0] for topic in image.topics.values() for replicas in topic.partitions)
    reach = {node: {node} for node in fit}
    for _ in fit:
        for replicas in ours:
            if replicas[0] in reach:
                for node in set(replicas[1:]) & set(fit):
                    for other in fit:
                        if replicas[0] in reach[other]:
                            reach[other].add(node)
    for node in fit:
        assert all(led[node] <= led[other] + 1 for other in reach[node])
