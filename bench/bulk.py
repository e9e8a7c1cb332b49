"""Arrow tables against confluent-kafka, on the same node in the same run: python -m bench.bulk"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

import sapwood
from sapwood.bulk import BulkClient


def produce_with_confluent(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 256 * 1024,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for value in values:
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("confluent-kafka has not delivered everything")


def consume_with_confluent(bootstrap: str, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    left = count
    while left:
        left -= len(consumer.consume(min(left, 10_000), 30))
    consumer.close()


def fetch(client: BulkClient, topic: str, count: int) -> None:
    found = sum(batch.num_rows for batch in client.fetch_batches(topic, 0, with_headers=False))
    if found != count:
        raise RuntimeError(f"{found} of {count} messages were fetched")


def rate(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bulk", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    values = [os.urandom(options.value_bytes) for _ in range(options.messages)]
    print(f"million messages/s, {options.value_bytes} bytes, one partition, one node")
    for flush, name in (("sync", "synced"), ("os", "OS-buffered")):
        for what, found in measure(values, flush, options.rounds).items():
            print(f"{name}, {what:26}{statistics.median(found):8.2f}", flush=True)


def measure(values: list[bytes], flush: str, rounds: int) -> dict[str, list[float]]:
    count = len(values)
    table = pa.table({"value": values})
    rates: dict[str, list[float]] = {}
    with (
        sapwood.Cluster(config={"log.flush": flush}) as cluster,
        BulkClient(cluster.bootstrap) as client,
    ):
        address = cluster.bootstrap
        client.produce_arrow("warm-up", table.slice(0, 1000))
        for number in range(rounds):
            arrow, confluent = f"arrow-{number}", f"confluent-{number}"
            cluster.create_topics({arrow: 1, confluent: 1})
            for what, work in {
                "produce, confluent-kafka": lambda topic=confluent: produce_with_confluent(
                    address, topic, values
                ),
                "produce, Arrow": lambda topic=arrow: client.produce_arrow(topic, table),
                "consume, confluent-kafka": lambda topic=confluent: consume_with_confluent(
                    address, topic, count
                ),
                "consume, Arrow": lambda topic=arrow: fetch(client, topic, count),
            }.items():
                rates.setdefault(what, []).append(rate(work, count))
    return rates


if __name__ == "__main__":
    main()
