"""Faults on a schedule. The seed decides which, when, for how long and on whom."""

import heapq
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.faults import KINDS, Strike, Struck
from chaos.history import Fault, Recorder
from chaos.target import Target, Unhealed

FIRST_S = 2.0
REST_S = (0.5, 5.0)
OVERLAPPING = 0.25
HEALTH_PATIENCE_S = 20.0
WAIT_S = 0.2
AIMS = ("leader", "leader", "controller", "any")


@dataclass(frozen=True, slots=True)
class Step:
    """A fault to come."""

    at_s: float
    name: str
    hold_s: float
    aim: str
    seed: int
    when_whole: bool = False
    """Not before the cluster has got over what was before."""


def plan(chance: random.Random, seconds: float, names: Sequence[str]) -> list[Step]:
    """What is to happen, before anything has."""
    steps: list[Step] = []
    at_s = FIRST_S
    while True:
        name = chance.choice(names)
        shortest, longest = KINDS[name].hold_s
        longest = max(shortest, min(longest, seconds / 4))
        # As many short ones as long ones on a scale of orders of magnitude.
        hold_s = math.exp(chance.uniform(math.log(shortest), math.log(longest)))
        aim, seed = chance.choice(AIMS), chance.getrandbits(32)
        step = Step(round(at_s, 3), name, round(hold_s, 3), aim, seed)
        if step.at_s + step.hold_s > seconds:
            return steps
        steps.append(step)
        overlaps = chance.random() < OVERLAPPING
        at_s += hold_s * chance.random() if overlaps else hold_s + chance.uniform(*REST_S)


class Nemesis(threading.Thread):
    """Carries a plan out. A fault that has lost its sense meanwhile is left out."""

    def __init__(
        self,
        target: Target,
        recorder: Recorder,
        steps: Sequence[Step],
        partitions: Sequence[tuple[str, int]],
    ) -> None:
        super().__init__(name="nemesis", daemon=True)
        self.active: dict[int, Fault] = {}
        self.done = 0
        self.left_out = 0
        self.error: BaseException | None = None
        self._victims = target
        self._recorder = recorder
        self._partitions = partitions
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._struck: dict[int, Struck] = {}
        self._now_s = 0.0
        self._ended = threading.Event()
        self._sick: int | None = None  # the one node whose files are harmed
        for step in steps:
            self._schedule(step.at_s, lambda step=step: self._begin(step))  # type: ignore[misc]

    def run(self) -> None:
        began = time.monotonic()
        try:
            while self._events:
                at_s, _, act = heapq.heappop(self._events)
                if self._ended.wait(max(0.0, began + at_s - time.monotonic())):
                    break
                self._now_s = time.monotonic() - began
                act()
        except BaseException as error:
            self.error = error
        finally:
            for number in list(self._struck):
                self._end(number)

    @property
    def is_late(self) -> bool:
        """Whether there is more to come: a fault that waits holds the later ones up."""
        return bool(self._events)

    def finish(self) -> None:
        """End every fault that is still on; raises what went wrong with them, if anything did."""
        self.stop()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()

    def _schedule(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), act))

    def _begin(self, step: Step) -> None:
        kind = KINDS[step.name]
        if (kind.harms_disk or step.when_whole) and not self._all_is_whole():
            if step.when_whole:  # it waits, as long as the run does
                self._schedule(self._now_s + WAIT_S, lambda: self._begin(step))
            else:
                self.left_out += 1
            return
        at = self._recorder.now()
        aim: str | int = step.aim
        if kind.harms_disk and self._sick is not None:
            aim = self._sick
        struck = kind.begin(Strike(self._victims, aim, step.seed, self._partitions))
        if struck is None:
            self.left_out += 1
            return
        if kind.harms_disk:
            (self._sick,) = struck.nodes
        number = next(self._numbers)
        about = {**(struck.about or {}), "aim": step.aim, "hold_s": step.hold_s}
        self._struck[number] = struck
        self.active[number] = Fault(name=step.name, nodes=struck.nodes, at=at, about=about)
        self._schedule(self._now_s + step.hold_s, lambda: self._end(number))

    def _end(self, number: int) -> None:
        struck, fault = self._struck.pop(number, None), self.active.pop(number, None)
        if struck is None or fault is None:
            return
        struck.end()
        fault.about |= struck.found
        fault.done = self._recorder.now()
        self._recorder.add(fault)
        self.done += 1

    def _all_is_whole(self) -> bool:
        if len(self._victims.nodes) == 1:
            return not self.active
        if self.active:
            return False
        try:
            self._victims.await_health(HEALTH_PATIENCE_S)
        except Unhealed:
            return False
        return True
