"""Plans by name: what a cluster must be shown to bear, the same each time but for the seed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from chaos.nemesis import Step
from chaos.shape import Shape, steady

Scenario = Callable[[random.Random], tuple[Shape, Sequence[Step]]]

FIRST_S = 3.0


def _leaders(name: str, hold_s: float, times: int, every_s: float) -> Scenario:
    """One leader after the other, each when the cluster is whole again."""

    def scenario(chance: random.Random) -> tuple[Shape, list[Step]]:
        return steady(), [
            Step(FIRST_S + i * every_s, name, hold_s, "leader", chance.getrandbits(32), True)
            for i in range(times)
        ]

    return scenario


def _majority(chance: random.Random) -> tuple[Shape, list[Step]]:
    """Two of three are gone for a while, three times."""
    steps = []
    for i in range(3):
        at_s = FIRST_S + 15 * i
        steps += [
            Step(at_s, "kill", 6.0, "leader", chance.getrandbits(32), True),
            Step(at_s + 0.5, "kill", 5.0, "any", chance.getrandbits(32)),
        ]
    return steady(), steps


def _power(chance: random.Random) -> tuple[Shape, list[Step]]:
    """All at once, five times; once more while they start."""
    steps = [Step(FIRST_S + 10 * i, "power", 1.0, "any", chance.getrandbits(32)) for i in range(5)]
    return steady(), [*steps, Step(FIRST_S + 41.5, "power", 1.0, "any", chance.getrandbits(32))]


def _refill(chance: random.Random) -> tuple[Shape, list[Step]]:
    """A node's data is gone, and a leader dies while it is filled again, with much to come."""
    steps = [
        Step(FIRST_S + 5 + 15 * i, "refill", 3.0, "any", chance.getrandbits(32)) for i in range(3)
    ]
    return replace(steady(), size_bytes=4000), steps


def _damage(chance: random.Random) -> tuple[Shape, list[Step]]:
    steps = [
        Step(FIRST_S + 10 * i, "flip", 0.5, "leader", chance.getrandbits(32)) for i in range(4)
    ]
    return steady(), steps


def _grow(chance: random.Random) -> tuple[Shape, list[Step]]:
    """Another node joins sixty partitions under load, and one of the first is drained."""
    steps = [
        Step(FIRST_S, "join", 1.0, "any", chance.getrandbits(32)),
        Step(FIRST_S + 10, "empty", 1.0, "any", chance.getrandbits(32), True),
    ]
    return replace(steady(), topics={"t0": 60}, window=10), steps


SCENARIOS: dict[str, Scenario] = {
    "leader-kills": _leaders("kill", 2.0, 20, 5.0),
    "leader-pauses": _leaders("pause", 10.0, 20, 14.0),
    "majority": _majority,
    "power": _power,
    "refill": _refill,
    "damage": _damage,
    "grow": _grow,
}
