"""`python -m bench.groups`: what many groups, and a large one, cost a cluster of three.

The members are ours and do nothing but belong, the same against every broker. They speak the
newer protocol, in which the coordinator does the work.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from bench import peers
from bench.members import Connection, Crowd, Member
from bench.peers import SPEAK_KAFKA, Peer
from bench.processes import OthersWatch, cpu_seconds, free_ports, memory_bytes
from sapwood.wire.apis import Api
from sapwood.wire.codec import Struct

NODES = 3
SETTLE_S = 3.0
MIB = 2**20

Found = dict[str, float]


class Meter:
    """What the nodes used between two moments."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = list(roots)
        self._began = time.monotonic()
        self._before = self._now()

    def _now(self) -> list[float]:
        return [cpu_seconds([root]) for root in self._roots]

    def cores(self) -> tuple[float, float]:
        """Of the busiest node, and of all."""
        took_s = time.monotonic() - self._began
        used = [(now - then) / took_s for now, then in zip(self._now(), self._before, strict=True)]
        return max(used), sum(used)


async def one_group(
    peer: Peer, ports: Sequence[int], members: int, partitions: int, quiet_s: float
) -> Found:
    """A large group: it forms, rests, grows and shrinks by one, and loses its coordinator."""
    addresses = [("127.0.0.1", port) for port in ports]
    found: Found = {}
    async with Crowd() as crowd:
        meter = Meter(peer.roots())
        for number in range(members):
            crowd.add(Member(addresses, "large", f"member-{number:05}", "large"))
        found["formed, s"] = await crowd.until(lambda: crowd.shares(partitions))
        found["busiest node meanwhile, % of a core"] = meter.cores()[0] * 100
        found |= await at_rest(peer, crowd, quiet_s)

        newcomer = Member(addresses, "large", "newcomer", "large")
        crowd.add(newcomer)
        found["one joins, s"] = await crowd.until(lambda: crowd.shares(partitions))
        began = time.monotonic()
        await crowd.remove(newcomer)
        await crowd.until(lambda: crowd.shares(partitions))
        found["one leaves, s"] = time.monotonic() - began

        node = ports.index(await coordinator(addresses, "large"))
        killed = time.monotonic()
        peer.children.kill(node)

        def all_went_on() -> bool:
            heard = all(member.heard_at > killed + 0.001 for member in crowd.members)
            return heard and crowd.shares(partitions)

        found["coordinator killed, all go on, s"] = await crowd.until(all_went_on)
    return found


async def many_groups(peer: Peer, ports: Sequence[int], groups: int, quiet_s: float) -> Found:
    """Many groups of one member each: they form, and rest."""
    addresses = [("127.0.0.1", port) for port in ports]
    found: Found = {}
    async with Crowd() as crowd:
        meter = Meter(peer.roots())
        for number in range(groups):
            crowd.add(Member(addresses, f"group-{number:05}", "member", "small"))
        found["formed, s"] = await crowd.until(lambda: all(it.owned for it in crowd.members))
        found["busiest node meanwhile, % of a core"] = meter.cores()[0] * 100
        found |= await at_rest(peer, crowd, quiet_s)
    return found


async def at_rest(peer: Peer, crowd: Crowd, quiet_s: float) -> Found:
    await asyncio.sleep(min(SETTLE_S, quiet_s))
    meter, before = Meter(peer.roots()), crowd.answers
    await asyncio.sleep(quiet_s)
    busiest, everybody = meter.cores()
    crowd.check()
    beats = (crowd.answers - before) / quiet_s
    return {
        "at rest: heartbeats/s": beats,
        "at rest: busiest node, % of a core": busiest * 100,
        "at rest: all nodes, % of a core": everybody * 100,
        "at rest: memory of all nodes, MiB": memory_bytes(peer.roots()) / MIB,
    }


async def coordinator(addresses: Sequence[tuple[str, int]], group: str) -> int:
    """The port of the node that coordinates it."""
    connection = await Connection.to(addresses[0])
    message = Struct(key_type=0, coordinator_keys=[group])
    answer = await connection.ask(Api.FIND_COORDINATOR, 4, message)
    connection.close()
    return int(answer.coordinators[0].port)


def measured(
    name: str, members: int, partitions: int, groups: int, quiet_s: float
) -> dict[str, Found]:
    """One broker's turn: fresh, and gone with its data afterwards."""
    peer = peers.peer(name)
    if missing := peer.missing():
        raise click.ClickException(f"without {peer.title}: {missing}")
    peer.prepare()
    directory = Path(tempfile.mkdtemp(prefix=f"sapwood-bench-groups-{name}-"))
    ports = free_ports(NODES)
    others = OthersWatch()
    try:
        peer.start(directory, ports, synced=name == "sapwood")
        load = peers.load(name, ports, synced=name == "sapwood")
        load.first()
        load.create("small", 1)
        load.create("large", partitions)
        many = asyncio.run(many_groups(peer, ports, groups, quiet_s))
        one = asyncio.run(one_group(peer, ports, members, partitions, quiet_s))
        used = others.share(peer.roots())
    finally:
        peer.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return {
        f"{groups:,} groups of one member": many,
        f"one group of {members} members, {partitions} partitions": one,
        "machine": {"used by others, %": used * 100},
    }


@click.command()
@click.option("--peers", "wanted", default="sapwood,kafka", show_default=True)
@click.option("--members", default=200, show_default=True)
@click.option("--partitions", default=400, show_default=True)
@click.option("--groups", default=1000, show_default=True)
@click.option("--quiet-s", default=10.0, show_default=True, help="How long rest is watched.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON.")
def main(
    wanted: str,
    members: int,
    partitions: int,
    groups: int,
    quiet_s: float,
    output: Path | None,
) -> None:
    """Measure groups of Sapwood, synced, and of Kafka at its defaults."""
    results = {}
    for name in wanted.split(","):
        if name not in SPEAK_KAFKA:
            raise click.BadParameter(f"{name}: choose from {', '.join(SPEAK_KAFKA)}")
        results[name] = measured(name, members, partitions, groups, quiet_s)
    names = list(results)
    for part in results[names[0]]:
        print(f"| {part} | {' | '.join(names)} |")
        print("|---|" + "---:|" * len(names))
        for row in results[names[0]][part]:
            values = (f"{results[name][part][row]:,.2f}" for name in names)
            print(f"| {row} | {' | '.join(values)} |")
        print()
    if output is not None:
        output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
