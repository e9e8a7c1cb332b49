"""Where replicas go: at first, when the cluster changes, and who votes on the metadata itself.

A fair share is a number of target replicas per node. A step is new target replicas for one
partition, which the partition's leader then brings about by itself. Every step brings the whole
nearer to its goal, so that planning anew after any number of steps is always right.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest

from sapwood.metadata import records as r
from sapwood.metadata.image import Image, Node
from sapwood.metadata.layout import Change, Key, Layout
from sapwood.wire.errors import ErrorCode, KafkaError

METADATA_VOTERS = 3
MORE_METADATA_VOTERS = 5
NODES_FOR_MORE_VOTERS = 7


def place(
    image: Image, count: int, replicas: int, start: int, *, topic_id: bytes = b""
) -> list[list[int]]:
    """Replicas for `count` partitions from index `start` on: the topic is spread over all nodes.

    What the nodes have of other topics decides between equals.
    """
    if not 1 <= replicas <= len(image.nodes):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {replicas} needs as many nodes, there are {len(image.nodes)}",
        )
    layout = Layout(image)
    # If too few are fit, the others take what these can't.
    unfit = {
        node.node_id: _unfit(node)
        for _, node in sorted(image.nodes.items())
        if node.node_id in layout.eligible or len(layout.eligible) < replicas
    }
    keys = [(topic_id, start + index) for index in range(count)]
    for key in keys:
        chosen = _chosen(layout, key, replicas, unfit)
        leader = _leader(layout, topic_id, chosen, unfit)
        layout.put(key, layout.arranged(leader, chosen))
    # The topic's own leaders come first; the number of all leaders only decides between equals.
    own, led = layout.shares_of(topic_id).led, layout.shares.led
    weight = 1 + led.total()
    for key, arranged in layout.evenly_led(
        keys, lambda node: weight * own[node] + led[node], step=weight + 1
    ):
        layout.put(key, arranged)
    return _dealt([layout.replicas[key] for key in keys])


def _unfit(node: Node) -> tuple[bool, bool]:
    """Smallest for a node that is fit; a draining node is better than a dead one."""
    return (not node.alive, node.draining)


def _dealt(partitions: list[list[int]]) -> list[list[int]]:
    """In such an order that neighbours have different leaders: one of each leader in turn."""
    hands: dict[int, list[list[int]]] = {}
    for replicas in partitions:
        hands.setdefault(replicas[0], []).append(replicas)
    rounds = zip_longest(*sorted(hands.values(), key=len, reverse=True))
    return [replicas for dealt in rounds for replicas in dealt if replicas is not None]


def _chosen(
    layout: Layout, key: Key, replicas: int, unfit: Mapping[int, tuple[bool, bool]]
) -> list[int]:
    topic_id, index = key
    of_topic = layout.shares_of(topic_id)
    turns = {node: (turn - index) % len(unfit) for turn, node in enumerate(unfit)}
    chosen: list[int] = []
    crowds: dict[str | None, int] = {}
    while len(chosen) < replicas:
        node = min(
            (node for node in unfit if node not in chosen),
            key=lambda node: (
                unfit[node],
                crowds.get(layout.racks[node], 0),
                of_topic.held[node],
                layout.shares.held[node],
                sum(layout.shared[node, other] for other in chosen),
                turns[node],
            ),
        )
        chosen.append(node)
        crowds[layout.racks[node]] = crowds.get(layout.racks[node], 0) + 1
    return chosen


def _leader(
    layout: Layout, topic_id: bytes, chosen: list[int], unfit: Mapping[int, tuple[bool, bool]]
) -> int:
    of_topic = layout.shares_of(topic_id)
    return min(
        chosen,
        key=lambda node: (
            unfit[node],
            of_topic.led[node],
            layout.shares.led[node],
            # Whoever has a fresh successor here; else each would always have the same one.
            min((layout.successors[node, other] for other in chosen if other != node), default=0),
        ),
    )


def plan(image: Image, limit: int, moving: Collection[Key] = ()) -> list[r.PartitionReassigned]:
    """The next steps, so that with those under way at most `limit` partitions move at a time.

    `moving` are the partitions that are on their way to their targets. One that can't get there,
    because its leader or the node that it is to move to is gone, is better left out: it would
    hold up all others.
    """
    if len(moving) >= limit:
        return []
    layout = Layout(image)
    changed: dict[Key, None] = {}
    for key, replicas in _changes(image, layout, dict.fromkeys(moving)):
        if key not in changed and len(moving) + len(changed) >= limit:
            break
        changed[key] = None
        layout.put(key, replicas)
    return [
        r.PartitionReassigned(
            topic_id=topic_id,
            partition=index,
            replicas=layout.replicas[topic_id, index],
            pinned=index in image.topics_by_id[topic_id].pinned,
        )
        for topic_id, index in changed
        if layout.replicas[topic_id, index] != image.topics_by_id[topic_id].partitions[index]
    ]


def _changes(image: Image, layout: Layout, moving: Mapping[Key, None]) -> Iterator[Change]:
    """What to change, most urgent first; each is put into the layout before the next is sought.

    None undoes what those before it are for: first the replicas on draining nodes, then the missing
    ones, then those that share a rack, then the squares of the nodes' shares only ever become less.
    So it comes to an end, in one go as well as in many.
    """
    draining = {node.node_id: None for node in image.nodes.values() if node.draining}
    ours = {key: None for key in layout.replicas if key not in layout.pinned}
    free = {key: None for key in ours if key not in moving}
    if draining:
        for key in layout.replicas:
            if key not in moving:
                yield from _off(draining, layout, key)
    for key in free:
        wanted = min(image.topics_by_id[key[0]].replication_factor, len(layout.eligible))
        if len(layout.replicas[key]) < wanted:
            yield key, _raised(layout, key, wanted)
    if len(set(layout.racks.values())) > 1:
        for key in free:
            yield from _over_racks(layout, key)
    while level := _levelled(layout, ours, moving):
        yield level
    if draining:
        for key in free:
            yield from _led_by_another(draining, layout, key)
    yield from layout.evenly_led(free, layout.shares.led.__getitem__)


def _off(draining: Collection[int], layout: Layout, key: Key) -> Iterator[Change]:
    """Replicas elsewhere for those on draining nodes; without a node to go to they stay."""
    for old in draining:
        replicas = layout.replicas[key]
        if old in replicas:
            new = layout.newcomer(key, [node for node in replicas if node != old])
            if new is not None:
                yield key, layout.replaced(key, old, new)


def _led_by_another(draining: Collection[int], layout: Layout, key: Key) -> Iterator[Change]:
    replicas = layout.replicas[key]
    fit = [node for node in replicas if node in layout.eligible]
    if fit and replicas[0] in draining:
        leader = min(fit, key=lambda node: (layout.shares.led[node], node))
        yield key, layout.arranged(leader, replicas)


def _raised(layout: Layout, key: Key, wanted: int) -> list[int]:
    replicas = list(layout.replicas[key])
    while len(replicas) < wanted and (new := layout.newcomer(key, replicas)) is not None:
        replicas.append(new)
    return layout.arranged(replicas[0], replicas)


def _over_racks(layout: Layout, key: Key) -> Iterator[Change]:
    """Replicas move out of a rack that has two more of the partition than another could have."""
    while True:
        replicas = layout.replicas[key]
        crowds = layout.crowds(replicas)
        new = layout.newcomer(key, replicas)
        old = max(
            (node for node in replicas if node in layout.eligible),
            key=lambda node: (crowds[layout.racks[node]], layout.shares.held[node], node),
            default=None,
        )
        if new is None or old is None:
            return
        if crowds[layout.racks[old]] < crowds.get(layout.racks[new], 0) + 2:
            return
        yield key, layout.replaced(key, old, new)


def _levelled(layout: Layout, ours: Collection[Key], moving: Collection[Key]) -> Change | None:
    """One replica from a node with too many to one with too few, if one can go."""
    held = layout.shares.held
    for old in sorted(layout.eligible, key=lambda node: (-held[node], node)):
        for new in sorted(layout.eligible, key=lambda node: (held[node], node)):
            if held[old] < held[new] + 2:
                break
            movable = [
                key
                for key in ours
                if old in layout.replicas[key]
                and new not in layout.replicas[key]
                and _keeps_racks(layout, key, old, new)
            ]
            settled = [key for key in movable if key not in moving]
            if settled:
                key = _best_to_go(layout, settled, old, new)
                return key, layout.replaced(key, old, new)
            if movable:
                # Others could go from elsewhere meanwhile, and would move once more in the end.
                return None
    return None


def _keeps_racks(layout: Layout, key: Key, old: int, new: int) -> bool:
    """Whether the partition is spread over racks as well with `new` as it is with `old`."""
    if layout.racks[old] == layout.racks[new]:
        return True
    crowds = layout.crowds(layout.replicas[key])
    return crowds.get(layout.racks[new], 0) < crowds[layout.racks[old]]


def _best_to_go(layout: Layout, keys: Collection[Key], old: int, new: int) -> Key:
    """One that takes a leadership along if that is too many, too, and evens out its topic."""
    with_leadership = layout.shares.led[old] >= layout.shares.led[new] + 2

    def cost(key: Key) -> tuple[bool, int]:
        held = layout.shares_of(key[0]).held
        return (layout.replicas[key][0] == old) != with_leadership, held[new] - held[old]

    return min(keys, key=cost)


def metadata_voters(image: Image, current: list[int]) -> list[int]:
    """The nodes that should vote on the metadata log, given those that do.

    A voter stays as long as it is fit. One that is dead or draining goes when another can take its
    place, one that was removed goes at once.
    """
    eligible = {node.node_id: None for node in image.eligible()}
    candidates = [node for node in dict.fromkeys([*current, *eligible]) if node in image.nodes]
    # Once five they stay five while they can: a node that dies must not cost two voters.
    were_more = min(len(current), len(candidates)) >= MORE_METADATA_VOTERS
    more = were_more or len(eligible) >= NODES_FOR_MORE_VOTERS
    wanted = MORE_METADATA_VOTERS if more else METADATA_VOTERS
    voters: list[int] = []
    while candidates and len(voters) < wanted:
        racks = [image.nodes[node].rack for node in voters]
        node = min(
            candidates,
            key=lambda node: (
                _unfit(image.nodes[node]),
                node not in current,
                racks.count(image.nodes[node].rack),
            ),
        )
        candidates.remove(node)
        voters.append(node)
    return sorted(voters)
