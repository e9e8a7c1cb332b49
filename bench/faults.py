"""Measurements during which nodes die: run in the load's process, by the harness's hand.

The nodes are the harness's children, so a measurement asks it to kill and to restart them: a line
of JSON out, an empty line back when it is done.
"""

import json
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from bench.peers import ClusterLoad, LoadFailed, wait
from bench.processes import cpu_seconds, memory_bytes

# Before a node is killed and before it is restarted, so that each shows in what is measured.
STEADY_S = 1.0
FAST_RATE_PER_S = 100_000


def failover(load: ClusterLoad, job: dict[str, Any]) -> dict[str, Any]:
    """The longest gap in acknowledgements around each kill of the leader, its return included."""
    topic, message = job["topic"], bytes(job["size"])
    load.create(topic, 1)
    acknowledged: list[float] = []
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(load.steady, topic, message, job["rate"], acknowledged, ended)
        try:
            kills = range(job["kills"])
            gaps_s = [_kill_leader(load, topic, acknowledged, sending) for _ in kills]
        finally:
            ended.set()
        sending.result()
    load.consume(topic, 1, len(acknowledged))
    return {"gaps_s": gaps_s}


def _kill_leader(
    load: ClusterLoad, topic: str, acknowledged: list[float], sending: "Future[None]"
) -> float:
    def heard_since(moment: float) -> bool:
        if sending.done():
            sending.result()
            raise LoadFailed("the load ended before its time")
        return bool(acknowledged) and acknowledged[-1] > moment

    def leader() -> int:
        return load.leaders(topic, 1)[0]

    wait("acknowledgements", lambda: heard_since(time.monotonic() - STEADY_S))
    time.sleep(STEADY_S)
    wait("a leader", lambda: leader() >= 0)
    node = leader()
    before = len(acknowledged) - 1
    _please("kill", node)
    wait("another leader", lambda: leader() not in (-1, node))
    elected = time.monotonic()
    wait("acknowledgements by another leader", lambda: heard_since(elected))
    time.sleep(STEADY_S)
    _please("restart", node)
    wait("all replicas in sync", lambda: load.is_whole(topic, 1))
    time.sleep(STEADY_S)
    heard = acknowledged[before:]
    return max(later - earlier for earlier, later in pairwise(heard))


def many(load: ClusterLoad, job: dict[str, Any]) -> dict[str, Any]:
    """Many partitions: made, left alone, a third of their leaders killed and brought back."""
    topic, partitions = job["topic"], job["partitions"]
    began = time.monotonic()
    load.create(topic, partitions)
    found: dict[str, Any] = {"create_s": time.monotonic() - began}
    _touch_all(load, job)
    found["used_s"] = time.monotonic() - began

    time.sleep(job["settle_s"])
    before = [cpu_seconds([root]) for root in job["roots"]]
    began = time.monotonic()
    time.sleep(job["idle_s"])
    idle_s = time.monotonic() - began
    spent_s = [cpu_seconds([root]) for root in job["roots"]]
    found["idle_cpu"] = [(now - then) / idle_s for now, then in zip(spent_s, before, strict=True)]
    found["memory_bytes"] = [memory_bytes([root]) for root in job["roots"]]

    node = load.leaders(topic, partitions)[0]
    killed = time.monotonic()
    _please("kill", node)
    wait("living leaders", lambda: not {-1, node} & set(load.leaders(topic, partitions)))
    found["failover_s"] = time.monotonic() - killed
    _touch_all(load, job)
    found["acknowledged_s"] = time.monotonic() - killed
    restarted = time.monotonic()
    _please("restart", node)
    wait("all replicas in sync", lambda: load.is_whole(topic, partitions))
    found["return_s"] = time.monotonic() - restarted
    return found


def _touch_all(load: ClusterLoad, job: dict[str, Any]) -> None:
    """What nodes say of their partitions is one thing, an acknowledged message another."""
    partitions = job["partitions"]
    load.paced(job["topic"], partitions, bytes(job["size"]), FAST_RATE_PER_S, partitions)


def _please(do: str, node: int) -> None:
    print(json.dumps({"please": do, "node": node}), flush=True)
    sys.stdin.readline()
