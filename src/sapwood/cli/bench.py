"""`sapwood bench`: what a cluster can do, measured with the client of this package."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import click

from sapwood.cli.connect import async_client_for, bootstrap_option
from sapwood.cli.output import output_option, print_json, print_table, progress
from sapwood.cli.produce import CODECS

if TYPE_CHECKING:
    from sapwood.client import AsyncKafkaClient

_ACKS = {"all": -1, "1": 1, "0": 0}
_REPORT_EVERY = 5_000


@click.command()
@click.option("--size", type=click.IntRange(1, 900_000), default=100, show_default=True,
              help="Bytes of each value.")  # fmt: skip
@click.option("--messages", type=click.IntRange(min=1), default=500_000, show_default=True)
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--acks", type=click.Choice(sorted(_ACKS)), default="all", show_default=True)
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--latency-messages", type=click.IntRange(min=0), default=1_000, show_default=True,
              help="Records sent one by one, each after the last was acknowledged.")  # fmt: skip
@click.option("--topic", help="Use this topic and keep it.  [default: one of its own]")
@output_option
@bootstrap_option
def bench(
    size: int,
    messages: int,
    partitions: int,
    acks: str,
    compression: str,
    latency_messages: int,
    topic: str | None,
    output: str,
    bootstrap: str | None,
) -> None:
    """Measure throughput and latency of a cluster."""
    from sapwood.client import Compression

    options = {
        "acks": _ACKS[acks],
        "compression": Compression[compression.upper()],
        "linger_ms": 0,
    }
    client = async_client_for(bootstrap, **options)
    work = _Work(client, topic, size, messages, partitions, latency_messages)
    found = asyncio.run(work.run())
    if output == "json":
        print_json(found)
        return
    rows = [
        ("produce", "messages/s", found["produce"]["messages_per_s"]),
        ("produce", "MB/s", found["produce"]["megabytes_per_s"]),
        ("consume", "messages/s", found["consume"]["messages_per_s"]),
        ("consume", "MB/s", found["consume"]["megabytes_per_s"]),
    ]
    rows += [("latency", f"{name} ms", value) for name, value in found["latency_ms"].items()]
    print_table(("WORK", "UNIT", "VALUE"), rows)


class _Work:
    def __init__(
        self,
        client: AsyncKafkaClient,
        topic: str | None,
        size: int,
        messages: int,
        partitions: int,
        latency_messages: int,
    ) -> None:
        self._client = client
        self._topic = topic or f"sapwood-bench-{os.getpid()}"
        self._is_own_topic = topic is None
        self._value = os.urandom(size)
        self._messages = messages
        self._partitions = partitions
        self._latency_messages = latency_messages

    async def run(self) -> dict[str, Any]:
        from sapwood.client.admin import NewTopic

        async with self._client as client:
            if self._is_own_topic:
                await client.create_topics([NewTopic(self._topic, self._partitions)])
            try:
                described = (await client.metadata([self._topic])).topics[self._topic]
                self._partitions = len(described.partitions) or self._partitions
                return {
                    "topic": self._topic,
                    "partitions": self._partitions,
                    "size": len(self._value),
                    "messages": self._messages,
                    "produce": self._rate(await self._produce()),
                    "consume": self._rate(await self._consume()),
                    "latency_ms": await self._latency(),
                }
            finally:
                if self._is_own_topic:
                    await client.delete_topics([self._topic])

    async def _produce(self) -> float:
        client, topic, value = self._client, self._topic, self._value
        await (await client.send(topic, value))  # producer id, connections and code are warm
        started = time.perf_counter()
        with progress("produce", self._messages, unit="messages") as advance:
            for number in range(self._messages):
                await client.send(topic, value)
                if number % _REPORT_EVERY == 0:
                    advance(_REPORT_EVERY)
            await client.flush()
        return time.perf_counter() - started

    async def _consume(self) -> float:
        from sapwood.client.fetcher import read_records

        keys = [(self._topic, number) for number in range(self._partitions)]
        ends = await self._client.list_offsets(dict.fromkeys(keys, -1))
        starts = await self._client.list_offsets(dict.fromkeys(keys, -2))
        stored = sum(each.offset for each in ends.values())
        stored -= sum(each.offset for each in starts.values())
        if stored < self._messages:
            raise click.ClickException(f"{stored} of {self._messages} messages were stored")
        positions = {key: found.offset for key, found in starts.items()}
        seen = 0
        started = time.perf_counter()
        with progress("consume", self._messages, unit="messages") as advance:
            async for chunk in self._client.fetch(positions, stop_at="end"):
                count = sum(1 for _ in read_records(chunk))
                advance(count)
                seen += count
                if seen >= self._messages:
                    break
        return (time.perf_counter() - started) * self._messages / seen

    async def _latency(self) -> dict[str, float]:
        took_ms = []
        with progress("latency", self._latency_messages, unit="messages") as advance:
            for _ in range(self._latency_messages):
                started = time.perf_counter()
                await (await self._client.send(self._topic, self._value))
                took_ms.append((time.perf_counter() - started) * 1000)
                advance(1)
        if len(took_ms) < 2:
            return {}
        percentiles = statistics.quantiles(took_ms, n=100, method="inclusive")
        found = {"p50": percentiles[49], "p99": percentiles[98], "max": max(took_ms)}
        return {name: round(value, 3) for name, value in found.items()}

    def _rate(self, took_s: float) -> dict[str, float]:
        per_s = self._messages / took_s
        return {
            "seconds": round(took_s, 3),
            "messages_per_s": round(per_s),
            "megabytes_per_s": round(per_s * len(self._value) / 1e6, 1),
        }
