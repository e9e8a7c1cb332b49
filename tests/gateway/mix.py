"""Clients that mix every endpoint for a while, and what they were answered.

`python -m tests.gateway.mix --clients 200 --seconds 60` runs it against a cluster of its own, with
faults injected into the gateways' handlers; or, if URLs are given, against gateways that are up.
"""

import argparse
import asyncio
import random
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

import sapwood
from sapwood.gateway.app import ANSWER_S
from tests.gateway.rest import Gateway

TIMEOUT_S = 60.0
# A gateway promises the first; the rest is for a slow machine, and far from a request that hangs.
LATEST_S = ANSWER_S + 20
TOPICS = 4
LOOKS = (
    *("/", "/livez", "/readyz", "/status", "/topics", "/brokers", "/openapi.json", "/pipelines"),
    *("/partitions", "/producers", "/consumers", "/raft_status", "/metrics"),
    *("/tree", "/jtree", "/broker"),
)
EDGES = ("/node/register", "/node/confirm", "/node/down")
FAULTY = ("-m", "tests.gateway.faulty")


@dataclass(slots=True)
class Report:
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    slowest_s: dict[str, float] = field(default_factory=dict)
    stored: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    def server_errors(self) -> dict[tuple[str, int], int]:
        return {key: n for key, n in self.statuses.items() if key[1] >= 500 and key[1] != 503}

    def late(self) -> dict[str, float]:
        """What outlived its timeout, and its seconds."""
        return {key: seconds for key, seconds in self.slowest_s.items() if seconds > LATEST_S}


class Client:
    def __init__(self, http: httpx.AsyncClient, number: int, report: Report) -> None:
        self._chance = random.Random(number)
        self._http = http
        self._number = number
        self._name = f"mix-{number}"
        self._topic = f"mix-{number % TOPICS}"
        self._report = report

    async def run(self, until: Callable[[], bool]) -> None:
        about = {"topic": self._topic}
        mine = {**about, "consumer": self._name}
        await self._ask("POST", "/topics", json={**about, "partitions": 3})
        await self._ask("POST", "/consumers", json=mine)
        await self._ask("POST", "/producers", json={**about, "producer": self._name})
        calls: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
            (8, self._produce),
            (8, partial(self._ask, "GET", "/consumer/consume", params=mine)),
            (2, partial(self._ask, "POST", "/consumer/ack", json=mine)),
            (1, partial(self._ask, "GET", "/pending", params=about)),
            (1, partial(self._ask, "GET", "/size", params=about)),
            (1, partial(self._ask, "GET", "/logs", params={**about, "partition": 0})),
            (1, self._append),
            (1, self._come_and_go),
            *((1, partial(self._ask, "POST", path, json={})) for path in EDGES),
            (1, partial(self._ask, "POST", "/partitions", json={**about, "partitions": 3})),
            (1, partial(self._ask, "POST", "/brokers")),
            (1, partial(self._ask, "POST", "/pipelines", json={"pipeline": "archive"})),
            (1, self._listen),
            *((1, partial(self._ask, "GET", path)) for path in LOOKS),
        ]
        await calls[self._number % len(calls)][1]()  # so that every one is made by somebody
        weights = [weight for weight, _ in calls]
        while not until():
            ((_, call),) = self._chance.choices(calls, weights)
            await call()

    async def _produce(self) -> None:
        body = {"topic": self._topic, "message": "m" * 100, "producer": self._name}
        self._note(await self._ask("POST", "/producer/produce", json=body))

    async def _append(self) -> None:
        body = {"topic": self._topic, "partition": 1, "message": "appended"}
        self._note(await self._ask("POST", "/logs", json=body))

    async def _come_and_go(self) -> None:
        """Everything that can be made is unmade."""
        about = {"topic": f"{self._name}-passing"}
        await self._ask("POST", "/topics", json={**about, "partitions": 1})
        for kind in ("producer", "consumer"):
            named = {**about, kind: self._name}
            await self._ask("POST", f"/{kind}s", json=named)
            await self._ask("DELETE", f"/{kind}s", params=named)
        await self._ask("DELETE", "/topics", params=about)

    async def _listen(self) -> None:
        """To events of the tree, until the first has come."""
        key = "GET /tree/events"
        began = asyncio.get_running_loop().time()
        try:
            async with self._http.stream("GET", "/tree/events") as events:
                self._report.statuses[key, events.status_code] += 1
                async for _ in events.aiter_lines():
                    break
        except httpx.HTTPError as error:
            self._report.failures[f"{key}: {type(error).__name__}"] += 1
        self._note_time(key, began)

    def _note_time(self, key: str, began: float) -> None:
        seconds = asyncio.get_running_loop().time() - began
        self._report.slowest_s[key] = max(self._report.slowest_s.get(key, 0), seconds)

    def _note(self, response: httpx.Response | None) -> None:
        if response is not None and response.is_success:
            found = response.json()
            place = found["partition"], found["offset"]
            self._report.stored.setdefault(found["topic"], set()).add(place)

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        began = asyncio.get_running_loop().time()
        report = self._report
        try:
            response = await self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            report.failures[f"{method} {path}: {type(error).__name__}"] += 1
            return None
        key = f"{method} {path}"
        report.statuses[key, response.status_code] += 1
        self._note_time(key, began)
        return response


async def mix(
    urls: list[str], clients: int, until: Callable[[], bool], timeout_s: float = TIMEOUT_S
) -> Report:
    report = Report()
    unused = ssl.create_default_context()  # making one takes as long as many requests
    async with AsyncExitStack() as stack:
        # Each has its own: a pool that all share looks through all connections every time.
        https = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=urls[it % len(urls)], timeout=timeout_s, verify=unused)
            )
            for it in range(clients)
        ]
        await asyncio.gather(
            *(Client(http, it, report).run(until) for it, http in enumerate(https))
        )
    return report


def mixed(urls: list[str], clients: int, seconds: float) -> Report:
    async def run() -> Report:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        return await mix(urls, clients, lambda: loop.time() > end)

    return asyncio.run(run())


def missing(url: str, report: Report) -> dict[str, int]:
    """By topic, how many messages that were stored are not to be found."""
    found = {}
    for topic, places in report.stored.items():
        answer = httpx.get(f"{url}/size", params={"topic": topic}, timeout=TIMEOUT_S).json()
        ends = {it["partition"]: it["end"] for it in answer["partitions"]}
        if lost := sum(offset >= ends[partition] for partition, offset in places):
            found[topic] = lost
    return found


def tell(report: Report) -> None:
    for (key, status), count in sorted(report.statuses.items()):
        slowest = report.slowest_s.get(key, 0)
        print(f"{key:28} {status} {count:7}  slowest {slowest:6.2f} s")
    print("broken off:", dict(report.failures) or "none")
    print(f"later than {LATEST_S:g} s:", report.late() or "none")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("urls", nargs="*")
    flags.add_argument("--clients", type=int, default=200)
    flags.add_argument("--seconds", type=float, default=60)
    given = flags.parse_args()
    if given.urls:
        report = mixed(given.urls, given.clients, given.seconds)
        tell(report)
        sys.exit(1 if report.failures or report.late() else 0)
    with sapwood.Cluster(nodes=3) as cluster, ExitStack() as stack:
        gateways = [Gateway(cluster.bootstrap, node, FAULTY) for node in cluster.nodes]
        for gateway in gateways:
            stack.callback(gateway.stop)
        report = mixed([it.url for it in gateways], given.clients, given.seconds)
        tell(report)
        with Gateway(cluster.bootstrap) as healthy:
            lost = missing(healthy.url, report)
    print("stored and lost:", lost or "none")
    sys.exit(1 if lost or report.failures or report.late() else 0)


if __name__ == "__main__":
    main()
