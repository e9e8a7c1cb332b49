"""Leaders that die behind a gateway under load: `python -m tests.gateway.failover --kills 10`.

Clients produce through the gateway, each message again until it is stored, while nodes are killed
that lead a partition or the cluster. Only 503 may be answered beside 200, and to nobody for long.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import httpx

import sapwood
from tests.gateway.rest import Gateway, ok
from tests.helpers import eventually

CLIENTS = 6
PARTITIONS = 3
# How long a client may be told to come again: for a machine that does little else.
LONGEST_S = 2.0


class Answer(NamedTuple):
    at_s: float
    status: int


class Client(threading.Thread):
    """Produces until told to stop, each message again until it is stored."""

    def __init__(self, url: str, topic: str, name: str) -> None:
        super().__init__()
        self._http = httpx.Client(base_url=url, timeout=30, verify=False)
        self._topic = topic
        self._prefix = name
        self.stopping = threading.Event()
        self.answers: list[Answer] = []
        self.stored: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            message = f"{self._prefix}-{len(self.stored)}"
            body = {"topic": self._topic, "message": message, "id": message}
            response = self._http.post("/producer/produce", json=body)
            self.answers.append(Answer(time.monotonic(), response.status_code))
            if response.status_code == 200:
                self.stored.append(message)
            elif response.status_code == 503:
                self.stopping.wait(float(response.headers["retry-after"]) / 10)


def longest_refusal_s(answers: Sequence[Answer]) -> float:
    """From the first of a row of 503s to the first answer that is another one."""
    longest_s = 0.0
    since: float | None = None
    for answer in answers:
        if since is not None:
            longest_s = max(longest_s, answer.at_s - since)
        if answer.status != 503:
            since = None
        elif since is None:
            since = answer.at_s
    return longest_s


@dataclass
class Outcome:
    statuses: Counter[int] = field(default_factory=Counter)
    stored: int = 0
    """Messages that clients were told are stored."""
    size: int = 0
    """Messages that are there."""
    longest_refusals_s: list[float] = field(default_factory=list)
    """By client."""

    @property
    def complaints(self) -> list[str]:
        found = [
            f"{n} answers {code}" for code, n in self.statuses.items() if code not in (200, 503)
        ]
        if self.size != self.stored:
            found.append(f"{self.stored} were acknowledged, {self.size} are there")
        return found

    @property
    def is_slow(self) -> bool:
        return max(self.longest_refusals_s, default=0.0) >= LONGEST_S

    def __str__(self) -> str:
        answers = ", ".join(f"{count} × {code}" for code, count in sorted(self.statuses.items()))
        longest_s = max(self.longest_refusals_s, default=0.0)
        verdict = "; ".join(self.complaints) or "each once, only 503s"
        return f"{answers}; longest row of 503s {longest_s:.2f} s: {verdict}"


def run(
    cluster: sapwood.Cluster, topic: str, victims: Iterable[Callable[[Gateway], int]]
) -> Outcome:
    """Each victim is killed when all clients get on, and is back before the next."""
    with Gateway(cluster.bootstrap) as gateway:
        ok(gateway.post("/topics", topic=topic, partitions=PARTITIONS), 201)
        clients = [Client(gateway.url, topic, f"client-{it}") for it in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            for victim in victims:
                await_more(clients)
                gone = victim(gateway)
                cluster.kill(gone)
                await_more(clients)
                eventually(partial(has_controller_beside, gateway, gone), 30)
                cluster.restart(gone)
                cluster.wait_healthy()
        finally:
            for client in clients:
                client.stopping.set()
            for client in clients:
                client.join()
        stored = {each for it in clients for each in it.stored}
        return Outcome(
            sum((Counter(answer.status for answer in it.answers) for it in clients), Counter()),
            len(stored),
            ok(gateway.get("/size", topic=topic))["size"],
            [longest_refusal_s(it.answers) for it in clients],
        )


def controller(gateway: Gateway) -> int:
    return int(ok(gateway.get("/status"))["controller"])


def await_more(clients: list[Client]) -> None:
    """Until each of them has stored some more."""
    wanted = [len(it.stored) + 5 for it in clients]
    eventually(lambda: all(len(it.stored) > n for it, n in zip(clients, wanted, strict=True)), 60)


def has_controller_beside(gateway: Gateway, gone: int) -> bool:
    found = gateway.get("/status")
    return found.status_code == 200 and found.json()["controller"] not in (None, gone)


def main() -> int:
    parser = argparse.ArgumentParser(description="Leaders that die behind a gateway under load.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chance = random.Random(options.seed)
    with sapwood.Cluster(nodes=3) as cluster:

        def leader(_: Gateway) -> int:
            return eventually(
                lambda: [
                    it for it in [cluster.leader("e7", chance.randrange(PARTITIONS))] if it >= 0
                ]
            )[0]

        outcome = run(
            cluster, "e7", [chance.choice((controller, leader)) for _ in range(options.kills)]
        )
    print(outcome)
    if outcome.is_slow:
        print(f"the limit of a row of 503s is {LONGEST_S:g} s")
    return 1 if outcome.complaints or outcome.is_slow else 0


if __name__ == "__main__":
    sys.exit(main())
