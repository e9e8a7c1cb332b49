"""Kill -9 under load: `python -m tests.faults.kill9 --kills 300`.

Four idempotent producers write to a synced topic while the node is killed again and again, each
time after a number of further acknowledgements that chance decides, and started anew on the same
directory and port; now and then it is killed again while it starts and recovers. Afterwards all
that was acknowledged is there, once, in order.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

import sapwood
from tests.faults.ledger import Verdict, judge
from tests.faults.load import ProducerProcess, read_all
from tests.helpers import eventually

PRODUCERS = 4
PARTITIONS = 2  # so that producers share logs


SHARE_WHILE_STARTING = 0.3


def is_past(moment: float) -> bool:
    return time.monotonic() >= moment


@dataclass
class Outcome:
    verdict: Verdict
    acknowledged: int
    kills: int


def run(
    directory: Path, kills: int, seed: int, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    chance = random.Random(seed)
    topic = "killed"
    with sapwood.Cluster(data_dir=directory) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)
        admin.create_topics([new])[topic].result(30)
        producers = [
            ProducerProcess(cluster.bootstrap, topic, number % PARTITIONS, f"producer-{number}")
            for number in range(PRODUCERS)
        ]

        def acknowledged() -> int:
            return sum(len(producer.acknowledged) for producer in producers)

        def has_come_to(count: int) -> bool:
            return acknowledged() >= count

        try:
            is_starting, start_s = False, 1.0
            for kill in range(1, kills + 1):
                if is_starting:
                    moment = time.monotonic() + chance.uniform(0, start_s)
                    eventually(partial(is_past, moment), every_s=0.001)
                else:
                    # Sometimes at once: before anybody is back.
                    enough = acknowledged() + chance.choice((0, 1, chance.randrange(100, 2000)))
                    eventually(partial(has_come_to, enough), 60, every_s=0.001)
                cluster.kill()
                when = " while it started" if is_starting else ""
                is_starting = kill < kills and chance.random() < SHARE_WHILE_STARTING
                begun = time.monotonic()
                cluster.restart(wait=not is_starting)
                start_s = start_s if is_starting else time.monotonic() - begun
                say(f"kill {kill} of {kills}{when}: {acknowledged()} acknowledged")
            for producer in producers:
                producer.await_more()
            for producer in producers:
                producer.finish()
        finally:
            for producer in producers:
                producer.end()
        verdict = judge(
            {it.name: it.acknowledged for it in producers},
            {it.name: it.sent for it in producers},
            read_all(cluster.bootstrap, topic, PARTITIONS),
        )
        return Outcome(verdict, acknowledged(), kills)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a node under load, again and again.")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sapwood-kill9-") as directory:
        outcome = run(
            Path(directory),
            options.kills,
            options.seed,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(f"{outcome.kills} kills, {outcome.acknowledged} records acknowledged: {outcome.verdict}")
    return 0 if outcome.verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
