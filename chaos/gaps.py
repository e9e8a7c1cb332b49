"""How long acknowledgements stayed away around each fault: measured, not judged.

How long is too long depends on the fault and on the machine; `promises` judges where it is known.
"""

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise, zip_longest
from typing import NamedTuple

from chaos.history import Fault, History


class Gap(NamedTuple):
    """The longest time without an acknowledgement on any partition while a fault was the last."""

    fault: str
    nodes: list[int]
    at: float
    seconds: float
    topic: str
    partition: int


def gaps(history: History) -> list[Gap]:
    """For each fault the longest silence on any partition, up to the next fault."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for send in history.sends:
        if send.outcome == "ok" and send.done is not None:
            times[send.topic, send.partition].append(send.done)
    last_sent: dict[tuple[str, int], float] = defaultdict(float)
    for send in history.sends:
        key = (send.topic, send.partition)
        last_sent[key] = max(last_sent[key], send.at)
    faults = sorted(history.faults, key=lambda fault: fault.at)
    found = []
    for fault, following in zip_longest(faults, faults[1:]):
        until = following.at if following is not None else float("inf")
        longest = max(
            (
                (seconds, key)
                for key, done in times.items()
                for seconds in _silences(sorted(done), fault, until, last_sent[key])
            ),
            default=None,
        )
        if longest is not None:
            seconds, (topic, partition) = longest
            gap = Gap(fault.name, fault.nodes, fault.at, round(seconds, 3), topic, partition)
            found.append(gap)
    return found


class Summary(NamedTuple):
    fault: str
    faults: int
    median_s: float
    worst_s: float


def by_fault(found: Iterable[Gap]) -> list[Summary]:
    """The gaps of each kind of fault together."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for gap in found:
        seconds[gap.fault].append(gap.seconds)
    return [
        Summary(name, len(them), round(statistics.median(them), 3), max(them))
        for name, them in sorted(seconds.items())
    ]


def _silences(done: list[float], fault: Fault, until: float, last_sent: float) -> Iterator[float]:
    """Intervals between acknowledgements that reach into the time of the fault."""
    first = max(bisect_right(done, fault.at) - 1, 0)
    for before, after in pairwise(done[first:]):
        if before >= until:
            return
        if after > fault.at:
            yield after - before
    if done[-1] < until and last_sent > max(done[-1], fault.at):
        yield last_sent - done[-1]  # asked for, and never answered again
