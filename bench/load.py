"""One measurement in a process of its own: `python -m bench.load JOB`, JSON in, JSON out."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from bench import faults, peers
from bench.peers import Load, LoadFailed
from bench.processes import cpu_seconds

CONNECT_TIMEOUT_S = 120.0
CONNECT_POLL_S = 0.005
WARM_UP_S = 1
# So that no measurement pays for what an earlier one left to be written.
SETTLE_S = 0.5


def throughput(load: Load, job: dict[str, Any]) -> dict[str, Any]:
    """Produce, then read all of it back: that also proves that nothing was lost."""
    topic, partitions, message = _create(load, job)
    before = cpu_seconds(job["roots"])
    count, produce_s = load.produce(
        topic, partitions, message, job["count"], job["limit_s"], keyed=job["keyed"]
    )
    produce_cpu_s = cpu_seconds(job["roots"]) - before
    os.sync()
    before = cpu_seconds(job["roots"])
    consume_s = load.consume(topic, partitions, count)
    consume_cpu_s = cpu_seconds(job["roots"]) - before
    load.delete(topic, partitions)
    return {
        "count": count,
        "produce_s": produce_s,
        "produce_cpu_s": produce_cpu_s,
        "consume_s": consume_s,
        "consume_cpu_s": consume_cpu_s,
    }


def latency(load: Load, job: dict[str, Any]) -> dict[str, Any]:
    topic, partitions, message = _create(load, job)
    rate: int = job["rate"]
    load.paced(topic, partitions, message, rate, rate * WARM_UP_S)
    latencies_ms = sorted(load.paced(topic, partitions, message, rate, job["count"]))
    load.delete(topic, partitions)
    return {"p50_ms": _quantile(latencies_ms, 0.5), "p99_ms": _quantile(latencies_ms, 0.99)}


def first(load: Load, job: dict[str, Any]) -> dict[str, Any]:
    """The moment of the first acknowledgement; this process is up before the broker is."""
    print("ready", flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", job["ports"][0]), timeout=1).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise LoadFailed("the broker doesn't listen") from error
        time.sleep(CONNECT_POLL_S)
    load.first()
    return {"acknowledged": time.monotonic()}


JOBS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "throughput": throughput,
    "latency": latency,
    "first": first,
    "failover": faults.failover,
    "many": faults.many,
}


def _create(load: Load, job: dict[str, Any]) -> tuple[str, int, bytes]:
    load.create(job["topic"], job["partitions"])
    os.sync()
    time.sleep(SETTLE_S)
    return job["topic"], job["partitions"], os.urandom(job["size"])


def _quantile(ordered: list[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def main() -> None:
    job = json.loads(sys.argv[1])
    load = peers.load(job["peer"], job["ports"], synced=job["synced"])
    print(json.dumps(JOBS[job["job"]](load, job)), flush=True)


if __name__ == "__main__":
    main()
