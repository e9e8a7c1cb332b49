"""What is asked of a seed, and what came of it: the same for both tiers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

CONSENSUS, TREE = "consensus", "tree"


class NoSuchFault(Exception):
    """There is no fault of this name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of a seed."""

    minutes: float
    """Of faults, in virtual time."""
    nodes: int | None = None
    """None: as many as the seed says."""
    hints: bool = True
    """Whether nodes are told at each start where others may be."""
    plant: str | None = None
    faults: tuple[str, ...] = ()
    """These, instead of a choice of the seed's."""
    traces: Path | None = None
    """Where the trace of a seed that fails is written to."""
    always_trace: bool = False
    rules: str = CONSENSUS
    """Which of those that tier 1 has."""


@dataclass(slots=True)
class Outcome:
    seed: int
    simulated_s: float
    wall_s: float
    events: int
    digest: str
    """Of the trace: two runs of a seed have the same."""
    acknowledged: int
    """Records that a client was told are stored; in tier 1, entries that were committed, or edges
    that were healed."""
    faults: dict[str, int] = field(default_factory=dict)
    failure: str = ""


def trace_path(traces: Path, seed: int) -> Path:
    return traces / f"seed-{seed}.txt"


def check_faults(wanted: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for kind in wanted:
        if kind not in names:
            raise NoSuchFault(f"no fault is called {kind!r}: choose from {', '.join(names)}")
