"""Edges in the simulator: a bug of theirs that must show."""

from dataclasses import replace

from sim.plan import Plan
from sim.scenario import Treed, kind_of, run_seed
from sim.world import World

PLAN = Plan(minutes=0.2, nodes=3, faults=("restart of an edge", "crash of edges", "cut links"))

SHOWS = ("ReadersAreNeverAhead: ", "OneSequence: ")
"""A plain reader is told that it has read too far; a merged one begins anew, and repeats itself."""


def has_edges(seed: int) -> bool:
    world = World(seed)
    kind = kind_of(world, PLAN)
    world.close()
    return issubclass(kind, Treed)


def test_an_edge_that_calls_an_offset_out_of_range_by_itself_is_caught() -> None:
    plan = replace(PLAN, plant="edge-says-out-of-range")
    runs = (run_seed(seed, plan) for seed in filter(has_edges, range(100, 140)))
    failed = next(it for it in runs if it.failure)
    assert failed.failure.startswith(SHOWS)
    assert run_seed(failed.seed, PLAN).failure == ""
