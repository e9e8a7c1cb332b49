"""What a named scenario promises beyond what holds in any run. Pure, as the checkers are.

A scenario is the same every time, so it can be held to more: each of its faults has come, silences
are short, replicas are spread evenly and gone where they should be, damage was noticed. How long is
too long depends on the machine: these limits are for a long command on its own, not for a test.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from chaos.checkers import Problem
from chaos.gaps import by_fault, gaps
from chaos.history import History


class Limit(NamedTuple):
    """Of the longest silence on any partition after each fault."""

    median_s: float
    worst_s: float


FAILOVER = Limit(median_s=1.5, worst_s=5.0)
LIMITS = {"leader-kills": FAILOVER, "leader-pauses": FAILOVER}


def promised(history: History) -> dict[str, list[Problem]]:
    """What each found; nothing of a run that isn't a named scenario."""
    return {name: check(history) for name, check in PROMISES.items()}


def slow(history: History) -> list[Problem]:
    limit = LIMITS.get(scenario_of(history))
    if limit is None:
        return []
    return [
        Problem("slow", it.fault, f"{what} silence {seconds:.2f} s, the limit is {most:g} s")
        for it in by_fault(gaps(history))
        for what, seconds, most in (
            ("median", it.median_s, limit.median_s),
            ("longest", it.worst_s, limit.worst_s),
        )
        if seconds >= most
    ]


def left_out(history: History) -> list[Problem]:
    """Of the plan, what never came."""
    if not scenario_of(history):
        return []
    planned = Counter(step["name"] for step in history.start.about.get("plan", []))
    missing = planned - Counter(it.name for it in history.faults)
    return [
        Problem("left out", name, f"{count} of {planned[name]} never came")
        for name, count in missing.items()
    ]


def uneven(history: History) -> list[Problem]:
    """A node that joined and hasn't its fair share, or one that was drained and isn't empty."""
    found = []
    for it in history.faults:
        shares = [int(count) for count in it.about.get("shares", {}).values()]
        if it.name == "join" and (not shares or max(shares) - min(shares) > 1):
            found.append(Problem("uneven", it.name, f"replicas by node: {it.about.get('shares')}"))
        if it.name == "empty" and it.about.get("left") != 0:
            text = f"node {it.nodes} was drained and has {it.about.get('left')} replicas"
            found.append(Problem("uneven", it.name, text))
    return found


def unnoticed(history: History) -> list[Problem]:
    """A byte that changed in one of several copies, and nobody filled that copy again.

    Only where nothing else happened: else the damaged part may have gone some other way.
    """
    names = {it.name for it in history.faults}
    if names != {"flip"} or history.start.replicas == 1:
        return []
    mended = {(it.node, it.topic, it.partition) for it in history.mended}
    return [
        Problem("unnoticed", f"{it.about['topic']}-{it.about['partition']}", f"{it.about}")
        for it in history.faults
        if "topic" in it.about
        and (it.nodes[0], it.about["topic"], it.about["partition"]) not in mended
    ] + [
        Problem("unnoticed", "everywhere", "no byte was changed")
        for _ in range(not any("topic" in it.about for it in history.faults))
    ]


def overlaps(history: History) -> list[str]:
    """Whether leaders died while a node was really being filled again: to be told, not judged."""
    missing = [it.about.get("missing", 0) for it in history.faults if it.name == "refill"]
    if not missing:
        return []
    hits = [count for count in missing if count]
    if not hits:
        return [f"NOT HIT: no leader died while a wiped node was filled again ({len(missing)})"]
    return [
        f"leaders that died while a wiped node was filled again: {len(hits)} of {len(missing)}, "
        f"with {', '.join(map(str, hits))} records to come"
    ]


def scenario_of(history: History) -> str:
    return str(history.start.about.get("scenario", ""))


PROMISES: Mapping[str, Callable[[History], list[Problem]]] = {
    "slow": slow,
    "left out": left_out,
    "uneven": uneven,
    "unnoticed": unnoticed,
}
