"""What a client process is told: who it is, whom to trouble, and how."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Literal

import msgspec

from sapwood.chaos.notes import Notebook

Plant = Literal["", "keep-late", "acknowledge-late", "forget-ids", "overtake", "stale-owner"]

PLANTS: dict[Plant, str] = {
    "keep-late": "subscribers acknowledge a message before they keep it: a crash loses it",
    "acknowledge-late": "subscribers keep a message before they acknowledge it: a crash doubles it",
    "forget-ids": "publishers repeat a put without its id: it is stored twice",
    "overtake": "publishers put a message before the one that goes before it",
    "stale-owner": "subscribers keep a message that went to another process while they stood still",
}

# Files that tell the clients what comes next.
CALM = "calm"  # no more faults; publishers finish
DRAIN = "drain"  # nothing will be put any more; subscribers get what is left, and finish

_CRASH_CHANCE = 0.004  # at each step
_DELICATE_CRASH_CHANCE = 0.02  # between a message's return and the note of it
_PLANTED_CRASH_CHANCE = 0.1  # at the very step that a planted bug fears
_STALL_CHANCE = 0.003
_SHARED_STALL_CHANCE = 0.015  # there another process gets on meanwhile
# The longest is longer than a session, so that somebody else has got on meanwhile.
_STALLS_S = (4.0, 4.0, 10.0)


class Orders(msgspec.Struct, frozen=True):
    role: Literal["publisher", "subscriber"]
    name: str
    bootstrap: str
    directory: str
    topics: list[str]
    seed: int
    life_s: float
    rate: float
    plant: Plant = ""
    acknowledges: bool = False
    """A subscriber that acknowledges each message itself, and may forget to."""
    process: int = 0
    """Which of the two of a subscriber that has two at a time, under one id."""
    is_shared: bool = False
    """Whether it has; such a one subscribes to everything, and stays."""

    @property
    def notes(self) -> Path:
        suffix = f".{self.process}" if self.process else ""
        return Path(self.directory) / f"{self.name}{suffix}.notes"


class Troublemaker:
    """What the clients have in common: notes, chance, and faults until it is calm."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._directory = Path(orders.directory)
        self.notes = Notebook(orders.notes)
        incarnation = sum(note.what == "began" for note in self.notes.earlier)
        who = f"{orders.name}/{incarnation}" + f"/{orders.process}" * bool(orders.process)
        self.chance = random.Random(f"{orders.seed}/{who}")
        self._ends_at = time.monotonic() + orders.life_s
        self.notes.write("began")

    @property
    def is_calm(self) -> bool:
        if time.monotonic() > self._ends_at:  # whoever started this is gone
            os._exit(3)
        return (self._directory / CALM).exists()

    @property
    def is_draining(self) -> bool:
        return (self._directory / DRAIN).exists()

    def chooses(self, chance: float) -> bool:
        return self.chance.random() < chance and not self.is_calm

    def may_crash(self, feared_by: Plant = "", *, is_delicate: bool = False) -> None:
        """Die here and now, without a word, perhaps."""
        chance = _DELICATE_CRASH_CHANCE if is_delicate else _CRASH_CHANCE
        if feared_by and feared_by == self.orders.plant:
            chance = _PLANTED_CRASH_CHANCE
        if self.chooses(chance):
            os._exit(1)

    def may_stall(self) -> None:
        if self.chooses(_SHARED_STALL_CHANCE if self.orders.is_shared else _STALL_CHANCE):
            self.stall(0.5, self.chance.choice(_STALLS_S))

    def stall(self, least_s: float, most_s: float) -> None:
        self.notes.write("stalls")
        time.sleep(self.chance.uniform(least_s, most_s))
