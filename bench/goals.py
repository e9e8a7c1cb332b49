"""What Sapwood aims at, and where the numbers fall short of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.report import Results, describe
from bench.work import CLUSTER, METRICS, Row


@dataclass(frozen=True)
class Goal:
    """In every row of these metrics: Sapwood's number over that of each of these peers."""

    metrics: tuple[str, ...]
    peers: tuple[str, ...]
    limit: float
    only_synced: bool = False
    nodes: int = 1
    against_defaults: bool = False
    """Sapwood synced, the peer as it comes: writing what it acknowledges to its disks later."""

    @property
    def at_least(self) -> bool:
        return METRICS[self.metrics[0]].higher_is_better

    def title(self, titles: dict[str, str]) -> str:
        where = f"{self.nodes} nodes: " if self.nodes > 1 else ""
        what = " and ".join(METRICS[name].title for name in self.metrics)
        than = ", ".join(titles[peer] for peer in self.peers if peer in titles)
        synced = ", synced" if self.only_synced or self.against_defaults else ""
        at = " at its defaults" if self.against_defaults else ""
        sign = "≥" if self.at_least else "≤"
        return f"{where}{what}{synced}: {sign} {self.limit:g} × {than}{at}"

    def ratios(self, results: Results) -> Iterator[tuple[Row, str, float]]:
        for metric in self.metrics:
            for row in results.rows(metric):
                if row.nodes != self.nodes:
                    continue
                if not row.synced and (self.only_synced or self.against_defaults):
                    continue
                theirs = row._replace(synced=False) if self.against_defaults else row
                for peer in self.peers:
                    if (ratio := results.ratio(peer, row, theirs)) is not None:
                        yield row, peer, ratio

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.at_least else ratio <= self.limit


OTHERS = ("nats", "redis", "rabbitmq")
RATES = ("produce", "consume")
GOALS = (
    Goal(RATES, ("kafka",), 1.0),
    Goal(RATES, OTHERS, 1.0, only_synced=True),
    Goal(("p99",), ("kafka",), 1.0),
    Goal(("memory",), ("kafka",), 0.25),
    Goal(("start",), ("kafka",), 0.25),
    Goal(RATES, ("kafka",), 1.0, nodes=CLUSTER),
    Goal(RATES, ("kafka",), 1.0, nodes=CLUSTER, against_defaults=True),
    Goal(RATES, ("nats",), 2.0, nodes=CLUSTER, only_synced=True),
    Goal(("p99",), ("kafka",), 1.0, nodes=CLUSTER),
    Goal(("p99",), ("kafka",), 1.0, nodes=CLUSTER, against_defaults=True),
    Goal(("failover",), ("kafka",), 0.25, nodes=CLUSTER, against_defaults=True),
    Goal(("memory",), ("kafka",), 0.25, nodes=CLUSTER),
)


def verdicts(results: Results) -> list[str]:
    """A line for each goal that was put to the test, and one for each row that misses it."""
    lines = []
    for goal in GOALS:
        found = list(goal.ratios(results))
        if not found:
            continue
        missed = [it for it in found if not goal.is_met(it[2])]
        lines.append(f"{goal.title(results.titles)}: in {len(found) - len(missed)} of {len(found)}")
        for row, peer, ratio in missed:
            where = f"{METRICS[row.metric].title}, {describe(row)}"
            lines.append(f"  {where}: {ratio:.2f} × {results.titles[peer]}")
    return lines
