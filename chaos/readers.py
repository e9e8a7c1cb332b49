"""Readers: partitions by hand, from the beginning, without a group; every record is noted.

Some read along while the faults happen. Others read everything to its end afterwards, once each,
with different clients: what they find is what the log is.
"""

import asyncio
import logging
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from aiokafka.errors import OffsetOutOfRangeError
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from chaos.history import Offline, Read, Recorder, Trouble, from_the_wire, runs
from chaos.producers import IMPATIENT

POLL_S = 0.1
MOST_RECORDS = 5_000
KCAT_SEPARATOR = b"\x1e"
KCAT_TIMEOUT_S = 60

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of every attempt to reconnect

Partition = tuple[str, int]


class ReadIncomplete(Exception):
    """kcat gave up on a partition that another client had read to its end."""


class Reader(threading.Thread):
    """Reads along until it is stopped."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, name: str, partitions: list[Partition]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._recorder = recorder
        self._servers = bootstrap
        self._partitions = partitions
        self._ended = threading.Event()

    def finish(self) -> None:
        self._ended.set()
        self.join()

    def _trouble(self, text: str) -> None:
        self._recorder.add(Trouble(client=self.name, at=self._recorder.now(), error=text))


class ConfluentReader(Reader):
    def run(self) -> None:
        consumer = Consumer(_confluent(self._servers, self.name))
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in self._partitions])
        try:
            while not self._ended.is_set():
                at = self._recorder.now()
                messages = consumer.consume(MOST_RECORDS, POLL_S)
                self._note(messages, at)
        finally:
            consumer.close()

    def _note(self, messages: list[Any], at: float) -> None:
        records: dict[Partition, list[tuple[int, str]]] = defaultdict(list)
        for message in messages:
            error = message.error()
            if error is None:
                record = (message.offset(), from_the_wire(message.value()))
                records[message.topic(), message.partition()].append(record)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                place = (message.topic(), message.partition())
                record_out_of_range(self._recorder, self.name, place, message.offset(), at)
            else:
                self._trouble(f"{error.name()}: {error.str()}")
        record_reads(self._recorder, self.name, records, at)


class AioReader(Reader):
    def run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            client_id=self.name,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            retry_backoff_ms=50,
            request_timeout_ms=5_000,
        )
        await consumer.start()
        places = [AioPartition(*place) for place in self._partitions]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        try:
            while not self._ended.is_set():
                at = self._recorder.now()
                try:
                    batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                except OffsetOutOfRangeError as error:
                    for place, offset in error.args[0].items():
                        record_out_of_range(self._recorder, self.name, tuple(place), offset, at)
                    return
                except AioError as error:
                    self._trouble(repr(error))
                    await asyncio.sleep(POLL_S)
                    continue
                records = {
                    (place.topic, place.partition): [
                        (it.offset, from_the_wire(it.value)) for it in messages
                    ]
                    for place, messages in batches.items()
                }
                record_reads(self._recorder, self.name, records, at)
        finally:
            await consumer.stop()


READERS: dict[str, type[Reader]] = {"confluent": ConfluentReader, "aiokafka": AioReader}


def start_readers(
    recorder: Recorder, bootstrap: str, kinds: Iterable[str], partitions: list[Partition]
) -> list[Reader]:
    readers = [
        READERS[kind](recorder, bootstrap, f"{kind}-{number}", partitions)
        for number, kind in enumerate(kinds)
    ]
    for reader in readers:
        reader.start()
    return readers


def record_reads(
    recorder: Recorder,
    client: str,
    records: dict[Partition, list[tuple[int, str]]],
    at: float,
    *,
    node: int = -1,
    final: bool = False,
) -> None:
    done = recorder.now()
    for (topic, partition), some in records.items():
        for offset, values in runs(some):
            recorder.add(
                Read(
                    client=client,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    values=values,
                    at=at,
                    done=done,
                    node=node,
                    final=final,
                )
            )


def record_out_of_range(
    recorder: Recorder, client: str, place: Partition, offset: int, at: float, *, node: int = -1
) -> None:
    """A place that was there once, said to be beyond the end."""
    topic, partition = place
    recorder.add(
        Read(
            client=client,
            topic=topic,
            partition=partition,
            offset=offset,
            at=at,
            done=recorder.now(),
            node=node,
            error="OFFSET_OUT_OF_RANGE",
        )
    )


Log = tuple[list[tuple[int, str]], int]  # records and end of a partition


def read_finally(
    recorder: Recorder, bootstrap: str, partitions: list[Partition], patience_s: float
) -> dict[Partition, int]:
    """Every partition to its end, by two clients; what can't be read is noted as offline.

    Returns where those end that can.
    """
    at = recorder.now()
    logs = _final_confluent(bootstrap, partitions, patience_s)
    for topic, partition in partitions:
        if (topic, partition) not in logs:
            reason = f"its end wasn't reached within {patience_s} s"
            recorder.add(Offline(topic=topic, partition=partition, reason=reason))
    _record_logs(recorder, "final-confluent", logs, at)
    at = recorder.now()
    again: dict[Partition, Log] = {}
    for topic, partition in logs:
        try:
            again[topic, partition] = _final_kcat(bootstrap, topic, partition)
        except ReadIncomplete as error:
            recorder.add(Offline(topic=topic, partition=partition, reason=str(error)))
    _record_logs(recorder, "final-kcat", again, at)
    return {place: end for place, (_, end) in logs.items()}


def _record_logs(recorder: Recorder, client: str, logs: Mapping[Partition, Log], at: float) -> None:
    for (topic, partition), (records, end) in logs.items():
        record_reads(recorder, client, {(topic, partition): records}, at, final=True)
        recorder.add(
            Read(
                client=client,
                topic=topic,
                partition=partition,
                offset=end,
                at=at,
                done=recorder.now(),
                final=True,
            )
        )


def _final_confluent(
    bootstrap: str, partitions: list[Partition], patience_s: float
) -> dict[Partition, Log]:
    """Of the partitions whose end was reached before nothing came for so long."""
    consumer = Consumer({**_confluent(bootstrap, "final"), "enable.partition.eof": True})
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in partitions])
    records: dict[Partition, list[tuple[int, str]]] = defaultdict(list)
    ends: dict[Partition, int] = {}
    quiet_since = time.monotonic()
    try:
        while len(ends) < len(partitions) and time.monotonic() < quiet_since + patience_s:
            messages: list[Any] = consumer.consume(MOST_RECORDS, POLL_S)
            for message in messages:
                place = (message.topic(), message.partition())
                error = message.error()
                if error is None:
                    quiet_since = time.monotonic()
                    records[place].append((message.offset(), from_the_wire(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends[place] = message.offset()
    finally:
        consumer.close()
    return {place: (records[place], end) for place, end in ends.items()}


def _final_kcat(bootstrap: str, topic: str, partition: int) -> Log:
    place = ["-t", topic, "-p", str(partition), "-o", "beginning"]
    flags = ["-C", "-e", "-u", "-q", "-X", "fetch.wait.max.ms=10", "-f", "%o %s\x1e"]
    command = ["kcat", "-b", bootstrap, *flags, *place]
    try:
        done = subprocess.run(command, capture_output=True, timeout=KCAT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ReadIncomplete(f"kcat didn't come to its end within {KCAT_TIMEOUT_S} s") from error
    if done.returncode:
        raise ReadIncomplete(f"{' '.join(command)}: {done.stderr.decode(errors='replace')}")
    records = []
    for row in done.stdout.split(KCAT_SEPARATOR)[:-1]:
        offset, _, value = row.partition(b" ")
        records.append((int(offset), from_the_wire(value)))
    return records, records[-1][0] + 1 if records else 0


def _confluent(bootstrap: str, name: str) -> dict[str, Any]:
    return {
        **IMPATIENT,
        "bootstrap.servers": bootstrap,
        "client.id": name,
        "group.id": "unused: partitions are assigned by hand",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
    }
