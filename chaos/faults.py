"""The faults: each begins, says whom it hit, and knows how it ends."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.disk import flip
from chaos.proxy import Direction
from chaos.target import Target

DIRECTIONS: tuple[Direction, ...] = ("both", "forth", "back")
MOST_NODES = 5
REFILL_DELAY_MS = 100


@dataclass(slots=True)
class Struck:
    """A fault that has begun: whom it hit, and how it ends."""

    nodes: list[int]
    end: Callable[[], None] = lambda: None
    about: dict[str, Any] | None = None
    found: dict[str, Any] = field(default_factory=dict)
    """What showed by its end."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`begin` returns None if there is nobody to hit."""

    begin: Callable[["Strike"], Struck | None]
    hold_s: tuple[float, float]
    least_nodes: int = 1
    harms_disk: bool = False
    """Destroys a copy. All such faults of a run hit the same node: damage shows only when it is
    read, and with another copy missing, to destroy one could rightly lose something."""
    needs: Literal["", "small disk", "links", "hops"] = ""


class Strike:
    """What a fault needs to begin."""

    def __init__(
        self, target: Target, aim: str | int, seed: int, partitions: Sequence[tuple[str, int]]
    ) -> None:
        """`aim`: whom to hit; the leader of some partition, the controller, any, or just that."""
        self.target = target
        self.chance = random.Random(seed)
        self._aim = aim
        self.partitions = partitions

    def victim(self) -> int | None:
        up = self.target.up
        if isinstance(self._aim, int):
            return self._aim if self._aim in up else None
        wanted = -1
        if self._aim == "leader":
            wanted = self.target.leader(*self.chance.choice(self.partitions))
        elif self._aim == "controller":
            wanted = self.target.controller()
        by_chance = self.chance.choice(up) if up else None
        return wanted if wanted in up else by_chance


def _stopping(how: Callable[[Target, int], None]) -> Callable[[Strike], Struck | None]:
    def begin(strike: Strike) -> Struck | None:
        node = strike.victim()
        if node is None:
            return None
        how(strike.target, node)
        return Struck([node], lambda: strike.target.start(node))

    return begin


def _pause(strike: Strike) -> Struck | None:
    node = strike.victim()
    if node is None:
        return None
    strike.target.pause(node)
    return Struck([node], lambda: strike.target.resume(node))


def _power(strike: Strike) -> Struck | None:
    """All at once, and all back at once."""
    target = strike.target
    nodes = sorted({*target.up, *target.paused})
    for node in nodes:
        target.kill(node)

    def back() -> None:
        for node in nodes:
            target.start(node)

    return Struck(nodes, back)


def _flip(strike: Strike) -> Struck | None:
    """A byte changes while the node is down; it was stopped in good order, so all is durable."""
    struck = _stopping(Target.stop)(strike)
    if struck is not None:
        flipped = flip(strike.target.files(struck.nodes[0]), strike.chance)
        struck.about = flipped._asdict() if flipped else None
    return struck


def _flip_running(strike: Strike) -> Struck | None:
    node = strike.victim()
    if node is None:
        return None
    flipped = flip(strike.target.files(node), strike.chance)
    return Struck([node], about=flipped._asdict()) if flipped else None


def _fill(strike: Strike) -> Struck | None:
    disk, node = strike.target.disk, strike.target.small_disk
    if disk is None or node is None:
        return None
    disk.fill()

    def make_room() -> None:
        disk.free()
        strike.target.start(node)

    return Struck([node], make_room)


def _cut(strike: Strike) -> Struck | None:
    """A node and another, or all others, in both directions or in one."""
    node = strike.victim()
    if node is None:
        return None
    others = [other for other in strike.target.nodes if other != node]
    if strike.chance.random() < 0.3:
        others = [strike.chance.choice(others)]
    direction = strike.chance.choice(DIRECTIONS)
    mend = strike.target.cut(node, others, direction)
    return Struck([node], mend, {"from": others, "direction": direction})


def _slow(strike: Strike) -> Struck | None:
    node = strike.victim()
    if node is None:
        return None
    others = [other for other in strike.target.nodes if other != node]
    delay_ms = strike.chance.choice((20, 100, 500, 2000))
    mend = strike.target.slow(node, others, delay_ms)
    return Struck([node], mend, {"delay_ms": delay_ms})


def _spoil_hops(strike: Strike) -> Struck | None:
    """Clients lose their way to a node, or the answers on the way back; the cluster is well."""
    node, proxy = strike.victim(), strike.target.proxy
    if node is None or proxy is None:
        return None
    hops = [str(node)]
    how = strike.chance.choice(("cut", "cut", "slow", "narrow", "reset"))
    about: dict[str, Any] = {"how": how}
    if how == "cut":
        about["direction"] = strike.chance.choice(DIRECTIONS)
        proxy.cut(hops, about["direction"])
    elif how == "slow":
        about["delay_ms"] = strike.chance.choice((50, 500))
        proxy.slow(hops, about["delay_ms"])
    elif how == "narrow":
        about["bytes_per_s"] = strike.chance.choice((10_000, 100_000))
        proxy.narrow(hops, about["bytes_per_s"])
    else:
        proxy.reset(hops)

    def mend() -> None:
        if about.get("direction") == "back":
            proxy.reset(hops)  # answers that are lost for good, not only late
        proxy.heal(hops)

    return Struck([node], mend, about)


def _add(strike: Strike) -> Struck | None:
    if len(strike.target.nodes) >= MOST_NODES or len(strike.target.up) < len(strike.target.nodes):
        return None
    return Struck([strike.target.add()])


def _drain(strike: Strike) -> Struck | None:
    """With one node fewer to lie on, partitions move; at the end it may have its share again."""
    node = strike.victim()
    if node is None or not strike.target.drain(node):
        return None

    def undrain() -> None:
        strike.target.undrain(node)  # if nobody takes it now, healing does it

    return Struck([node], undrain)


def _join(strike: Strike) -> Struck | None:
    """It ends when the new node has its share, or should have had it long ago."""
    struck = _add(strike)
    if struck is not None:
        found, (node,) = struck.found, struck.nodes

        def settle() -> None:
            shares = strike.target.await_shares(
                lambda held: node in held and max(held.values()) - min(held.values()) <= 1
            )
            found["shares"] = {str(each): count for each, count in shares.items()}

        struck.end = settle
    return struck


def _empty(strike: Strike) -> Struck | None:
    """A node is drained until it holds nothing, or should long have held nothing."""
    struck = _drain(strike)
    if struck is not None:
        undrain, found, (node,) = struck.end, struck.found, struck.nodes

        def settle() -> None:
            found["left"] = strike.target.await_shares(lambda held: held.get(node) == 0).get(node)
            undrain()

        struck.end = settle
    return struck


def _refill(strike: Strike) -> Struck | None:
    """A node's data is gone, and while it is filled again, over slow links, a leader dies."""
    target, node = strike.target, strike.victim()
    if node is None:
        return None
    others = [other for other in target.nodes if other != node]
    ends = target.committed(others)
    ends = {key: end for key, end in ends.items() if key in strike.partitions}
    target.wipe(node)
    mend = target.slow(node, others, REFILL_DELAY_MS)
    target.start(node)
    place = target.await_refilling(node, ends)
    leader = target.leader(*place) if place is not None else -1
    if place is None or leader not in others:
        return Struck([node], mend, {"missing": 0})
    target.kill(leader)
    missing = target.lacks(node, ends).get(place, 0)

    def end() -> None:
        target.start(leader)
        mend()

    return Struck([node], end, {"leader": leader, "missing": missing})


KINDS: dict[str, Kind] = {
    "kill": Kind(_stopping(Target.kill), (0.05, 8)),
    "pause": Kind(_pause, (1, 60)),
    "terminate": Kind(_stopping(Target.stop), (0.05, 4)),
    "interrupt": Kind(_stopping(Target.interrupt), (0.05, 4)),
    "power": Kind(_power, (0.05, 3)),
    "wipe": Kind(_stopping(Target.wipe), (0.05, 2), least_nodes=3, harms_disk=True),
    "flip": Kind(_flip, (0.05, 2), harms_disk=True),
    "flip-running": Kind(_flip_running, (1, 2), harms_disk=True),
    "cut": Kind(_cut, (0.5, 20), least_nodes=3, needs="links"),
    "slow": Kind(_slow, (1, 15), least_nodes=3, needs="links"),
    "clients": Kind(_spoil_hops, (0.2, 15), needs="hops"),
    "add": Kind(_add, (1, 2), least_nodes=3),
    "drain": Kind(_drain, (5, 20), least_nodes=3),
    "fill": Kind(_fill, (4, 15), needs="small disk"),
    "join": Kind(_join, (1, 2), least_nodes=3),
    "empty": Kind(_empty, (1, 2), least_nodes=3),
    "refill": Kind(_refill, (2, 4), least_nodes=3, harms_disk=True, needs="links"),
}
# A node trusts what it has written or checked itself since it started, so this one isn't noticed
# before the next start: it is there to be asked for.
# These three are for scenarios: what they bring about has to be so when they are over.
UNUSUAL = {"flip-running", "join", "empty", "refill"}


def usual(nodes: int) -> list[str]:
    """The faults that a cluster of this size has to bear without losing anything."""
    return [
        name
        for name, kind in KINDS.items()
        if nodes >= kind.least_nodes and name not in UNUSUAL and (nodes > 1 or not kind.harms_disk)
    ]
