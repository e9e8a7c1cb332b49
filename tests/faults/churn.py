"""Groups under churn: `python -m tests.faults.churn --members 10 --seconds 120`.

Consumers of every kind, so many of each or a few less, join, leave and are killed, and nodes are
killed, while a producer runs. In the end every group must have processed every record, no partition
may have had two owners at a time, and no committed position may have gone back.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

import sapwood
from tests.helpers import eventually
from tests.judges.audit import Audit, read_all
from tests.judges.confluent import Confluent
from tests.judges.membership import Members

TOPIC = "churn"
PARTITIONS = 12
NODES = 3
PAUSE_S = 0.01
TURN_S = 0.5
NODE_KILL_EVERY_S = 10.0
PATIENCE_S = 120
# So many fewer than at the beginning may run; then the next turn starts one.
SPREAD = 2
# So long the newer groups wait for a member that was killed.
QUICK = {"group.consumer.session.timeout.ms": 6000}

GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "confluent-classic": ("confluent-kafka", {}),
    "confluent-newer": ("confluent-kafka", {"group_protocol": "consumer"}),
    "aiokafka": ("aiokafka", {}),
    "kafka-python": ("kafka-python", {}),
}


@dataclass
class Outcome:
    records: int = 0
    member_kills: int = 0
    member_leaves: int = 0
    node_kills: int = 0
    gave_up: int = 0
    """Members whose client had enough; another one is started then."""
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each kind, how many ran: the least and the most."""
    unprocessed: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.faults and not any(self.unprocessed.values())

    def __str__(self) -> str:
        verdict = "; ".join(self.faults) or "one owner each, positions only grew"
        return (
            f"{self.records} records, {self.member_kills} members killed, {self.member_leaves} "
            f"left, {self.node_kills} nodes killed, {self.gave_up} gave up; "
            f"ran: {', '.join(f'{name} {a} to {b}' for name, (a, b) in self.members.items())}; "
            f"not processed: {self.unprocessed}; {verdict}"
        )


class Writing:
    """A producer that goes on until it is told to stop, and knows what was stored where."""

    def __init__(self, bootstrap: str) -> None:
        self.places: set[tuple[int, int]] = set()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._asked.wait(PAUSE_S):
            self._producer.produce(
                TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._stored
            )
            self._producer.poll(0)
            number += 1

    def _stored(self, error: Any, message: Any) -> None:
        # Of a repeat that came long after its original librdkafka knows no place.
        if error is None and message.offset() is not None:
            self.places.add((message.partition(), message.offset()))

    def finish(self) -> set[tuple[int, int]]:
        self._asked.set()
        self._thread.join()
        self._producer.flush(PATIENCE_S)
        return self.places


def turn(group: Members, most: int, chance: random.Random, outcome: Outcome) -> None:
    """One member of a group comes or goes."""
    count = len(group.alive)
    if count <= max(1, most - SPREAD) or (count < most and chance.random() < 0.55):
        group.start(1, **GROUPS[group.where[1]][1])
        return
    member = chance.choice(group.alive)
    if chance.random() < 0.5:
        outcome.member_kills += 1
        group.kill(member)
        return
    outcome.member_leaves += 1
    # One that doesn't come to its end, for which there is no coordinator to talk to, is killed.
    with contextlib.suppress(subprocess.TimeoutExpired):
        group.leave(member)


def note(groups: list[Members], outcome: Outcome) -> None:
    """Who runs just now."""
    for group in groups:
        outcome.gave_up += group.bury()
        now, name = len(group.alive), group.where[1]
        least, most = outcome.members.get(name, (now, now))
        outcome.members[name] = min(least, now), max(most, now)


def gather(groups: list[Members], members: int) -> None:
    """So many of each kind, and everybody has got something to do."""
    for group in groups:
        group.start(members, **GROUPS[group.where[1]][1])
    for group in groups:
        eventually(partial(group.share, PARTITIONS), PATIENCE_S, 0.1)


def stuck(group: Members, left: set[tuple[int, int]]) -> str:
    """What members believe, and what the coordinator knows, of a group that doesn't go on."""
    bootstrap, name, _ = group.where
    owned = {member.pid: (member.member_ids[-1:], sorted(member.owned)) for member in group.alive}
    missing = {number: sorted(it for at, it in left if at == number) for number, _ in left}
    spans = {number: (its[0], its[-1], len(its)) for number, its in sorted(missing.items())}
    command = [sys.executable, "-m", "sapwood", "group", "describe", name, "-b", bootstrap]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return f"{name} lacks {spans}; members own {owned}\n{shown.stdout}{shown.stderr}"


def run(
    directory: Path,
    members: int,
    seconds: float,
    seed: int,
    say: Callable[[str], None] = print,
    names: Collection[str] = tuple(GROUPS),
) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome()
    with sapwood.Cluster(NODES, config=QUICK, data_dir=directory / "cluster") as cluster:
        Confluent(cluster.bootstrap).create_topic(TOPIC, partitions=PARTITIONS, replicas=NODES)
        writing = Writing(cluster.bootstrap)
        groups = [Members(GROUPS[name][0], cluster.bootstrap, name, TOPIC) for name in names]
        try:
            gather(groups, members)
            note(groups, outcome)
            churn(cluster, groups, members, seconds, chance, outcome, say)
            places = writing.finish()
            outcome.records = len(places)

            def has_all(group: Members) -> bool:
                outcome.gave_up += group.bury()
                if not group.alive:
                    group.start(1, **GROUPS[group.where[1]][1])
                return places <= set(group.processed)

            for group in groups:
                with contextlib.suppress(AssertionError):
                    eventually(partial(has_all, group), PATIENCE_S, 0.5)
                left = places - set(group.processed)
                outcome.unprocessed[group.where[1]] = len(left)
                if left:
                    say(stuck(group, left))
        finally:
            for group in groups:
                for member in list(group.alive):
                    group.kill(member)
        stored = read_all(cluster.bootstrap)
        for name in names:
            outcome.faults += [f"{name}: {fault}" for fault in Audit(stored, name).faults]
    return outcome


def leaders(cluster: sapwood.Cluster, partition: int) -> set[int]:
    """The one there is; while one is elected there is none."""
    return {cluster.leader(TOPIC, partition)} - {-1}


def churn(
    cluster: sapwood.Cluster,
    groups: list[Members],
    members: int,
    seconds: float,
    chance: random.Random,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    end = time.monotonic() + seconds
    next_kill = time.monotonic() + NODE_KILL_EVERY_S
    dead: int | None = None
    while time.monotonic() < end:
        turn_ends = time.monotonic() + TURN_S
        turn(chance.choice(groups), members, chance, outcome)
        note(groups, outcome)
        if time.monotonic() > next_kill:
            next_kill = time.monotonic() + NODE_KILL_EVERY_S / 2
            if dead is None:
                (dead,) = eventually(partial(leaders, cluster, chance.randrange(PARTITIONS)))
                cluster.kill(dead)
                outcome.node_kills += 1
            else:
                cluster.restart(dead)
                dead = None
            alive = {group.where[1]: len(group.alive) for group in groups}
            say(f"{outcome.node_kills} nodes killed; members: {alive}")
        eventually(lambda: time.monotonic() > turn_ends, TURN_S * 4)  # noqa: B023
    if dead is not None:
        cluster.restart(dead)


def main() -> int:
    parser = argparse.ArgumentParser(description="Groups whose members and nodes come and go.")
    parser.add_argument(
        "--members",
        type=int,
        choices=range(2, PARTITIONS + 1),
        default=10,
        help=f"of each kind, at the beginning; then so many or up to {SPREAD} fewer",
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=tuple(GROUPS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sapwood-churn-") as directory:
        outcome = run(
            Path(directory),
            options.members,
            options.seconds,
            options.seed,
            lambda line: print(line, file=sys.stderr, flush=True),
            options.groups,
        )
    print(outcome)
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
